//! Wakers of tasks, and how a sender that has a ring itself wakes a reactor.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::task::{Wake, Waker};

use crate::event_loop::core::{ReactorMailbox, current};
use crate::wake::mailbox::Notify;
use crate::wake::message::{Message, Notifier};

struct TaskWaker {
    task: u32,
    mailbox: Arc<ReactorMailbox>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let is_woken = current().is_some_and(|reactor| {
            Arc::ptr_eq(&reactor.mailbox, &self.mailbox) && reactor.try_wake_local(self.task)
        });
        if !is_woken {
            // A reactor that was dropped has no tasks to wake.
            let _ = self.mailbox.post(Message::Wake(self.task));
        }
    }
}

/// A waker that makes the reactor poll `task`.
pub(crate) fn task_waker(task: u32, mailbox: &Arc<ReactorMailbox>) -> Waker {
    Waker::from(Arc::new(TaskWaker { task, mailbox: mailbox.clone() }))
}

/// Wakes the owner by a message from this thread's ring when both sides have a ring, else by the eventfd.
pub(crate) fn notify(notifier: &Notifier) {
    let send_message = |target: BorrowedFd<'_>| {
        let Some(reactor) = current() else { return false };
        let Ok(mut io) = reactor.io.try_borrow_mut() else { return false };
        let Some(ring) = &mut io.ring else { return false };
        ring.send_message(target, notifier.event())
    };
    if notifier.is_parked() || !notifier.with_owner_ring(send_message) {
        notifier.notify();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::{Reactor, ReactorOptions};

    #[test]
    fn the_eventfd_is_signalled_when_the_ring_message_fails() {
        let reactor = Reactor::new(ReactorOptions::default()).unwrap();
        // From now on it is the thread's current one.
        reactor.turn().unwrap();
        // This descriptor is not a ring, so the message fails, as when the kernel refuses it.
        let no_ring = std::fs::File::open("/dev/null").unwrap();
        let notifier = Notifier::new(Some(no_ring.into())).unwrap();
        notify(&notifier);
        let read = rustix::io::read(notifier.event(), &mut [0u8; 8]);
        assert!(read.is_ok(), "the eventfd was not signalled");
    }
}
