//! Messages to other rings that the kernel has not answered for: each keeps the event that wakes its
//! target should the message fail.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::in_flight::Name;

/// Messages under way at once. More are refused: the sender takes another way.
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

    /// Names a message whose target wakes by `event`, too. None while too many are under way.
    pub(crate) fn begin(&mut self, event: &Arc<OwnedFd>) -> Option<Name> {
        let place = self.events.iter().position(Option::is_none)?;
        self.events[place] = Some(event.clone());
        self.in_flight += 1;
        Some(Name::message_at(place))
    }

    /// The kernel has answered. For what is no message of this table nothing happens.
    pub(crate) fn end(&mut self, name: Name, has_failed: bool) {
        let place = name.place_of_message();
        let event = place.and_then(|place| self.events.get_mut(place)).and_then(Option::take);
        let Some(event) = event else { return };
        self.in_flight -= 1;
        if has_failed {
            write(&event);
        }
    }

    /// The kernel is not going to answer: all have failed.
    pub(crate) fn give_up(&mut self) {
        self.in_flight = 0;
        self.events.iter_mut().filter_map(Option::take).for_each(|event| write(&event));
    }
}

fn write(event: &OwnedFd) {
    // EAGAIN: it is readable already.
    let _ = rustix::io::write(event, &1u64.to_ne_bytes());
}
