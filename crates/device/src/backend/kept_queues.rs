//! [`KeptQueues`]: queues for threads that perform requests one by one.

use std::mem;

use parking_lot::Mutex;
use uringfs_errno::Errno;

use crate::request::{Payload, Request, StepCompletion};

/// The most queues that are kept.
const MAX_KEPT: usize = 8;

/// Queues that no thread uses.
pub(super) struct KeptQueues<Q>(Mutex<Vec<Q>>);

impl<Q> Default for KeptQueues<Q> {
    fn default() -> KeptQueues<Q> {
        KeptQueues(Mutex::default())
    }
}

impl<Q> KeptQueues<Q> {
    /// Performs one step of a request, by `perform` on a kept queue or on a new one.
    pub(super) fn perform(
        &self,
        request: &mut Request,
        create: impl FnOnce() -> Result<Q, Errno>,
        perform: impl FnOnce(&mut Q, Request) -> StepCompletion,
    ) -> Result<u32, Errno> {
        let kept = self.0.lock().pop();
        let mut queue = kept.map_or_else(create, Ok)?;
        let empty = Request::new(request.device, request.op, 0, Payload::Length(0), request.tag);
        let StepCompletion { request: ended, result } =
            perform(&mut queue, mem::replace(request, empty));
        *request = ended;
        let mut queues = self.0.lock();
        if queues.len() < MAX_KEPT {
            queues.push(queue);
        }
        result
    }
}
