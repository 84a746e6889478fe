//! A simulated device: bytes in memory, a seed, and everything that can go
//! wrong with a real one.
//!
//! ```
//! use uringfs_device::backend::sim::{Crash, Fault, Rule, Sim, SimOptions, When};
//! use uringfs_device::{Device, Errno, Op};
//!
//! let sim = Sim::new(SimOptions::new(1 << 20).seed(7));
//! sim.inject(Rule::new(Op::Write, When::Nth(3), Fault::Error(Errno::IO)));
//! let device = Device::new(sim.clone()).unwrap();
//! // ... use the device, then cut the power:
//! let found = Device::new(sim.crash_image(Crash::Seeded(1))).unwrap();
//! assert_eq!(found.geometry(), device.geometry());
//! ```
//!
//! Everything repeats from the seed: the same requests in the same order find
//! the same bytes, faults and latencies.

mod fault;
mod image;
mod media;
mod options;
mod queue;
mod random;
mod record;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use rustix::io::Errno;

use crate::device::{Backend, Reach};
use crate::geometry::Geometry;
use crate::queue::Queue;
use crate::request::{Durability, Op, Request};

use self::fault::Faults;
use self::image::Image;
use self::media::{Media, tear};
use self::random::Random;
use self::record::Record;

pub use self::fault::{Fault, MAX_RULES, Rule, When};
pub use self::media::{Action, Crash, Event, Outcome};
pub use self::options::{Cache, MAX_LATENCY, MAX_UNITS, Promises, Recording, SimOptions};
pub use self::record::{CrashImage, CrashImages, CrashPlan};

/// A simulated device, and the handle by which a test rules it. Clones are the
/// same device.
#[derive(Clone)]
pub struct Sim {
    shared: Arc<Shared>,
}

struct Shared {
    options: SimOptions,
    geometry: Geometry,
    state: Mutex<State>,
}

struct State {
    /// What reads see.
    current: Image,
    /// What a crash would find; absent when nothing is recorded.
    record: Option<Record>,
    faults: Faults,
    random: Random,
    /// When each unit is free again, soonest first.
    units: BinaryHeap<Reverse<Instant>>,
    gone: Option<Errno>,
    next_id: u64,
}

/// A request that the device works on: what became of it is decided already.
struct Ticket {
    id: u64,
    /// Where it really goes, and how many bytes it moves.
    address: u64,
    length: u64,
    fault: Option<Fault>,
    /// What was recorded of it.
    action: Option<Action>,
    deadline: Instant,
}

impl Sim {
    /// A device of zeros.
    pub fn new(options: SimOptions) -> Sim {
        Sim::holding(Image::default(), options)
    }

    fn holding(image: Image, options: SimOptions) -> Sim {
        let record =
            (options.recording == Recording::On).then(|| Record::from(Media::of(image.clone())));
        let state = State {
            current: image,
            record,
            faults: Faults::default(),
            random: Random::new(options.seed),
            units: BinaryHeap::new(),
            gone: None,
            next_id: 0,
        };
        let geometry = options.geometry();
        Sim { shared: Arc::new(Shared { options, geometry, state: Mutex::new(state) }) }
    }

    /// What it was made with; prints its seed.
    pub fn options(&self) -> &SimOptions {
        &self.shared.options
    }

    /// Puts a rule in force.
    ///
    /// # Panics
    /// When [`MAX_RULES`] are.
    pub fn inject(&self, rule: Rule) {
        self.shared.state.lock().faults.add(rule);
    }

    /// The `n`-th request of kind `op` from now (counted from 1) ends with `error`, once.
    pub fn fail_nth(&self, op: Op, n: u64, error: Errno) {
        self.inject(Rule::new(op, When::Nth(n), Fault::Error(error)));
    }

    /// Drops all rules.
    pub fn clear_faults(&self) {
        self.shared.state.lock().faults.clear();
    }

    /// The device goes away: everything in flight and to come ends with `error`
    /// (ENODEV, EIO) until [`Sim::come_back`].
    pub fn go_away(&self, error: Errno) {
        self.shared.state.lock().gone = Some(error);
    }

    /// It is there again, with the bytes it had.
    pub fn come_back(&self) {
        self.shared.state.lock().gone = None;
    }

    /// Flips bit `bit` (0 to 7) of the byte at `address`, in the cache and on the medium.
    pub fn rot(&self, address: u64, bit: u32) {
        self.shared.state.lock().rot(address, bit);
    }

    /// Copies bytes out as a reader would find them, past all faults.
    pub fn peek(&self, address: u64, bytes: &mut [u8]) {
        self.shared.state.lock().current.read(address, bytes);
    }

    /// What happened to its content and is still remembered, in order.
    ///
    /// # Panics
    /// When made with [`Recording::Off`].
    pub fn record(&self) -> Vec<Event> {
        self.shared.state.lock().recorded().events()
    }

    /// How many events at the record's beginning are remembered no longer.
    ///
    /// # Panics
    /// As [`Sim::record`].
    pub fn forgotten(&self) -> u64 {
        self.shared.state.lock().recorded().forgotten()
    }

