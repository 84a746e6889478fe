//! What reactors and other threads write to each other, and how a sleeping
//! reactor is woken: by a message of the sender's own ring, else by an eventfd.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use uringfs_device::{Completion, DeviceIndex};

use crate::mailbox::{Bell, Mailbox};
use crate::reactor::Inner;

/// Something to do on a reactor's thread.
pub(crate) type Act = Box<dyn FnOnce(&Rc<Inner>) + Send>;

/// A letter to a reactor.
pub(crate) enum Letter {
    /// Poll this task again.
    Wake(u32),
    /// Do this on the reactor's thread.
    Run(Act),
    /// A worker has finished these.
    Completed(Vec<Completion>),
    /// The device has closed: finish its requests and let go of it.
    Detach(DeviceIndex),
}

/// A reactor's mailbox.
pub(crate) type Letterbox = Mailbox<Letter, EventBell>;

/// Wakes by writing to an eventfd.
pub(crate) struct EventBell {
    event: Arc<OwnedFd>,
    /// The owner's ring, for senders that have one of their own.
    ring: Option<OwnedFd>,
}

impl EventBell {
    pub(crate) fn new(ring: Option<OwnedFd>) -> Result<EventBell, Errno> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(EventBell { event: Arc::new(event), ring })
    }

    /// Readable once it has been rung.
    pub(crate) fn event(&self) -> &Arc<OwnedFd> {
        &self.event
    }

    /// The owner's ring.
    pub(crate) fn owners_ring(&self) -> Option<BorrowedFd<'_>> {
        self.ring.as_ref().map(AsFd::as_fd)
    }

    /// Makes the descriptor unreadable until the next ring.
    pub(crate) fn silence(&self) {
        let _ = rustix::io::read(&self.event, &mut [0u8; 8]);
    }
}

impl Bell for EventBell {
    fn ring(&self) {
        // EAGAIN: it is readable already.
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }
}
