//! A lock that is biased towards overwriters. While the bias is on, requests load one word and take no lock. A writer
//! that excludes them turns it off and waits for the requests that found it on.

use crate::sync::quiescence::{Domain, Epoch};
use uringfs_sync::atomic::{AtomicU64, Ordering, fence};

/// Set when every request that found the bias on has ended.
const QUIESCED: u64 = 1;
/// One writer that excludes.
const EXCLUDER: u64 = 2;

/// The bias of one file. When it is off, all writers take a lock.
///
/// The first writer that excludes waits once, for the requests that found the bias on. The bias then stays off until
/// [`Self::restore`], so that the next writer that excludes has nothing to wait for.
#[derive(Debug, Default)]
pub struct WriterBias {
    /// The number of writers that exclude, times [`EXCLUDER`], and [`QUIESCED`]. Zero while the bias is on.
    word: AtomicU64,
}

impl WriterBias {
    /// True when the caller's request needs no lock until its end. The request must be in the epoch before this call.
    #[inline]
    pub fn is_biased(&self) -> bool {
        self.word.load(Ordering::Acquire) == 0
    }

    /// Turns the bias off, at least until [`Self::release`]. When the returned epoch has passed, every request that found
    /// the bias on has ended, and the caller calls [`Self::quiesced`]. `None` when they have all ended already.
    pub fn exclude(&self, domain: &Domain) -> Option<Epoch> {
        if self.word.fetch_add(EXCLUDER, Ordering::SeqCst) & QUIESCED != 0 {
            return None;
        }
        fence(Ordering::SeqCst);
        Some(domain.retire())
    }

    /// Records that the epoch has passed. The caller must still exclude.
    pub fn quiesced(&self) {
        self.word.fetch_or(QUIESCED, Ordering::AcqRel);
    }

    /// Ends one exclusion. If it was the last, and no excluder has called [`Self::quiesced`] since the bias went off,
    /// the bias is on again.
    pub fn release(&self) {
        self.word.fetch_sub(EXCLUDER, Ordering::Release);
    }

    /// Turns the bias on again, unless a writer excludes.
    pub fn restore(&self) {
        let _ = self.word.compare_exchange(QUIESCED, 0, Ordering::AcqRel, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_exclusions_wait_for_quiescence() {
        let (bias, domain) = (WriterBias::default(), Domain::new());
        assert!(bias.exclude(&domain).is_some());
        assert!(bias.exclude(&domain).is_some(), "the first may still be waiting");
        bias.quiesced();
        bias.release();
        assert_eq!(bias.exclude(&domain), None);
        bias.release();
        bias.restore();
        assert!(!bias.is_biased(), "one writer still excludes");
        bias.release();
        assert!(!bias.is_biased());
        assert_eq!(bias.exclude(&domain), None);
        bias.release();
        bias.restore();
        assert!(bias.is_biased());
        assert!(bias.exclude(&domain).is_some());
    }

    #[test]
    fn an_exclusion_released_before_its_epoch_passes_keeps_the_bias() {
        let (bias, domain) = (WriterBias::default(), Domain::new());
        bias.exclude(&domain);
        bias.release();
        assert!(bias.is_biased());
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::sync::quiescence::Tracker;
    use loom::cell::UnsafeCell;
    use loom::sync::Mutex;

    /// The state that writers of a file share.
    struct File {
        bias: WriterBias,
        domain: loom::sync::Arc<Domain>,
        /// Taken by all writers while the bias is off.
        lock: Mutex<()>,
        /// Overwriters access it together, a writer that excludes accesses it alone.
        bytes: UnsafeCell<()>,
    }

    impl File {
        fn new() -> loom::sync::Arc<File> {
            loom::sync::Arc::new(File {
                bias: WriterBias::default(),
                domain: loom::sync::Arc::new(Domain::new()),
                lock: Mutex::new(()),
                bytes: UnsafeCell::new(()),
            })
        }

        /// Turns the bias on when it is off, so that the next one needs no lock.
        fn overwrite(&self, tracker: &mut Tracker<loom::sync::Arc<Domain>>) {
            let epoch_slot = tracker.enter();
            if self.bias.is_biased() {
                self.bytes.with(|_| ());
            } else {
                let _held = self.lock.lock().unwrap();
                self.bytes.with(|_| ());
                self.bias.restore();
            }
            tracker.leave(epoch_slot, 1);
            tracker.publish_ended();
        }

        /// Writes alone, if all earlier requests have ended already. Returns whether they have.
        fn try_write_alone(&self) -> bool {
            let has_passed = match self.bias.exclude(&self.domain) {
                Some(epoch) => self.domain.passed(epoch),
                None => true,
            };
            if has_passed {
                self.bias.quiesced();
                let _held = self.lock.lock().unwrap();
                self.bytes.with_mut(|_| ());
            }
            self.bias.release();
            has_passed
        }
    }

    #[test]
    fn loom_an_exclusive_writer_is_alone() {
        loom::model(|| {
            let file = File::new();
            let theirs = file.clone();
            let mut tracker = Tracker::new(file.domain.clone(), "overwriter".into());
            let overwriter = loom::thread::spawn(move || {
                (0..2).for_each(|_| theirs.overwrite(&mut tracker));
            });
            file.try_write_alone();
            overwriter.join().unwrap();
            assert!(file.try_write_alone(), "no overwriter is left to wait for");
            assert!(file.try_write_alone(), "a second exclusion has none to wait for either");
        });
    }

    #[test]
    fn loom_two_exclusive_writers_take_turns() {
        loom::model(|| {
            let file = File::new();
            let (theirs, others) = (file.clone(), file.clone());
            let mut tracker = Tracker::new(file.domain.clone(), "overwriter".into());
            let overwriter = loom::thread::spawn(move || theirs.overwrite(&mut tracker));
            let other = loom::thread::spawn(move || others.try_write_alone());
            file.try_write_alone();
            overwriter.join().unwrap();
            other.join().unwrap();
            file.bias.restore();
            assert!(file.bias.is_biased());
        });
    }
}
