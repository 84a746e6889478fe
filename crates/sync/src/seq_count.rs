//! [`Sequence`]: the counter of a sequence lock, like Linux' `seqcount_t`.

use crate::atomic::{AtomicU64, Ordering, fence};

/// The counter of a sequence lock. Readers write nothing. A read that overlaps a write returns `None`, and the caller
/// takes its slow path. One thread at a time may write: the owner's lock ensures it.
///
/// The protected words are atomics, which are loaded and stored with relaxed ordering inside [`Sequence::read`] and
/// [`Sequence::change`]. The highest bit is a flag of the owner, which readers can test in the same load.
#[derive(Debug, Default)]
pub struct Sequence(AtomicU64);

impl Sequence {
    /// The lowest bit of the count: set while a write is in progress.
    pub const CHANGING: u64 = 1;
    /// The owner's flag.
    pub const FLAG: u64 = 1 << 63;

    /// Runs `read`, which gets the count and loads the words. Returns `None` if `read` does, if a bit of
    /// `reject_mask` is set, or if the words changed meanwhile. `reject_mask` must contain [`Self::CHANGING`] unless
    /// the owner only uses [`Self::advance`].
    #[inline(always)]
    pub fn read<T>(&self, reject_mask: u64, read: impl FnOnce(u64) -> Option<T>) -> Option<T> {
        let before = self.0.load(Ordering::Acquire);
        if before & reject_mask != 0 {
            return None;
        }
        let value = read(before)?;
        fence(Ordering::Acquire);
        (self.0.load(Ordering::Relaxed) == before).then_some(value)
    }

    /// Runs `store`, which stores new words. Reads fail until it has returned.
    #[inline]
    pub fn change(&self, store: impl FnOnce()) {
        let before = self.0.load(Ordering::Relaxed);
        self.0.store(before + Self::CHANGING, Ordering::Relaxed);
        fence(Ordering::Release);
        store();
        self.0.store(before + 2 * Self::CHANGING, Ordering::Release);
    }

    /// Fails every read that is in progress, without changing the words.
    #[inline]
    pub fn advance(&self) {
        let before = self.0.load(Ordering::Relaxed);
        self.0.store(before + 2 * Self::CHANGING, Ordering::Release);
    }

    /// The current count: it moves by 2 with each write and invalidation, and contains the flag.
    #[inline]
    pub fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// True if the flag is set.
    #[inline]
    pub fn flag(&self) -> bool {
        self.0.load(Ordering::Relaxed) & Self::FLAG != 0
    }

    /// Sets or clears the flag. One thread at a time, as for [`Self::change`].
    #[inline]
    pub fn set_flag(&self, is_set: bool) {
        let count = self.0.load(Ordering::Relaxed) & !Self::FLAG;
        // Release: a reader that loads this value instead of the one that `change` stored also sees the words of
        // that write.
        self.0.store(count | if is_set { Self::FLAG } else { 0 }, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_read_during_a_write_returns_none() {
        let sequence = Sequence::default();
        let word = AtomicU64::new(1);
        let read = |reject_mask| sequence.read(reject_mask, |_| Some(word.load(Ordering::Relaxed)));
        assert_eq!(read(Sequence::CHANGING), Some(1));
        sequence.change(|| {
            assert_eq!(read(Sequence::CHANGING), None);
            word.store(2, Ordering::Relaxed);
        });
        assert_eq!(read(Sequence::CHANGING), Some(2));
        let interrupted = sequence.read(Sequence::CHANGING, |_| {
            sequence.change(|| {});
            Some(())
        });
        assert_eq!(interrupted, None);
    }

    #[test]
    fn the_flag_fails_only_reads_that_mask_it() {
        let sequence = Sequence::default();
        sequence.set_flag(true);
        sequence.change(|| {});
        assert!(sequence.flag());
        assert_eq!(sequence.read(Sequence::CHANGING | Sequence::FLAG, |_| Some(())), None);
        assert_eq!(sequence.read(Sequence::CHANGING, |_| Some(())), Some(()));
        sequence.set_flag(false);
        assert_eq!(sequence.read(Sequence::CHANGING | Sequence::FLAG, |_| Some(())), Some(()));
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::Arc;

    use super::*;

    #[test]
    fn loom_a_read_never_mixes_two_writes() {
        loom::model(|| {
            let shared = Arc::new((Sequence::default(), AtomicU64::new(1), AtomicU64::new(1)));
            let writer_shared = shared.clone();
            let writer = loom::thread::spawn(move || {
                let (sequence, one, other) = &*writer_shared;
                sequence.change(|| {
                    one.store(2, Ordering::Relaxed);
                    other.store(2, Ordering::Relaxed);
                });
            });
            let (sequence, one, other) = &*shared;
            let read = sequence.read(Sequence::CHANGING, |_| {
                Some((one.load(Ordering::Relaxed), other.load(Ordering::Relaxed)))
            });
            assert!(matches!(read, None | Some((1, 1) | (2, 2))), "{read:?}");
            writer.join().unwrap();
        });
    }
}
