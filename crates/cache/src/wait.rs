//! Waiting for a locked folio, without blocking a thread.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use uringfs_errno::Errno;

use crate::core::CacheCore;
use crate::folio::Key;
use crate::folio_ref::FolioSnapshot;
use crate::index::Registration;
use crate::waiter::{WaitOutcome, Waiter};

/// The result of waiting for a folio.
#[derive(Debug)]
pub enum FolioWaitResult {
    /// The folio has its bytes: a snapshot of it.
    Ready(FolioSnapshot),
    /// Filling it failed. The next reader tries again.
    Failed(Errno),
    /// The folio has changed or is gone: look it up again.
    LookAgain,
}

/// Completes when a folio is unlocked.
pub struct FolioWait {
    cache: Arc<CacheCore>,
    key: Key,
    waiter: Option<Arc<Waiter>>,
}

impl fmt::Debug for FolioWait {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_struct("FolioWait").field("key", &self.key).finish_non_exhaustive()
    }
}

impl FolioWait {
    pub(crate) fn new(cache: &Arc<CacheCore>, key: Key) -> FolioWait {
        FolioWait { cache: cache.clone(), key, waiter: None }
    }
}

impl Future for FolioWait {
    type Output = FolioWaitResult;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<FolioWaitResult> {
        let Some(waiter) = &self.waiter else {
            let waiter = Arc::new(Waiter::new(context.waker().clone()));
            match self.cache.index.register_waiter(&self.cache.frames, self.key, &waiter) {
                Registration::LookAgain => return Poll::Ready(FolioWaitResult::LookAgain),
                Registration::Waiting => self.waiter = Some(waiter),
            }
            return Poll::Pending;
        };
        waiter.poll(context).map(|outcome| match outcome {
            WaitOutcome::Ready(snapshot) => {
                FolioWaitResult::Ready(FolioSnapshot::new(self.cache.frames.clone(), snapshot))
            }
            WaitOutcome::Failed(error) => FolioWaitResult::Failed(error),
            WaitOutcome::LookAgain => FolioWaitResult::LookAgain,
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
