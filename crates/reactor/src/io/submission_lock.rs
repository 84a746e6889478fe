//! Requests that are handed to the kernel with a lock held, which is given back when the kernel has
//! them: as kernel file systems hold an inode's lock while they submit a direct write.

use std::sync::Arc;

use parking_lot::Mutex;
use uringfs_device::{DeviceIndex, Request, Tag};

use crate::io::dispatch::Io;

/// Held by one thread at a time while it submits. Clones are the same lock.
#[derive(Clone, Debug, Default)]
pub struct SubmissionLock {
    lock: Arc<Mutex<()>>,
}

impl SubmissionLock {
    fn is(&self, other: &SubmissionLock) -> bool {
        Arc::ptr_eq(&self.lock, &other.lock)
    }
}

/// Requests that wait to be submitted, each with the lock that this takes.
#[derive(Default)]
pub(crate) struct Guarded {
    waiting: Vec<(SubmissionLock, Request)>,
}

impl Guarded {
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

    /// Takes those that carry `tag` out.
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

    /// Takes all that wait for one lock, with it.
    fn take_first(&mut self) -> Option<(SubmissionLock, Vec<Request>)> {
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

impl Io {
    /// Submits what waits for locks, each lock's requests at once. Those for which a queue has no
    /// room wait on. True when some went.
    pub(crate) fn submit_guarded(&mut self) -> bool {
        let (mut went, mut full) = (false, Vec::new());
        while let Some((lock, requests)) = self.state.guarded.take_first() {
            let held = lock.lock.lock();
            for mut request in requests {
                request.set_issued(true);
                match self.push_on(request) {
                    Ok(()) => went = true,
                    Err(mut request) => {
                        request.set_issued(false);
                        full.push((lock.clone(), request));
                    }
                }
            }
            // What is not taken now is with the next that is submitted, which says why.
            let _ = self.submit_all();
            drop(held);
        }
        full.into_iter().for_each(|(lock, request)| self.state.guarded.add(lock, request));
        went
    }
}
