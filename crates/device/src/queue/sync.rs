//! Executes requests in the issuing thread, inside `submit`: the fastest queue for
//! a device that completes within the call.

use std::collections::VecDeque;
use std::sync::Arc;

use uringfs_errno::Errno;

use crate::inner::DeviceInner;
use crate::interface::queue::{Queue, Ready};
use crate::request::{Request, StepCompletion, Tag};

/// A queue whose requests are all completed when `submit` returns.
#[derive(Debug)]
pub struct SyncQueue {
    core: Arc<DeviceInner>,
    depth: usize,
    /// In the order of push; the first `executed_count` are completed.
    requests: VecDeque<StepCompletion>,
    executed_count: usize,
    system_calls: u64,
}

impl SyncQueue {
    /// A queue to one device, with at most `depth` requests in flight.
    pub fn new(core: Arc<DeviceInner>, depth: usize) -> SyncQueue {
        let requests = VecDeque::with_capacity(depth);
        SyncQueue { core, depth, requests, executed_count: 0, system_calls: 0 }
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
        let calls = self.core.calls_to_perform();
        for pushed in self.requests.range_mut(self.executed_count..) {
            pushed.result = match pushed.request.cancelled {
                true => Err(Errno::CANCELED),
                false => {
                    self.system_calls += calls;
                    self.core.perform(&mut pushed.request)
                }
            };
        }
        self.executed_count = self.requests.len();
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

    /// Only requests that are not submitted can be cancelled; the next submit ends them.
    fn cancel(&mut self, tag: Tag) {
        for pushed in self.requests.range_mut(self.executed_count..) {
            pushed.request.cancelled |= pushed.request.tag == tag;
        }
    }

    fn ready(&self) -> Ready<'_> {
        if self.executed_count > 0 { Ready::Now } else { Ready::Never }
    }

    fn system_calls(&self) -> u64 {
        self.system_calls
    }
}
