//! Who may go ahead without a lock, and until when. While a mode is shared, requests look at one word and
//! take none; whoever ends it waits for those that found it so.

use crate::quiescence::{Domain, Epoch};
use crate::sync::{AtomicU64, Ordering, fence};

/// Shared while nobody excludes.
#[derive(Debug, Default)]
pub struct Mode {
    excluders: AtomicU64,
}

impl Mode {
    /// True when no lock is needed, until the caller's request has ended. It has been counted in before it asks.
    #[inline]
    pub fn is_shared(&self) -> bool {
        self.excluders.load(Ordering::Acquire) == 0
    }

    /// Ends the shared mode until [`Self::include`]. Who did not see it has ended when the epoch has passed.
    pub fn exclude(&self, domain: &Domain) -> Epoch {
        self.excluders.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        domain.retire()
    }

    /// Lets them in again; shared once all have who excluded them.
    pub fn include(&self) {
        self.excluders.fetch_sub(1, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn it_is_shared_again_when_the_last_excluder_is_done() {
        let (mode, domain) = (Mode::default(), Domain::new());
        mode.exclude(&domain);
        mode.exclude(&domain);
        mode.include();
        assert!(!mode.is_shared());
        mode.include();
        assert!(mode.is_shared());
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::quiescence::Tracker;
    use loom::cell::UnsafeCell;
    use loom::sync::Mutex;

    /// What writers of a file share.
    struct File {
        mode: Mode,
        domain: loom::sync::Arc<Domain>,
        /// Taken by all while the mode is not shared.
        lock: Mutex<()>,
        /// Overwriters are there together, whoever excludes them is there alone.
        bytes: UnsafeCell<()>,
    }

    impl File {
        fn new() -> loom::sync::Arc<File> {
            loom::sync::Arc::new(File {
                mode: Mode::default(),
                domain: loom::sync::Arc::new(Domain::new()),
                lock: Mutex::new(()),
                bytes: UnsafeCell::new(()),
            })
        }

        fn overwrite(&self, tracker: &mut Tracker<loom::sync::Arc<Domain>>) {
            let mark = tracker.begin();
            if self.mode.is_shared() {
                self.bytes.with(|_| ());
            } else {
                let _held = self.lock.lock().unwrap();
                self.bytes.with(|_| ());
            }
            tracker.end(mark);
            tracker.settle();
        }

        /// Answers whether those who were before it had ended at once.
        fn cut(&self) -> bool {
            let has_passed = self.domain.passed(self.mode.exclude(&self.domain));
            if has_passed {
                let _held = self.lock.lock().unwrap();
                self.bytes.with_mut(|_| ());
            }
            self.mode.include();
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
            assert!(file.mode.is_shared() && file.cut(), "nobody is left to wait for");
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
            assert!(file.mode.is_shared());
        });
    }
}
