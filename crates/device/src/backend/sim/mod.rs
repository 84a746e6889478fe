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
mod state;

use std::collections::BinaryHeap;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use rustix::io::Errno;

use crate::geometry::Geometry;
use crate::interface::backend::{Backend, Reach};
use crate::interface::queue::Queue;
use crate::request::{Durability, Op, Request};

use self::fault::Faults;
use self::image::Image;
use self::media::{Media, tear};
use self::random::Random;
use self::record::Record;
use self::state::{State, Ticket, action, check};

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

    /// How many requests have gone wrong.
    pub fn faults_hit(&self) -> u64 {
        self.shared.state.lock().faults.hits
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

    /// Tells contents apart, as a reader would find them: the same for the same bytes, and hardly ever for
    /// others.
    pub fn digest(&self) -> u64 {
        self.shared.state.lock().current.digest()
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
