//! Waiting for a folio that is held, without a thread.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use rustix::io::Errno;

use crate::core::CacheCore;
use crate::folio::Key;
use crate::folio_ref::Page;
use crate::index::Wanted;
use crate::waiter::{WaitOutcome, Waiter};

/// The result of waiting for a folio.
pub enum Told {
    /// It is there: a page of it.
    Page(Page),
    /// Filling it failed. The next who reads it tries again.
    Failed(Errno),
    /// It has changed or gone: look again.
    Again,
}

/// Ends when a folio is held no more.
pub struct Wait {
    cache: Arc<CacheCore>,
    key: Key,
    waiter: Option<Arc<Waiter>>,
}

impl Wait {
    pub(crate) fn new(cache: &Arc<CacheCore>, key: Key) -> Wait {
        Wait { cache: cache.clone(), key, waiter: None }
    }
}

impl Future for Wait {
    type Output = Told;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Told> {
        let Some(waiter) = &self.waiter else {
            let waiter = Arc::new(Waiter::new(context.waker().clone()));
            match self.cache.index.wait(&self.cache.frames, self.key, &waiter) {
                Wanted::Changed => return Poll::Ready(Told::Again),
                Wanted::Held => self.waiter = Some(waiter),
            }
            return Poll::Pending;
        };
        waiter.poll(context).map(|outcome| match outcome {
            WaitOutcome::Filled { place, snapshot } => {
                Told::Page(Page::new(self.cache.clone(), place, snapshot))
            }
            WaitOutcome::Failed(error) => Told::Failed(error),
            WaitOutcome::Changed => Told::Again,
        })
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        if let Some(outcome) = self.waiter.take().and_then(|waiter| waiter.close()) {
            self.cache.discard(outcome);
        }
    }
}
