//! Waiting for a folio that is held, without a thread.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use rustix::io::Errno;

use crate::core::CacheCore;
use crate::folio::Key;
use crate::index::Wanted;
use crate::page::Page;
use crate::sync::Mutex;

/// What one who waits for a folio is told.
pub enum Told {
    /// It is there: a page of it.
    Page(Page),
    /// Filling it failed. The next who reads it tries again.
    Failed(Errno),
    /// It has changed or gone: look again.
    Again,
}

/// The place of one who waits for a folio.
#[derive(Default)]
pub(crate) struct Seat {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    waker: Option<Waker>,
    told: Option<Told>,
}

impl Seat {
    /// Tells whoever sits there. Not with a lock of the cache held: what is told may be dropped at once.
    pub(crate) fn tell(&self, told: Told) {
        let waker = {
            let mut state = self.state.lock();
            state.told = Some(told);
            state.waker.take()
        };
        waker.into_iter().for_each(Waker::wake);
    }
}

/// Ends when a folio is held no more, by whoever fills it.
pub struct Wait {
    cache: Arc<CacheCore>,
    key: Key,
    seat: Option<Arc<Seat>>,
}

impl Wait {
    pub(crate) fn new(cache: &Arc<CacheCore>, key: Key) -> Wait {
        Wait { cache: cache.clone(), key, seat: None }
    }
}

impl Future for Wait {
    type Output = Told;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Told> {
        if self.seat.is_none() {
            let seat = Arc::new(Seat::default());
            seat.state.lock().waker = Some(context.waker().clone());
            match self.cache.index.wait(&self.cache.memory, self.key, &seat) {
                Wanted::Changed => return Poll::Ready(Told::Again),
                Wanted::Held => self.seat = Some(seat),
            }
            return Poll::Pending;
        }
        let seat = self.seat.as_ref().expect("it has one");
        let mut state = seat.state.lock();
        match state.told.take() {
            Some(told) => Poll::Ready(told),
            None => {
                match &mut state.waker {
                    Some(waker) => waker.clone_from(context.waker()),
                    None => state.waker = Some(context.waker().clone()),
                }
                Poll::Pending
            }
        }
    }
}
