//! Waiting for a held folio, without blocking a thread.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use rustix::io::Errno;

use crate::core::CacheCore;
use crate::folio::Key;
use crate::folio_ref::FolioSnapshot;
use crate::index::Registration;
use crate::waiter::{WaitOutcome, Waiter};

/// The result of waiting for a folio.
pub enum WaitResult {
    /// The folio is filled: a snapshot of it.
    Filled(FolioSnapshot),
    /// Filling it failed. The next reader tries again.
    Failed(Errno),
    /// The folio has changed or is gone: look it up again.
    Changed,
}

/// Completes when a folio is no longer held.
pub struct FolioWait {
    cache: Arc<CacheCore>,
    key: Key,
    waiter: Option<Arc<Waiter>>,
}

impl FolioWait {
    pub(crate) fn new(cache: &Arc<CacheCore>, key: Key) -> FolioWait {
        FolioWait { cache: cache.clone(), key, waiter: None }
    }
}

impl Future for FolioWait {
    type Output = WaitResult;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<WaitResult> {
        let Some(waiter) = &self.waiter else {
            let waiter = Arc::new(Waiter::new(context.waker().clone()));
            match self.cache.index.register_waiter(&self.cache.frames, self.key, &waiter) {
                Registration::Changed => return Poll::Ready(WaitResult::Changed),
                Registration::Waiting => self.waiter = Some(waiter),
            }
            return Poll::Pending;
        };
        waiter.poll(context).map(|outcome| match outcome {
            WaitOutcome::Filled { frame, snapshot } => {
                WaitResult::Filled(FolioSnapshot::new(self.cache.clone(), frame, snapshot))
            }
            WaitOutcome::Failed(error) => WaitResult::Failed(error),
            WaitOutcome::Changed => WaitResult::Changed,
        })
    }
}

impl Drop for FolioWait {
    fn drop(&mut self) {
        if let Some(outcome) = self.waiter.take().and_then(|waiter| waiter.close()) {
            self.cache.discard(outcome);
        }
    }
}
