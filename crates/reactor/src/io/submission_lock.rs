//! Requests that are handed to the kernel under a lock, which is released when the kernel has them. Kernel file systems
//! hold an inode's lock in the same way while they submit a direct write.

use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use uringfs_device::{DeviceIndex, Request, Tag};

/// A lock that one thread holds while it submits. Clones are the same lock.
#[derive(Clone, Debug, Default)]
pub struct SubmissionLock {
    lock: Arc<Mutex<()>>,
}

impl SubmissionLock {
    /// Locks it until the guard is dropped.
    pub(crate) fn hold(&self) -> MutexGuard<'_, ()> {
        self.lock.lock()
    }

    fn is(&self, other: &SubmissionLock) -> bool {
        Arc::ptr_eq(&self.lock, &other.lock)
    }
}

/// Requests that wait for their submission, each with the lock that it takes.
#[derive(Default)]
pub(crate) struct LockedSubmissions {
    waiting: Vec<(SubmissionLock, Request)>,
}

impl LockedSubmissions {
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(crate) fn add(&mut self, lock: SubmissionLock, request: Request) {
        self.waiting.push((lock, request));
    }

    pub(crate) fn devices(&self) -> impl Iterator<Item = DeviceIndex> {
        self.waiting.iter().map(|(_, request)| request.device)
    }

    /// Removes and returns the requests with `tag`.
    pub(crate) fn take_tagged(&mut self, tag: Tag) -> Vec<Request> {
        let mut taken = Vec::new();
        for (lock, request) in std::mem::take(&mut self.waiting) {
            match request.tag == tag {
                true => taken.push(request),
                false => self.add(lock, request),
            }
        }
        taken
    }

    /// Removes and returns all requests of the first lock, with the lock.
    pub(crate) fn take_first(&mut self) -> Option<(SubmissionLock, Vec<Request>)> {
        let lock = self.waiting.first()?.0.clone();
        let (mut mine, mut others) = (Vec::new(), Vec::new());
        for (other, request) in std::mem::take(&mut self.waiting) {
            match other.is(&lock) {
                true => mine.push(request),
                false => others.push((other, request)),
            }
        }
        self.waiting = others;
        Some((lock, mine))
    }
}
