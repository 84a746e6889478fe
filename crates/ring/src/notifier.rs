//! The eventfd that becomes readable with a completion.

use std::cell::{Cell, OnceCell};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};

use crate::queues::AnyQueues;

/// An eventfd that the kernel writes to with every completion, from its registration on.
#[derive(Default)]
pub(crate) struct Notifier {
    event: OnceCell<OwnedFd>,
    reads: Cell<u64>,
}

impl Notifier {
    /// Registers the eventfd with `ring` at the first call.
    pub(crate) fn register(&self, ring: &impl AnyQueues) -> io::Result<BorrowedFd<'_>> {
        if self.event.get().is_none() {
            let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
            let event = eventfd(0, flags)?;
            ring.submitter().register_eventfd(event.as_raw_fd())?;
            let _ = self.event.set(event);
        }
        Ok(self.event.get().expect("it was just set").as_fd())
    }

    pub(crate) fn is_registered(&self) -> bool {
        self.event.get().is_some()
    }

    /// Makes it unreadable until the next completion.
    pub(crate) fn silence(&self) {
        if let Some(event) = self.event.get() {
            // EAGAIN: nothing has completed.
            let _ = rustix::io::read(event, &mut [0u8; 8]);
            self.reads.set(self.reads.get() + 1);
        }
    }

    /// The calls of `read` so far.
    pub(crate) fn reads(&self) -> u64 {
        self.reads.get()
    }
}
