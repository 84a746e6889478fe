//! Waiting for a folio that is held, without a thread.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use rustix::io::Errno;
use uringfs_sync::Oneshot;

use crate::cache::Shared;
use crate::folio::Key;
use crate::index::Wanted;
use crate::page::Page;

/// What one who waits for a folio is told.
pub enum Told {
    /// It is there: a page of it.
    Page(Page),
    /// Filling it failed. The next who reads it tries again.
    Failed(Errno),
    /// It has changed or gone: look again.
    Again,
}

/// The waiter's cell in the index. It is set without a lock of the cache, since what it replaces is dropped at once.
pub(crate) type Seat = Oneshot<Told>;

/// Ends when a folio is held no more, by whoever fills it.
pub struct Wait {
    cache: Arc<Shared>,
    key: Key,
    seat: Option<Seat>,
}

impl Wait {
    pub(crate) fn new(cache: &Arc<Shared>, key: Key) -> Wait {
        Wait { cache: cache.clone(), key, seat: None }
    }
}

impl Future for Wait {
    type Output = Told;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Told> {
        if let Some(seat) = &self.seat {
            return seat.poll(context);
        }
        let seat = Seat::default();
        let registered = seat.poll(context);
        match self.cache.index.wait(&self.cache.memory, self.key, &seat) {
            Wanted::Changed => return Poll::Ready(Told::Again),
            Wanted::Held => self.seat = Some(seat),
        }
        registered
    }
}
