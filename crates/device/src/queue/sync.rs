//! Executes requests in the issuing thread, inside `submit`: the fastest queue for
//! a device that completes within the call.

use std::collections::VecDeque;
use std::sync::Arc;

use uringfs_errno::Errno;

use crate::inner::DeviceInner;
use crate::interface::queue::{Queue, Ready};
use crate::queue::slowdown::SlowdownDetector;
use crate::request::{Durability, Op, Request, StepCompletion, Tag};

/// Reads up to this size in bytes are comparable with those that calibration measures.
const MAX_COMPARABLE: u64 = 4096;

/// A queue whose requests are all completed when `submit` returns.
#[derive(Debug)]
pub struct SyncQueue {
    core: Arc<DeviceInner>,
    depth: usize,
    /// In the order of push; the first `executed_count` are completed.
    requests: VecDeque<StepCompletion>,
    executed_count: usize,
    system_calls: u64,
    /// `None` if nothing was measured.
    slowdown: Option<SlowdownDetector>,
}

impl SyncQueue {
    /// A queue to one device, with at most `depth` requests in flight.
    pub fn new(core: Arc<DeviceInner>, depth: usize) -> SyncQueue {
        let requests = VecDeque::with_capacity(depth);
        SyncQueue { core, depth, requests, executed_count: 0, system_calls: 0, slowdown: None }
    }

    /// Compares the time of reads with what calibration measured, for [`Queue::is_slower_than_measured`].
    pub fn with_slowdown_detector(self, detector: SlowdownDetector) -> SyncQueue {
        SyncQueue { slowdown: Some(detector), ..self }
    }

    /// The number of requests to execute, if all of them are comparable with what calibration measured.
    fn comparable_reads(&self) -> Option<u32> {
        let mut pushed = self.requests.range(self.executed_count..);
        let is_comparable = |pushed: &StepCompletion| {
            let request = &pushed.request;
            request.op == Op::Read && request.length() <= MAX_COMPARABLE && !request.is_cancelled()
        };
        let count = pushed.len() as u32;
        (count > 0 && pushed.all(is_comparable)).then_some(count)
    }
}

impl Queue for SyncQueue {
    #[inline]
    fn push(&mut self, request: Request) -> Result<(), Request> {
        if self.requests.len() == self.depth {
            return Err(request);
        }
        self.requests.push_back(StepCompletion { request, result: Ok(0) });
        Ok(())
    }

    #[inline]
    fn submit(&mut self) -> Result<(), Errno> {
        if self.executed_count == self.requests.len() {
            return Ok(());
        }
        let is_timed = self.slowdown.as_mut().is_some_and(SlowdownDetector::is_due);
        let reads = is_timed.then(|| self.comparable_reads()).flatten();
        // In this order: the coarse clock may read the scheduler's account, which is not a part of the batch.
        let began_coarse = self.slowdown.as_mut().map(SlowdownDetector::coarse_now);
        let began = reads.and(self.slowdown.as_ref()).map(SlowdownDetector::now);
        let calls = self.core.calls_to_perform();
        let (mut bytes, first) = (0, self.executed_count);
        for pushed in self.requests.range_mut(first..) {
            let request = &mut pushed.request;
            bytes += request.remaining();
            pushed.result = match request.is_cancelled() {
                true => {
                    request.withdraw();
                    Err(Errno::CANCELED)
                }
                false => {
                    self.system_calls += calls;
                    self.core.perform(request)
                }
            };
        }
        self.executed_count = self.requests.len();
        if let (Some(detector), Some(began)) = (&mut self.slowdown, began_coarse) {
            let has_flushed = || {
                self.requests.range(first..).any(|pushed| {
                    let request = &pushed.request;
                    request.op == Op::Flush || request.durability == Durability::Durable
                })
            };
            detector.end_any(began, bytes, has_flushed);
        }
        if let (Some(detector), Some(began), Some(reads)) = (&mut self.slowdown, began, reads) {
            detector.end(began, reads);
        }
        Ok(())
    }

    #[inline]
    fn reap(&mut self) -> Option<StepCompletion> {
        if self.executed_count == 0 {
            return None;
        }
        self.executed_count -= 1;
        self.requests.pop_front()
    }

    fn in_flight(&self) -> usize {
        self.requests.len()
    }

    /// Only requests that are not submitted can be cancelled; the next submit ends them, and nothing of them reaches the
    /// device.
    fn cancel(&mut self, tag: Tag) {
        for pushed in self.requests.range_mut(self.executed_count..) {
            pushed.request.cancel_if_tagged(tag);
        }
    }

    fn ready(&self) -> Ready<'_> {
        if self.executed_count > 0 { Ready::Now } else { Ready::Never }
    }

    fn system_calls(&self) -> u64 {
        self.system_calls
    }

    fn is_slower_than_measured(&self) -> bool {
        self.slowdown.as_ref().is_some_and(SlowdownDetector::is_contradicted)
    }
}
