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
    /// Those who want fewer than so many.
    writers: Vec<(u32, Waker)>,
    savers: Vec<Waker>,
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
            savers.into_iter().for_each(Waker::wake);
        }
    }

    /// One less.
    pub(crate) fn remove(&self) {
        let left = self.count.fetch_sub(1, Ordering::AcqRel) - 1;
        let fewer = |(below, _): &mut (u32, Waker)| left < *below;
        let writers: Vec<_> = self.waiting.lock().writers.extract_if(.., fewer).collect();
        writers.into_iter().for_each(|(_, waker)| waker.wake());
    }
}

/// Ends when fewer folios than so many are unsaved.
pub struct Fewer {
    pub(crate) cache: Arc<Shared>,
    pub(crate) below: u32,
}

impl Fewer {
    /// No more than may be.
    pub(crate) fn than_most(cache: &Arc<Shared>) -> Fewer {
        Fewer { cache: cache.clone(), below: cache.unsaved.most }
    }
}

impl Future for Fewer {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let unsaved = &self.cache.unsaved;
        if unsaved.count() < self.below {
            return Poll::Ready(());
        }
        let savers = {
            let mut waiting = unsaved.waiting.lock();
            // Whoever makes them fewer looks here afterwards.
            if unsaved.count() < self.below {
                return Poll::Ready(());
            }
            waiting.writers.push((self.below, context.waker().clone()));
            std::mem::take(&mut waiting.savers)
        };
        savers.into_iter().for_each(Waker::wake);
        Poll::Pending
    }
}

/// Ends when it is time to save.
pub struct Many {
    pub(crate) cache: Arc<Shared>,
}

impl Future for Many {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let unsaved = &self.cache.unsaved;
        let mut waiting = unsaved.waiting.lock();
        if unsaved.count() >= unsaved.many || !waiting.writers.is_empty() {
            return Poll::Ready(());
        }
        // Asked again and again by the same one, it is told once.
        if !waiting.savers.iter().any(|waker| waker.will_wake(context.waker())) {
            waiting.savers.push(context.waker().clone());
        }
        Poll::Pending
    }
}
