//! The simulated device's own queue: requests complete after the latency of its
//! units, by its clock.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use uringfs_errno::Errno;

use super::inner::SimInner;
use super::state::RequestPlan;
use crate::interface::queue::{Queue, Ready};
use crate::request::{Request, StepCompletion, Tag};

/// A queue of one reactor to a simulated device.
pub(super) struct SimQueue {
    device: Arc<SimInner>,
    depth: usize,
    pushed: VecDeque<Request>,
    /// Completed without reaching the device: refused, or cancelled earlier.
    ended: VecDeque<StepCompletion>,
    slots: Vec<Option<InFlight>>,
    free: Vec<usize>,
    /// The completion of each request: time, order of submission, slot.
    deadlines: BinaryHeap<Reverse<(Instant, u64, usize)>>,
    submitted: u64,
}

struct InFlight {
    request: Request,
    plan: RequestPlan,
}

impl SimQueue {
    pub(super) fn new(device: Arc<SimInner>, depth: usize) -> SimQueue {
        SimQueue {
            device,
            depth,
            pushed: VecDeque::with_capacity(depth),
            ended: VecDeque::with_capacity(depth),
            slots: (0..depth).map(|_| None).collect(),
            free: (0..depth).rev().collect(),
            deadlines: BinaryHeap::with_capacity(depth),
            submitted: 0,
        }
    }

    fn now(&self) -> Instant {
        self.device.options.clock.now()
    }
}

impl Queue for SimQueue {
    fn push(&mut self, request: Request) -> Result<(), Request> {
        if self.in_flight() >= self.depth {
            return Err(request);
        }
        self.pushed.push_back(request);
        Ok(())
    }

    fn submit(&mut self) -> Result<(), Errno> {
        if self.pushed.is_empty() {
            return Ok(());
        }
        let now = self.now();
        while let Some(request) = self.pushed.pop_front() {
            match self.device.begin(&request, now) {
                Ok(plan) => {
                    let slot = self.free.pop().expect("as many slots as requests");
                    self.deadlines.push(Reverse((plan.deadline, self.submitted, slot)));
                    self.submitted += 1;
                    self.slots[slot] = Some(InFlight { request, plan });
                }
                Err(error) => self.ended.push_back(StepCompletion { request, result: Err(error) }),
            }
        }
        Ok(())
    }

    fn reap(&mut self) -> Option<StepCompletion> {
        if let Some(ended) = self.ended.pop_front() {
            return Some(ended);
        }
        let Reverse((deadline, _, slot)) = *self.deadlines.peek()?;
        if deadline > self.now() {
            return None;
        }
        self.deadlines.pop();
        self.free.push(slot);
        let InFlight { mut request, plan } = self.slots[slot].take().expect("in flight");
        let cancelled = request.is_cancelled();
        let result = self.device.finish(&plan, &mut request, cancelled);
        Some(StepCompletion { request, result })
    }

    fn in_flight(&self) -> usize {
        self.pushed.len() + self.ended.len() + self.deadlines.len()
    }

    fn cancel(&mut self, tag: Tag) {
        for _ in 0..self.pushed.len() {
            let Some(mut request) = self.pushed.pop_front() else { break };
            if request.tag == tag {
                request.cancel();
                self.ended.push_back(StepCompletion { request, result: Err(Errno::CANCELED) });
            } else {
                self.pushed.push_back(request);
            }
        }
        let now = self.now();
        let mut deadlines = std::mem::take(&mut self.deadlines).into_vec();
        for Reverse((deadline, _, slot)) in &mut deadlines {
            let in_flight = self.slots[*slot].as_mut().expect("in flight");
            if in_flight.request.tag == tag {
                // A completed request stays completed.
                if *deadline > now {
                    in_flight.request.cancel();
                }
                *deadline = now.min(*deadline);
            }
        }
        self.deadlines = deadlines.into();
    }

    fn system_calls(&self) -> u64 {
        0
    }

    fn ready(&self) -> Ready<'_> {
        if !self.ended.is_empty() {
            return Ready::Now;
        }
        match self.deadlines.peek() {
            None => Ready::Never,
            Some(Reverse((deadline, ..))) if *deadline <= self.now() => Ready::Now,
            Some(Reverse((deadline, ..))) => Ready::At(*deadline),
        }
    }
}

impl Drop for SimQueue {
    /// Requests in flight complete on their own, as on a real device.
    fn drop(&mut self) {
        for in_flight in self.slots.iter_mut().filter_map(Option::take) {
            let InFlight { mut request, plan } = in_flight;
            let _ = self.device.finish(&plan, &mut request, false);
        }
    }
}
