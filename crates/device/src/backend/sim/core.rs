//! A simulated device's part that its handle and its queues share.

use std::collections::BinaryHeap;
use std::time::Instant;

use parking_lot::Mutex;
use rustix::io::Errno;

use super::fault::{Fault, Faults};
use super::image::Image;
use super::media::{Event, Media, Outcome, tear};
use super::options::{Cache, Promises, Recording, SimOptions};
use super::random::Random;
use super::record::Record;
use super::state::{State, Ticket, action, check};
use crate::geometry::Geometry;
use crate::request::{Durability, Op, Request};

/// A simulated device.
pub(super) struct SimCore {
    pub(super) options: SimOptions,
    pub(super) geometry: Geometry,
    pub(super) state: Mutex<State>,
}

impl SimCore {
    /// A device that holds `image`.
    pub(super) fn new(image: Image, options: SimOptions) -> SimCore {
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
        SimCore { options, geometry, state: Mutex::new(state) }
    }

    /// Takes a request at `now`.
    pub(super) fn begin(&self, request: &Request, now: Instant) -> Result<Ticket, Errno> {
        let geometry = &self.geometry;
        let (address, length) = check(request, geometry)?;
        let mut state = self.state.lock();
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
        ticket.deadline = state.deadline(now, &self.options, fault);
        Ok(ticket)
    }

    /// Ends what [`Self::begin`] began.
    pub(super) fn finish(
        &self,
        ticket: &Ticket,
        request: &mut Request,
        cancelled: bool,
    ) -> Result<u32, Errno> {
        let mut state = self.state.lock();
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
        let options = &self.options;
        let settles = request.op == Op::Flush || request.durability == Durability::Durable;
        match (options.cache, options.promises) {
            (Cache::None, _) => Outcome::Stable,
            (_, Promises::Broken) if settles => Outcome::Lied,
            (_, Promises::Kept) if settles => Outcome::Stable,
            _ => Outcome::Done,
        }
    }
}
