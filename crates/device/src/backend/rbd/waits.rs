//! For how long requests have been waiting for the cluster.

use std::mem;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// When the first device was opened.
static BASE: LazyLock<Instant> = LazyLock::new(Instant::now);

/// The requests of a queue.
pub(super) struct Waits {
    /// When each has begun, in nanoseconds since [`BASE`], by its number; 0 for a number that is free.
    begun: Vec<u64>,
    free: Vec<usize>,
    /// When the oldest of them has begun; 0 if there is none. Only this queue writes it.
    oldest: Arc<AtomicU64>,
}

impl Waits {
    /// Notes a request that begins. Returns its number.
    pub(super) fn begin(&mut self) -> usize {
        let now = now();
        if self.free.len() == self.begun.len() {
            self.oldest.store(now, Ordering::Relaxed);
        }
        match self.free.pop() {
            Some(number) => {
                self.begun[number] = now;
                number
            }
            None => {
                self.begun.push(now);
                self.begun.len() - 1
            }
        }
    }

    /// Notes that the request of this number has ended.
    pub(super) fn end(&mut self, number: usize) {
        let begun = mem::take(&mut self.begun[number]);
        self.free.push(number);
        if begun == self.oldest.load(Ordering::Relaxed) {
            let left = self.begun.iter().copied().filter(|begun| *begun > 0);
            self.oldest.store(left.min().unwrap_or(0), Ordering::Relaxed);
        }
    }
}

/// The queues of a device.
#[derive(Default)]
pub(super) struct AllWaits(Mutex<Vec<Weak<AtomicU64>>>);

impl AllWaits {
    /// Those of a new queue.
    pub(super) fn of_queue(&self) -> Waits {
        let oldest = Arc::default();
        let mut all = self.0.lock();
        all.retain(|queue| queue.strong_count() > 0);
        all.push(Arc::downgrade(&oldest));
        Waits { begun: Vec::new(), free: Vec::new(), oldest }
    }

    /// For how long the oldest request has been waiting.
    pub(super) fn oldest(&self) -> Option<Duration> {
        let all = self.0.lock();
        let queues = all.iter().filter_map(Weak::upgrade);
        let begun = queues.map(|queue| queue.load(Ordering::Relaxed)).filter(|begun| *begun > 0);
        begun.min().map(|begun| Duration::from_nanos(now().saturating_sub(begun)))
    }
}

/// Nanoseconds since [`BASE`], never 0.
fn now() -> u64 {
    BASE.elapsed().as_nanos() as u64 + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_request_is_the_first_one_that_has_not_ended() {
        let all = AllWaits::default();
        let (mut one, mut other) = (all.of_queue(), all.of_queue());
        assert_eq!(all.oldest(), None);
        let first = one.begin();
        let second = one.begin();
        let third = other.begin();
        let begun = |waits: &Waits| waits.oldest.load(Ordering::Relaxed);
        let of_first = begun(&one);
        one.end(second);
        assert_eq!(begun(&one), of_first);
        let fourth = one.begin();
        one.end(first);
        assert!(begun(&one) > of_first && begun(&other) < begun(&one));
        one.end(fourth);
        other.end(third);
        assert_eq!(all.oldest(), None);
        // Behind one that does not end, numbers are used again.
        one.begin();
        assert!((0..1000).all(|_| {
            let number = one.begin();
            one.end(number);
            number < 3
        }));
        assert!(all.oldest().is_some());
        drop(one);
        assert_eq!(all.oldest(), None);
    }
}
