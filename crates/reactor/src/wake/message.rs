//! Messages to a reactor, and the notifier that wakes it when it sleeps. An owner that waits only for messages is
//! unparked like any thread. Any other owner gets a message from the sender's own ring, or else, and always in a foreign
//! loop, a write to its eventfd.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Thread};
use std::time::Duration;

use parking_lot::RwLock;
use rustix::event::{EventfdFlags, eventfd};
use uringfs_device::{DeviceIndex, Errno, StepCompletion};

use crate::wake::mailbox::{Mailbox, Notify};

/// A message to a reactor. `A` is work to run on its thread.
pub(crate) enum Message<A> {
    /// Poll this task again.
    Wake(u32),
    /// Run this on the reactor's thread.
    Run(A),
    /// The completion worker returns these.
    FromWorker(Vec<StepCompletion>),
    /// The device was removed: finish its requests and detach it.
    Detach(DeviceIndex),
}

/// A reactor's mailbox.
pub(crate) type ReactorMailbox<A> = Mailbox<Message<A>, Notifier>;

/// Unparks an owner that is parked, and wakes any other owner by its eventfd.
pub(crate) struct Notifier {
    event: Arc<OwnedFd>,
    /// The owner's ring, for senders that have a ring themselves. Removed when a foreign loop is to watch the eventfd, and
    /// when the owner is dropped. Otherwise a waker that outlives the owner would keep the ring, and the memory registered
    /// there.
    ring: RwLock<Option<OwnedFd>>,
    owner: Thread,
    /// The owner sleeps in [`Self::park`]. Set before the owner announces its sleep.
    is_parked: AtomicBool,
}

impl Notifier {
    pub(crate) fn new(ring: Option<OwnedFd>) -> Result<Notifier, Errno> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let owner = thread::current();
        let (event, ring) = (Arc::new(event), RwLock::new(ring));
        Ok(Notifier { event, ring, owner, is_parked: AtomicBool::new(false) })
    }

    /// Announces that the owner will wait only for this notifier.
    pub(crate) fn will_park(&self) {
        self.is_parked.store(true, Ordering::Relaxed);
    }

    /// Waits for a notification, or until `limit` has passed. May return early.
    pub(crate) fn park(&self, limit: Option<Duration>) {
        match limit {
            Some(limit) => thread::park_timeout(limit),
            None => thread::park(),
        }
    }

    pub(crate) fn will_not_park(&self) {
        self.is_parked.store(false, Ordering::Relaxed);
    }

    /// True when only [`Notify::notify`] wakes the owner.
    pub(crate) fn is_parked(&self) -> bool {
        self.is_parked.load(Ordering::Relaxed)
    }

    /// An eventfd that is readable after a notification.
    pub(crate) fn event(&self) -> &Arc<OwnedFd> {
        &self.event
    }

    /// Calls `send` with the owner's ring, which stays open meanwhile. False when there is none.
    pub(crate) fn with_owner_ring(&self, send: impl FnOnce(BorrowedFd<'_>) -> bool) -> bool {
        self.ring.read().as_ref().is_some_and(|ring| send(ring.as_fd()))
    }

    /// Removes the owner's ring: from now on the eventfd wakes the owner, unless it is parked.
    pub(crate) fn forget_ring(&self) {
        *self.ring.write() = None;
    }

    /// Makes the eventfd unreadable until the next notification.
    pub(crate) fn reset(&self) {
        let _ = rustix::io::read(&self.event, &mut [0u8; 8]);
    }
}

impl Notify for Notifier {
    fn notify(&self) {
        if self.is_parked() {
            return self.owner.unpark();
        }
        // EAGAIN: the eventfd is readable already.
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }
}
