//! How many folios have bytes that the device does not have: those who save them hear when it is time, those who
//! make more wait while there are too many.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use crate::cache::Shared;
use crate::sync::{AtomicU32, Mutex, Ordering};

/// Of all folios there may be, one in so many may be unsaved.
const MOST: u32 = 4;
/// And from one in so many on they are saved though nobody has asked for it.
const MANY: u32 = 8;

/// The unsaved folios of a cache.
pub(crate) struct Unsaved {
    count: AtomicU32,
    most: u32,
    many: u32,
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    next: u64,
    /// Those who want fewer than so many.
    writers: Vec<(Waiter, u32)>,
    savers: Vec<Waiter>,
}

/// One who waits, until he is woken or gives up.
struct Waiter {
    id: u64,
    waker: Waker,
}

impl Waiting {
    /// One who polls: the same one has the same number each time.
    fn waiter(&mut self, id: &mut Option<u64>, context: &Context<'_>) -> Waiter {
        let id = *id.get_or_insert_with(|| {
            self.next += 1;
            self.next
        });
        self.remove(id);
        Waiter { id, waker: context.waker().clone() }
    }

    fn remove(&mut self, id: u64) {
        self.writers.retain(|(waiter, _)| waiter.id != id);
        self.savers.retain(|waiter| waiter.id != id);
    }
}

impl Unsaved {
    /// Of a cache of so many folios.
    pub(crate) fn new(bound: u32) -> Unsaved {
        let part = |one_in: u32| (bound / one_in).max(1);
        let waiting = Mutex::new(Waiting::default());
        Unsaved { count: AtomicU32::new(0), most: part(MOST), many: part(MANY), waiting }
    }

    pub(crate) fn count(&self) -> u32 {
        self.count.load(Ordering::Acquire)
    }

    pub(crate) fn has_too_many(&self) -> bool {
        self.count() >= self.most
    }

    /// One more.
    pub(crate) fn add(&self) {
        if self.count.fetch_add(1, Ordering::AcqRel) + 1 >= self.many {
            let savers = std::mem::take(&mut self.waiting.lock().savers);
            wake(savers);
        }
    }

    /// One less.
    pub(crate) fn remove(&self) {
        let left = self.count.fetch_sub(1, Ordering::AcqRel) - 1;
        let fewer = |(_, below): &mut (Waiter, u32)| left < *below;
        let writers: Vec<_> = self.waiting.lock().writers.extract_if(.., fewer).collect();
        wake(writers.into_iter().map(|(waiter, _)| waiter));
    }

    /// Whoever waited does not any more.
    fn leave(&self, id: Option<u64>) {
        if let Some(id) = id {
            self.waiting.lock().remove(id);
        }
    }
}

fn wake(waiters: impl IntoIterator<Item = Waiter>) {
    waiters.into_iter().for_each(|waiter| waiter.waker.wake());
}

/// Ends when fewer folios than so many are unsaved.
pub struct Fewer {
    cache: Arc<Shared>,
    below: u32,
    id: Option<u64>,
}

impl Fewer {
    /// Than so many.
    pub(crate) fn than(cache: &Arc<Shared>, below: u32) -> Fewer {
        Fewer { cache: cache.clone(), below, id: None }
    }

    /// No more than may be.
    pub(crate) fn than_most(cache: &Arc<Shared>) -> Fewer {
        Fewer::than(cache, cache.unsaved.most)
    }
}

impl Future for Fewer {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let Fewer { cache, below, id } = &mut *self;
        let unsaved = &cache.unsaved;
        if unsaved.count() < *below {
            return Poll::Ready(());
        }
        let savers = {
            let waiting = &mut *unsaved.waiting.lock();
            // Whoever makes them fewer looks here afterwards.
            if unsaved.count() < *below {
                return Poll::Ready(());
            }
            let waiter = waiting.waiter(id, context);
            waiting.writers.push((waiter, *below));
            std::mem::take(&mut waiting.savers)
        };
        wake(savers);
        Poll::Pending
    }
}

impl Drop for Fewer {
    fn drop(&mut self) {
        self.cache.unsaved.leave(self.id);
    }
}

/// Ends when it is time to save.
pub struct Many {
    cache: Arc<Shared>,
    id: Option<u64>,
}

impl Many {
    pub(crate) fn of(cache: &Arc<Shared>) -> Many {
        Many { cache: cache.clone(), id: None }
    }
}

impl Future for Many {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let Many { cache, id } = &mut *self;
        let unsaved = &cache.unsaved;
        let waiting = &mut *unsaved.waiting.lock();
        if unsaved.count() >= unsaved.many || !waiting.writers.is_empty() {
            return Poll::Ready(());
        }
        let waiter = waiting.waiter(id, context);
        waiting.savers.push(waiter);
        Poll::Pending
    }
}

impl Drop for Many {
    fn drop(&mut self) {
        self.cache.unsaved.leave(self.id);
    }
}
