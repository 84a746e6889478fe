//! What reactors and other threads write to each other, and how a sleeping
//! reactor is woken: one that waits for mail alone as any parked thread, others by
//! a message of the sender's own ring, else by an eventfd.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Thread};
use std::time::Duration;

use parking_lot::RwLock;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use uringfs_device::{Completion, DeviceIndex};

use crate::wake::mailbox::{Mailbox, Notify};

/// A message to a reactor. `A` is work to do on its thread.
pub(crate) enum Message<A> {
    /// Poll this task again.
    Wake(u32),
    /// Do this on the reactor's thread.
    Run(A),
    /// A worker has finished these.
    FromWorker(Vec<Completion>),
    /// The device has closed: finish its requests and let go of it.
    Detach(DeviceIndex),
}

/// A reactor's mailbox.
pub(crate) type ReactorMailbox<A> = Mailbox<Message<A>, Notifier>;

/// Wakes a parked owner, and others by writing to an eventfd.
pub(crate) struct Notifier {
    event: Arc<OwnedFd>,
    /// The owner's ring, for senders that have one of their own. Gone with the owner: else a waker that somebody
    /// keeps would keep the ring, and the memory that is registered there.
    ring: RwLock<Option<OwnedFd>>,
    owner: Thread,
    /// Whether it sleeps in [`Self::park`]: said before it announces that it sleeps at all.
    is_parked: AtomicBool,
}

impl Notifier {
    pub(crate) fn new(ring: Option<OwnedFd>) -> Result<Notifier, Errno> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let owner = thread::current();
        let (event, ring) = (Arc::new(event), RwLock::new(ring));
        Ok(Notifier { event, ring, owner, is_parked: AtomicBool::new(false) })
    }

    /// The owner is going to wait for nothing but this notifier.
    pub(crate) fn will_park(&self) {
        self.is_parked.store(true, Ordering::Relaxed);
    }

    /// The owner waits for the notifier, or for a while; it may find that neither has come.
    pub(crate) fn park(&self, limit: Option<Duration>) {
        match limit {
            Some(limit) => thread::park_timeout(limit),
            None => thread::park(),
        }
    }

    pub(crate) fn will_not_park(&self) {
        self.is_parked.store(false, Ordering::Relaxed);
    }

    /// Whether only [`Notify::ring`] wakes the owner.
    pub(crate) fn is_parked(&self) -> bool {
        self.is_parked.load(Ordering::Relaxed)
    }

    /// Readable once it has been rung.
    pub(crate) fn event(&self) -> &Arc<OwnedFd> {
        &self.event
    }

    /// The owner's ring, which stays open while `send` uses it. False when there is none.
    pub(crate) fn with_owner_ring(&self, send: impl FnOnce(BorrowedFd<'_>) -> bool) -> bool {
        self.ring.read().as_ref().is_some_and(|ring| send(ring.as_fd()))
    }

    /// The owner goes.
    pub(crate) fn forget_ring(&self) {
        *self.ring.write() = None;
    }

    /// Makes the descriptor unreadable until the next ring.
    pub(crate) fn reset(&self) {
        let _ = rustix::io::read(&self.event, &mut [0u8; 8]);
    }
}

impl Notify for Notifier {
    fn notify(&self) {
        if self.is_parked() {
            return self.owner.unpark();
        }
        // EAGAIN: it is readable already.
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }
}
