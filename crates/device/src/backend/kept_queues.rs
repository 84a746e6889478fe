//! [`KeptQueues`]: queues for threads that perform requests and wait for them.

use std::mem;
use std::time::Instant;

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use uringfs_errno::Errno;

use crate::interface::queue::{Queue, Ready};
use crate::request::{Payload, Request, StepCompletion, Tag};

/// The most queues that are kept.
const MAX_KEPT: usize = 8;

/// The depth of a queue: threads wait for few requests at once.
pub(super) const DEPTH: usize = 4;

/// Queues that no thread uses.
pub(super) struct KeptQueues<Q>(Mutex<Vec<Q>>);

impl<Q> Default for KeptQueues<Q> {
    fn default() -> KeptQueues<Q> {
        KeptQueues(Mutex::default())
    }
}

impl<Q: Queue> KeptQueues<Q> {
    /// Performs one step of a request.
    pub(super) fn perform(
        &self,
        request: &mut Request,
        create: impl FnOnce() -> Result<Q, Errno>,
    ) -> Result<u32, Errno> {
        let mut result = Err(Errno::AGAIN);
        self.perform_each(std::slice::from_mut(request), create, |_, found| result = found);
        result
    }

    /// Performs one step of each request, all at once, on a kept queue of the depth [`DEPTH`] or on a new one. Calls `ended` with
    /// the index and the result of each.
    pub(super) fn perform_each(
        &self,
        requests: &mut [Request],
        create: impl FnOnce() -> Result<Q, Errno>,
        mut ended: impl FnMut(usize, Result<u32, Errno>),
    ) {
        let kept = self.0.lock().pop();
        let mut queue = match kept.map_or_else(create, Ok) {
            Ok(queue) => queue,
            Err(errno) => return (0..requests.len()).for_each(|index| ended(index, Err(errno))),
        };
        let tags: Vec<Tag> = requests.iter().map(|request| request.tag).collect();
        let (mut next, mut left) = (0, requests.len());
        while left > 0 {
            while let Some(request) = requests.get_mut(next) {
                let device = request.device;
                let empty = Request::new(device, request.op, 0, Payload::Length(0), request.tag);
                let mut pushed = mem::replace(request, empty);
                pushed.tag = Tag(next as u64);
                if let Err(mut refused) = queue.push(pushed) {
                    refused.tag = tags[next];
                    *request = refused;
                    break;
                }
                next += 1;
            }
            // Requests that it does not take stay pushed.
            let _ = queue.submit();
            match queue.reap() {
                Some(StepCompletion { request, result }) => {
                    let index = request.tag.0 as usize;
                    requests[index] = request;
                    requests[index].tag = tags[index];
                    left -= 1;
                    ended(index, result);
                }
                None => wait(&queue),
            }
        }
        let mut queues = self.0.lock();
        if queues.len() < MAX_KEPT {
            queues.push(queue);
        }
    }
}

/// Waits until there may be something to reap.
fn wait(queue: &impl Queue) {
    let (descriptor, until) = match queue.ready() {
        Ready::Never | Ready::Now => return,
        Ready::At(at) => (None, Some(at)),
        Ready::Readable(descriptor) => (Some(descriptor), None),
        Ready::ReadableOrAt(descriptor, at) => (Some(descriptor), Some(at)),
    };
    let timeout = until.map(|at| {
        let left = at.saturating_duration_since(Instant::now());
        Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() }
    });
    let watched = descriptor.map(|descriptor| PollFd::from_borrowed_fd(descriptor, PollFlags::IN));
    // The caller looks again, also after an error.
    let _ = poll(watched.into_iter().collect::<Vec<_>>().as_mut_slice(), timeout.as_ref());
}
