//! The part of a simulated device that its handle and its queues share.

use std::collections::HashMap;
use std::time::Instant;

use parking_lot::Mutex;
use uringfs_errno::Errno;

use super::fault::{Fault, Faults};
use super::image::Image;
use super::media::{Event, Media, Outcome, tear};
use super::options::{FlushMode, Recording, SimOptions, WriteCache};
use super::random::Random;
use super::record::Record;
use super::state::{RequestPlan, SimState, action, check_request};
use crate::geometry::Geometry;
use crate::request::{Durability, Op, Request};

/// The shared part of a simulated device.
pub(super) struct SimInner {
    pub(super) options: SimOptions,
    pub(super) geometry: Geometry,
    pub(super) state: Mutex<SimState>,
}

impl SimInner {
    /// A device with the content `image`.
    pub(super) fn new(image: Image, options: SimOptions) -> SimInner {
        let record = (options.recording == Recording::On)
            .then(|| Record::new(Media::from_image(image.clone())));
        let state = SimState {
            size: options.size,
            current: image,
            record,
            faults: Faults::default(),
            random: Random::new(options.seed),
            units: HashMap::new(),
            detached: None,
            next_id: 0,
        };
        let geometry = options.geometry();
        SimInner { options, geometry, state: Mutex::new(state) }
    }

    /// Accepts a request at `now`: decides its fault, its real range and its deadline.
    pub(super) fn begin(&self, request: &Request, now: Instant) -> Result<RequestPlan, Errno> {
        let geometry = &self.geometry;
        let mut state = self.state.lock();
        let (mut address, mut length) = check_request(request, geometry, state.size)?;
        let SimState { faults, random, .. } = &mut *state;
        let fault = faults.hit(request.op, address, length, random);
        if let Some(Fault::Resized(bytes)) = fault {
            state.set_size(bytes);
            (address, length) = check_request(request, geometry, bytes)?;
        }
        let mut plan =
            RequestPlan { id: state.next_id, address, length, fault, action: None, deadline: now };
        state.next_id += 1;
        let moves = matches!(request.op, Op::Read | Op::Write);
        let block = geometry.block_size as u64;
        match fault {
            Some(Fault::Short) if moves && length > block => {
                let blocks = (length / block).max(2);
                plan.length = (1 + state.random.below(blocks - 1)) * block;
            }
            Some(Fault::Misdirected) if moves && length <= state.size => {
                let positions = (state.size - length) / block + 1;
                plan.address = state.random.below(positions) * block;
            }
            _ => {}
        }
        let lost = fault == Some(Fault::Stale) && request.op == Op::Write;
        if request.op != Op::Read && !lost && state.record.is_some() {
            let action = action(request, &plan);
            state.record_event(Event::Begin { id: plan.id, action: action.clone() });
            plan.action = Some(action);
        }
        plan.deadline = state.deadline(now, &self.options, request, fault);
        Ok(plan)
    }

    /// Completes a request that [`Self::begin`] has accepted.
    pub(super) fn finish(
        &self,
        plan: &RequestPlan,
        request: &mut Request,
        cancelled: bool,
    ) -> Result<u32, Errno> {
        let mut state = self.state.lock();
        let failure = match (state.detached, plan.fault) {
            (Some(error), _) => Some(error),
            _ if cancelled => Some(Errno::CANCELED),
            (None, Some(Fault::Error(error))) => Some(error),
            // The device has shrunk meanwhile.
            _ if plan.address + plan.length > state.size => Some(Errno::IO),
            (None, Some(Fault::Torn)) if request.op == Op::Write => {
                let action = plan.action.clone().unwrap_or_else(|| action(request, plan));
                let SimState { current, random, .. } = &mut *state;
                tear(&action, random, current);
                Some(Errno::IO)
            }
            _ => None,
        };
        let outcome = match failure {
            Some(_) => Outcome::Failed,
            None => self.outcome(request),
        };
        if plan.action.is_some() {
            state.record_event(Event::End { id: plan.id, outcome });
        }
        if let Some(error) = failure {
            return Err(error);
        }
        state.apply(plan, request);
        let moves = matches!(request.op, Op::Read | Op::Write);
        Ok(if moves { plan.length as u32 } else { 0 })
    }

    fn outcome(&self, request: &Request) -> Outcome {
        let options = &self.options;
        let settles = request.op == Op::Flush || request.durability == Durability::Durable;
        match (options.cache, options.flush_mode) {
            (WriteCache::None, _) => Outcome::Stable,
            (_, FlushMode::Broken) if settles => Outcome::Lied,
            (_, FlushMode::Kept) if settles => Outcome::Stable,
            _ => Outcome::Done,
        }
    }
}