    /// Lets the record, and so the cut points of [`Sim::crash_images`], begin now.
    ///
    /// # Panics
    /// As [`Sim::record`].
    pub fn restart_record(&self) {
        self.shared.state.lock().recorded().restart();
    }

    /// Completed or in-flight writes whose survival a crash would decide now.
    ///
    /// # Panics
    /// As [`Sim::record`].
    pub fn unsettled(&self) -> usize {
        self.shared.state.lock().recorded().now.unsettled()
    }

    /// The device as it may be found if the power fails now: a new one, which
    /// this one knows nothing of, without faults.
    ///
    /// # Panics
    /// As [`Sim::record`].
    pub fn crash_image(&self, crash: Crash) -> Sim {
        let image = self.shared.state.lock().recorded().now.crash(crash);
        Sim::holding(image, self.shared.options.clone())
    }

    /// The same for every moment since the record began.
    ///
    /// # Panics
    /// As [`Sim::record`]; when the plan asks for over 2^16 states at a moment.
    pub fn crash_images(&self, plan: CrashPlan) -> CrashImages {
        let record = self.shared.state.lock().recorded().clone();
        CrashImages::of(record, self.shared.options.clone(), plan)
    }

    /// Takes a request at `now`.
    fn begin(&self, request: &Request, now: Instant) -> Result<Ticket, Errno> {
        let geometry = &self.shared.geometry;
        let (address, length) = check(request, geometry)?;
        let mut state = self.shared.state.lock();
        let State { faults, random, .. } = &mut *state;
        let fault = faults.hit(request.op, address, length, random);
        let mut ticket =
            Ticket { id: state.next_id, address, length, fault, action: None, deadline: now };
        state.next_id += 1;
        let moves = matches!(request.op, Op::Read | Op::Write);
        let block = geometry.block_size as u64;
        match fault {
            Some(Fault::Short) if moves && length > block => {
                let blocks = (length / block).max(2);
                ticket.length = (1 + state.random.below(blocks - 1)) * block;
            }
            Some(Fault::Misdirected) if moves && length <= geometry.size => {
                let places = (geometry.size - length) / block + 1;
                ticket.address = state.random.below(places) * block;
            }
            _ => {}
        }
        let lost = fault == Some(Fault::Stale) && request.op == Op::Write;
        if request.op != Op::Read && !lost && state.record.is_some() {
            let action = action(request, &ticket);
            state.note(Event::Begin { id: ticket.id, action: action.clone() });
            ticket.action = Some(action);
        }
        ticket.deadline = state.deadline(now, &self.shared.options, fault);
        Ok(ticket)
    }

    /// Ends what [`Sim::begin`] began.
    fn finish(
        &self,
        ticket: &Ticket,
        request: &mut Request,
        cancelled: bool,
    ) -> Result<u32, Errno> {
        let mut state = self.shared.state.lock();
        let failure = match (state.gone, ticket.fault) {
            (Some(error), _) => Some(error),
            _ if cancelled => Some(Errno::CANCELED),
            (None, Some(Fault::Error(error))) => Some(error),
            (None, Some(Fault::Torn)) if request.op == Op::Write => {
                let action = ticket.action.clone().unwrap_or_else(|| action(request, ticket));
                let State { current, random, .. } = &mut *state;
                tear(&action, random, current);
                Some(Errno::IO)
            }
            _ => None,
        };
        let outcome = match failure {
            Some(_) => Outcome::Failed,
            None => self.outcome(request),
        };
        if ticket.action.is_some() {
            state.note(Event::End { id: ticket.id, outcome });
        }
        if let Some(error) = failure {
            return Err(error);
        }
        state.act(ticket, request);
        let moves = matches!(request.op, Op::Read | Op::Write);
        Ok(if moves { ticket.length as u32 } else { 0 })
    }

    fn outcome(&self, request: &Request) -> Outcome {
        let options = &self.shared.options;
        let settles = request.op == Op::Flush || request.durability == Durability::Durable;
        match (options.cache, options.promises) {
            (Cache::None, _) => Outcome::Stable,
            (_, Promises::Broken) if settles => Outcome::Lied,
            (_, Promises::Kept) if settles => Outcome::Stable,
            _ => Outcome::Done,
        }
    }
}

impl State {
    fn recorded(&mut self) -> &mut Record {
        self.record.as_mut().expect("the device was made without a record")
    }

    fn note(&mut self, event: Event) {
        if let Some(record) = &mut self.record {
            record.note(event);
        }
    }

    /// When a request that comes now is answered: the first unit that is free
    /// works on it for the latency drawn.
    fn deadline(&mut self, now: Instant, options: &SimOptions, fault: Option<Fault>) -> Instant {
        let (least, most) = (*options.latency.start(), *options.latency.end());
        let mut deadline = now;
        if !most.is_zero() {
            let spread = (most - least).as_nanos() as u64;
            let latency = least + std::time::Duration::from_nanos(self.random.below(spread + 1));
            let busy = self.units.len() == options.units as usize;
            let free = if busy { self.units.pop().map_or(now, |unit| unit.0) } else { now };
            deadline = free.max(now) + latency;
            self.units.push(Reverse(deadline));
        }
        match fault {
            Some(Fault::Late(late)) => deadline + late,
            _ => deadline,
        }
    }

