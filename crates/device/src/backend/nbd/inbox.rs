//! Where a queue gets completions that another thread has received, over a connection that both use.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};
use uringfs_errno::Errno;

use crate::request::StepCompletion;

/// The inbox of a queue.
pub(super) struct Inbox {
    contents: Mutex<Contents>,
    event: OwnedFd,
}

#[derive(Default)]
struct Contents {
    completions: VecDeque<StepCompletion>,
    /// The event is readable.
    is_signalled: bool,
}

impl Inbox {
    pub(super) fn new() -> Result<Inbox, Errno> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Inbox { contents: Mutex::default(), event })
    }

    /// Readable while [`Self::take`] has something to do.
    pub(super) fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    pub(super) fn post(&self, completion: StepCompletion) {
        let mut contents = self.contents.lock();
        contents.completions.push_back(completion);
        self.signal(&mut contents);
    }

    /// Makes the queue look at its connections again.
    pub(super) fn wake(&self) {
        self.signal(&mut self.contents.lock());
    }

    fn signal(&self, contents: &mut Contents) {
        if !contents.is_signalled {
            contents.is_signalled = true;
            // The counter cannot overflow: each signal is read before the next.
            let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
        }
    }

    pub(super) fn is_signalled(&self) -> bool {
        self.contents.lock().is_signalled
    }

    /// Moves the completions to the end of `into`, and returns their number.
    pub(super) fn take(&self, into: &mut VecDeque<StepCompletion>) -> usize {
        let mut contents = self.contents.lock();
        if contents.is_signalled {
            contents.is_signalled = false;
            let _ = rustix::io::read(&self.event, &mut [0; 8]);
        }
        let count = contents.completions.len();
        into.append(&mut contents.completions);
        count
    }
}
