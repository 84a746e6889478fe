//! Messages to other rings that the kernel has not completed. Each keeps the eventfd that wakes its
//! target if the message fails.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::in_flight::RequestId;

/// The most messages in flight. More are refused, and the sender wakes its target in another way.
const MAX_IN_FLIGHT: usize = 32;

#[derive(Default)]
pub(crate) struct Messages {
    events: Box<[Option<Arc<OwnedFd>>; MAX_IN_FLIGHT]>,
    in_flight: usize,
}

impl Messages {
    #[inline]
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Allocates the id of a message; `event` is the eventfd that also wakes its target. `None` while too many are in
    /// flight.
    pub(crate) fn begin(&mut self, event: &Arc<OwnedFd>) -> Option<RequestId> {
        let index = self.events.iter().position(Option::is_none)?;
        self.events[index] = Some(event.clone());
        self.in_flight += 1;
        Some(RequestId::from_message_index(index))
    }

    /// Completes a message. An id that is no message of this table has no effect.
    pub(crate) fn end(&mut self, id: RequestId, has_failed: bool) {
        let index = id.message_index();
        let event = index.and_then(|index| self.events.get_mut(index)).and_then(Option::take);
        let Some(event) = event else { return };
        self.in_flight -= 1;
        if has_failed {
            write(&event);
        }
    }

    /// Fails all messages: the kernel will not complete them.
    pub(crate) fn fail_all(&mut self) {
        self.in_flight = 0;
        self.events.iter_mut().filter_map(Option::take).for_each(|event| write(&event));
    }
}

fn write(event: &OwnedFd) {
    // EAGAIN: it is readable already.
    let _ = rustix::io::write(event, &1u64.to_ne_bytes());
}
