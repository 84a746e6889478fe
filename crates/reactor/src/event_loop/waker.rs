//! How a waker, and a sender with a ring of its own, reaches a reactor.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::task::{Wake, Waker};

use crate::event_loop::core::{Letterbox, current};
use crate::wake::mailbox::Bell;
use crate::wake::message::{EventBell, Letter};

struct TaskWaker {
    task: u32,
    letterbox: Arc<Letterbox>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let is_woken = current().is_some_and(|inner| {
            Arc::ptr_eq(&inner.letterbox, &self.letterbox) && inner.wake_here(self.task)
        });
        if !is_woken {
            // A reactor that is gone has no tasks to wake.
            let _ = self.letterbox.post(Letter::Wake(self.task));
        }
    }
}

/// A waker that writes the reactor to poll `task`.
pub(crate) fn waker_of(task: u32, letterbox: &Arc<Letterbox>) -> Waker {
    Waker::from(Arc::new(TaskWaker { task, letterbox: letterbox.clone() }))
}

/// Wakes by a message of our own ring when both sides have one, else by the eventfd.
pub(crate) fn ring_bell(bell: &EventBell) {
    let send_message = |target: BorrowedFd<'_>| {
        let Some(inner) = current() else { return false };
        let Ok(mut io) = inner.io.try_borrow_mut() else { return false };
        let Some(ring) = &mut io.ring else { return false };
        ring.send_message(target, bell.event())
    };
    if bell.is_parked() || !bell.with_owners_ring(send_message) {
        bell.ring();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::{Reactor, ReactorOptions};

    #[test]
    fn a_bell_is_rung_whose_message_fails() {
        let _reactor = Reactor::new(ReactorOptions::default()).unwrap();
        // No ring is behind this descriptor, as when the kernel refuses to put a message into one.
        let no_ring = std::fs::File::open("/dev/null").unwrap();
        let bell = EventBell::new(Some(no_ring.into())).unwrap();
        ring_bell(&bell);
        assert!(rustix::io::read(bell.event(), &mut [0u8; 8]).is_ok(), "the owner sleeps on");
    }
}
