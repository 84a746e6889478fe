//! Who may go ahead without a lock, and until when. While a mode is shared, requests look at one word and
//! take none; whoever ends it waits for those that found it so.

use crate::sync::quiescence::{Domain, Epoch};
use uringfs_sync::atomic::{AtomicU64, Ordering, fence};

/// Everybody who found it shared has ended.
const QUIESCED: u64 = 1;
/// One who excludes.
const EXCLUDER: u64 = 2;

/// Shared, or not: then everybody takes a lock.
///
/// Whoever excludes waits once, for those who found it shared. It stays as it is afterwards, so that the
/// next one who excludes has nobody to wait for, until [`Self::share`].
#[derive(Debug, Default)]
pub struct Mode {
    /// How many exclude, and [`QUIESCED`]. Shared while it is zero.
    word: AtomicU64,
}

impl Mode {
    /// True when no lock is needed, until the caller's request has ended. It has been counted in before it asks.
    #[inline]
    pub fn is_shared(&self) -> bool {
        self.word.load(Ordering::Acquire) == 0
    }

    /// Ends the shared bias, at least until [`Self::include`]. Who did not see it has ended when the epoch has
    /// passed: then comes [`Self::settle`]. Without one nobody is left.
    pub fn exclude(&self, domain: &Domain) -> Option<Epoch> {
        if self.word.fetch_add(EXCLUDER, Ordering::SeqCst) & QUIESCED != 0 {
            return None;
        }
        fence(Ordering::SeqCst);
        Some(domain.retire())
    }

    /// The epoch has passed. The caller excludes until after.
    pub fn settle(&self) {
        self.word.fetch_or(QUIESCED, Ordering::AcqRel);
    }

    /// One excludes no more. The mode is shared again now only if nobody's epoch has passed meanwhile.
    pub fn include(&self) {
        self.word.fetch_sub(EXCLUDER, Ordering::Release);
    }

    /// Shared again, unless somebody excludes.
    pub fn share(&self) {
        let _ = self.word.compare_exchange(QUIESCED, 0, Ordering::AcqRel, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_first_who_excludes_waits_and_the_others_have_nobody_to_wait_for() {
        let (bias, domain) = (Mode::default(), Domain::new());
        assert!(bias.exclude(&domain).is_some());
        assert!(bias.exclude(&domain).is_some(), "the first may be waiting yet");
        bias.settle();
        bias.include();
        assert_eq!(bias.exclude(&domain), None);
        bias.include();
        bias.share();
        assert!(!bias.is_shared(), "one still excludes");
        bias.include();
        assert!(!bias.is_shared());
        assert_eq!(bias.exclude(&domain), None);
        bias.include();
        bias.share();
        assert!(bias.is_shared());
        assert!(bias.exclude(&domain).is_some());
    }

    #[test]
    fn who_gives_up_before_its_epoch_has_passed_leaves_it_shared() {
        let (bias, domain) = (Mode::default(), Domain::new());
        bias.exclude(&domain);
        bias.include();
        assert!(bias.is_shared());
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::sync::quiescence::Tracker;
    use loom::cell::UnsafeCell;
    use loom::sync::Mutex;

    /// What writers of a file share.
    struct File {
        bias: Mode,
        domain: loom::sync::Arc<Domain>,
        /// RunningTask by all while the mode is not shared.
        lock: Mutex<()>,
        /// Overwriters are there together, whoever excludes them is there alone.
        bytes: UnsafeCell<()>,
    }

    impl File {
        fn new() -> loom::sync::Arc<File> {
            loom::sync::Arc::new(File {
                bias: Mode::default(),
                domain: loom::sync::Arc::new(Domain::new()),
                lock: Mutex::new(()),
                bytes: UnsafeCell::new(()),
            })
        }

        /// Shares what is not shared: the next one needs no lock.
        fn overwrite(&self, tracker: &mut Tracker<loom::sync::Arc<Domain>>) {
            let epoch_slot = tracker.enter();
            if self.bias.is_shared() {
                self.bytes.with(|_| ());
            } else {
                let _held = self.lock.lock().unwrap();
                self.bytes.with(|_| ());
                self.bias.share();
            }
            tracker.leave(epoch_slot);
            tracker.publish_ended();
        }

        /// Answers whether those who were before it had ended at once.
        fn cut(&self) -> bool {
            let has_passed = match self.bias.exclude(&self.domain) {
                Some(epoch) => self.domain.passed(epoch),
                None => true,
            };
            if has_passed {
                self.bias.settle();
                let _held = self.lock.lock().unwrap();
                self.bytes.with_mut(|_| ());
            }
            self.bias.include();
            has_passed
        }
    }

    #[test]
    fn loom_nobody_overwrites_beside_who_excludes() {
        loom::model(|| {
            let file = File::new();
            let theirs = file.clone();
            let mut tracker = Tracker::new(file.domain.clone(), "overwriter".into());
            let overwriter = loom::thread::spawn(move || {
                (0..2).for_each(|_| theirs.overwrite(&mut tracker));
            });
            file.cut();
            overwriter.join().unwrap();
            assert!(file.cut(), "nobody is left to wait for");
            assert!(file.cut(), "nor now");
        });
    }

    #[test]
    fn loom_of_two_who_exclude_one_comes_after_the_other() {
        loom::model(|| {
            let file = File::new();
            let (theirs, others) = (file.clone(), file.clone());
            let mut tracker = Tracker::new(file.domain.clone(), "overwriter".into());
            let overwriter = loom::thread::spawn(move || theirs.overwrite(&mut tracker));
            let other = loom::thread::spawn(move || others.cut());
            file.cut();
            overwriter.join().unwrap();
            other.join().unwrap();
            file.bias.share();
            assert!(file.bias.is_shared());
        });
    }
}
