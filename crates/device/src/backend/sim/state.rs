//! The state of a simulated device, and the effect of a request on it.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::time::{Duration, Instant};

use uringfs_errno::Errno;

use super::fault::{Fault, Faults};
use super::image::Image;
use super::media::{Action, Event, Outcome};
use super::options::{SimOptions, Spread, WriteCache};
use super::random::Random;
use super::record::Record;
use crate::geometry::Geometry;
use crate::request::{Durability, Op, Request};

/// The mutable state of a device.
pub(super) struct SimState {
    /// In bytes.
    pub(super) size: u64,
    /// The content that reads see.
    pub(super) current: Image,
    /// The past events, for crashes; `None` without recording.
    pub(super) record: Option<Record>,
    pub(super) faults: Faults,
    pub(super) random: Random,
    /// The time when each busy unit is free again, soonest first: of each object that has had a request, or of the device.
    pub(super) units: HashMap<Option<u64>, BinaryHeap<Reverse<Instant>>>,
    pub(super) detached: Option<Errno>,
    pub(super) next_id: u64,
}

/// The plan for an accepted request: its fault, its effect and its deadline are already decided.
pub(super) struct RequestPlan {
    pub(super) id: u64,
    /// The real address and the number of bytes to move, after faults.
    pub(super) address: u64,
    pub(super) length: u64,
    pub(super) fault: Option<Fault>,
    /// The recorded action.
    pub(super) action: Option<Action>,
    pub(super) deadline: Instant,
}

impl SimState {
    pub(super) fn recorded(&mut self) -> &mut Record {
        self.record.as_mut().expect("the device was created without recording")
    }

    pub(super) fn record_event(&mut self, event: Event) {
        if let Some(record) = &mut self.record {
            record.push(event);
        }
    }

    /// The completion time of a request that arrives now: the first free unit works
    /// on it for a random latency.
    pub(super) fn deadline(
        &mut self,
        now: Instant,
        options: &SimOptions,
        request: &Request,
        fault: Option<Fault>,
    ) -> Instant {
        let (min, max) = (*options.latency.start(), *options.latency.end());
        let mut deadline = now;
        let has_nothing_to_do = request.op == Op::Flush && options.cache == WriteCache::None;
        if !max.is_zero() && !has_nothing_to_do {
            let range = (max - min).as_nanos() as u64;
            let more = match options.spread {
                Spread::Uniform => self.random.below(range + 1),
                Spread::Exponential => self.random.exponential(range),
            };
            let object = options.object.filter(|_| request.op != Op::Flush);
            let object = object.map(|bytes| request.address / bytes);
            let units = self.units.entry(object).or_default();
            let busy = units.len() == options.units as usize;
            let free = if busy { units.pop().map_or(now, |unit| unit.0) } else { now };
            deadline = free.max(now) + min + Duration::from_nanos(more);
            units.push(Reverse(deadline));
        }
        match fault {
            Some(Fault::Late(late)) => deadline + late,
            _ => deadline,
        }
    }

    /// Applies the effect of a successful request.
    pub(super) fn apply(&mut self, plan: &RequestPlan, request: &mut Request) {
        let RequestPlan { address, length, .. } = *plan;
        if plan.fault == Some(Fault::BitRot) && length > 0 && request.op == Op::Read {
            let at = address + self.random.below(length);
            let bit = self.random.below(8) as u32;
            self.flip_bit(at, bit);
        }
        match request.op {
            Op::Flush => {}
            Op::Read => {
                let nothing = Image::default();
                let image = match (plan.fault, &self.record) {
                    (Some(Fault::Stale), Some(record)) => record.now.stable(),
                    (Some(Fault::Stale), None) => &nothing,
                    _ => &self.current,
                };
                let mut bytes = vec![0; length as usize];
                image.read(address, &mut bytes);
                request.copy_in(&bytes);
            }
            Op::Write if plan.fault == Some(Fault::Stale) => {}
            Op::Write => self.current.write(address, &request.copy_out(length as usize)),
            Op::Discard | Op::WriteZeroes => self.current.clear(address, length),
        }
        if plan.fault == Some(Fault::BitRot) && length > 0 && request.op == Op::Write {
            let at = plan.address + self.random.below(length);
            let bit = self.random.below(8) as u32;
            self.flip_bit(at, bit);
        }
    }

    /// Flips a bit, and records this as a write that is stable at once.
    pub(super) fn flip_bit(&mut self, address: u64, bit: u32) {
        self.current.flip_bit(address, bit);
        let mut byte = [0];
        self.current.read(address, &mut byte);
        self.record_stable(Action::Write { address, bytes: byte.as_slice().into() });
    }

    /// Changes the size. Bytes that are cut off are lost at once, and read as zeros if the device grows again.
    pub(super) fn set_size(&mut self, bytes: u64) {
        if bytes < self.size {
            let (address, length) = (bytes, self.size - bytes);
            self.current.clear(address, length);
            self.record_stable(Action::Clear { address, length });
        }
        self.size = bytes;
    }

    fn record_stable(&mut self, action: Action) {
        let id = self.next_id;
        self.next_id += 1;
        self.record_event(Event::Begin { id, action });
        self.record_event(Event::End { id, outcome: Outcome::Stable });
    }
}

/// The address of the next step and the number of bytes that it may move, on a device of `size` bytes. Refuses the
/// requests that a real device would refuse.
pub(super) fn check_request(
    request: &Request,
    geometry: &Geometry,
    size: u64,
) -> Result<(u64, u64), Errno> {
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
    let aligned = |(address, length): (*mut u8, usize)| {
        address.addr().is_multiple_of(memory) && length.is_multiple_of(memory)
    };
    if moves && !request.ranges().all(aligned) {
        return Err(Errno::INVAL);
    }
    if request.durability == Durability::Durable && !geometry.durable_writes {
        return Err(Errno::OPNOTSUPP);
    }
    let room = size.saturating_sub(address);
    match request.op {
        Op::Read => Ok((address, remaining.min(room).min(geometry.max_transfer as u64))),
        _ if remaining > room => Err(Errno::NOSPC),
        Op::Write => Ok((address, remaining.min(geometry.max_transfer as u64))),
        _ => Ok((address, remaining)),
    }
}

/// The change of a request, for the record.
pub(super) fn action(request: &Request, plan: &RequestPlan) -> Action {
    match request.op {
        Op::Flush | Op::Read => Action::Flush,
        Op::Discard | Op::WriteZeroes => {
            Action::Clear { address: plan.address, length: plan.length }
        }
        Op::Write => {
            let mut bytes = vec![0; plan.length as usize];
            request.payload.copy_to(request.done(), &mut bytes);
            Action::Write { address: plan.address, bytes: bytes.into() }
        }
    }
}