    /// The effect of a request that ends well.
    fn act(&mut self, ticket: &Ticket, request: &mut Request) {
        let Ticket { mut address, length, .. } = *ticket;
        if ticket.fault == Some(Fault::BitRot) && length > 0 && request.op == Op::Read {
            let at = address + self.random.below(length);
            let bit = self.random.below(8) as u32;
            self.rot(at, bit);
        }
        match request.op {
            Op::Flush => {}
            Op::Read => {
                let nothing = Image::default();
                let image = match (ticket.fault, &self.record) {
                    (Some(Fault::Stale), Some(record)) => record.now.stable(),
                    (Some(Fault::Stale), None) => &nothing,
                    _ => &self.current,
                };
                let mut left = length as usize;
                for piece in request.pieces_mut() {
                    let part = piece.len().min(left);
                    image.read(address, &mut piece[..part]);
                    address += part as u64;
                    left -= part;
                }
            }
            Op::Write if ticket.fault == Some(Fault::Stale) => {}
            Op::Write => {
                let mut left = length as usize;
                for piece in request.pieces() {
                    let part = piece.len().min(left);
                    self.current.write(address, &piece[..part]);
                    address += part as u64;
                    left -= part;
                }
            }
            Op::Discard | Op::WriteZeroes => self.current.clear(address, length),
        }
        if ticket.fault == Some(Fault::BitRot) && length > 0 && request.op == Op::Write {
            let at = ticket.address + self.random.below(length);
            let bit = self.random.below(8) as u32;
            self.rot(at, bit);
        }
    }

    /// Flips a bit, and records it as a change that is stable at once.
    fn rot(&mut self, address: u64, bit: u32) {
        self.current.flip_bit(address, bit);
        let mut byte = [0];
        self.current.read(address, &mut byte);
        let id = self.next_id;
        self.next_id += 1;
        let action = Action::Write { address, bytes: byte.as_slice().into() };
        self.note(Event::Begin { id, action });
        self.note(Event::End { id, outcome: Outcome::Stable });
    }
}

/// Where the next step begins and how many bytes it may move; refuses what a
/// real device would.
fn check(request: &Request, geometry: &Geometry) -> Result<(u64, u64), Errno> {
    let address = request.address + request.done();
    let remaining = request.remaining();
    let moves = matches!(request.op, Op::Read | Op::Write);
    let block = geometry.block_size as u64;
    if request.op == Op::Flush {
        return Ok((0, 0));
    }
    if !address.is_multiple_of(block) || !remaining.is_multiple_of(block) {
        return Err(Errno::INVAL);
    }
    let memory = geometry.memory_alignment as usize;
    let aligned = |piece: &[u8]| {
        (piece.as_ptr() as usize).is_multiple_of(memory) && piece.len().is_multiple_of(memory)
    };
    if moves && !request.pieces().all(aligned) {
        return Err(Errno::INVAL);
    }
    if request.durability == Durability::Durable && !geometry.fua {
        return Err(Errno::OPNOTSUPP);
    }
    let room = geometry.size.saturating_sub(address);
    match request.op {
        Op::Read => Ok((address, remaining.min(room).min(geometry.max_transfer as u64))),
        _ if remaining > room => Err(Errno::NOSPC),
        Op::Write => Ok((address, remaining.min(geometry.max_transfer as u64))),
        _ => Ok((address, remaining)),
    }
}

/// What a request changes, as it is recorded.
fn action(request: &Request, ticket: &Ticket) -> Action {
    match request.op {
        Op::Flush | Op::Read => Action::Flush,
        Op::Discard | Op::WriteZeroes => {
            Action::Clear { address: ticket.address, length: ticket.length }
        }
        Op::Write => {
            let mut bytes = Vec::with_capacity(ticket.length as usize);
            for piece in request.pieces() {
                let part = piece.len().min(ticket.length as usize - bytes.len());
                bytes.extend_from_slice(&piece[..part]);
            }
            Action::Write { address: ticket.address, bytes: bytes.into() }
        }
    }
}

impl Backend for Sim {
    fn geometry(&self) -> &Geometry {
        &self.shared.geometry
    }

    fn description(&self) -> String {
        self.shared.options.to_string()
    }

    fn reach(&self) -> Reach<'_> {
        Reach::Call
    }

    /// At once: latency passes only on the device's own queue.
    fn perform(&self, request: &mut Request) -> Result<u32, Errno> {
        let ticket = self.begin(request, self.shared.options.clock.now())?;
        self.finish(&ticket, request, false)
    }

    fn own_queue(&self, depth: usize) -> Option<Box<dyn Queue>> {
        Some(Box::new(queue::SimQueue::new(self.clone(), depth)))
    }
}

impl fmt::Debug for Sim {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}", self.shared.options)
    }
}
