//! [`SeqCount`]: the counter of a sequence lock, like Linux' `seqcount_t`.

use crate::atomic::{AtomicU64, Ordering, fence};

/// The counter of a sequence lock. Readers write nothing. A read that overlaps a write returns `None`, and the caller
/// takes its slow path. One thread at a time may write: the owner's lock ensures it.
///
/// The protected words are atomics, which are loaded and stored with relaxed ordering inside [`SeqCount::read`] and
/// [`SeqCount::write`]. The highest bit is a flag of the owner, which readers can test in the same load.
#[derive(Debug, Default)]
pub struct SeqCount(AtomicU64);

impl SeqCount {
    /// The lowest bit of the count: set while a write is in progress.
    pub const WRITING: u64 = 1;
    /// The owner's flag.
    pub const FLAG: u64 = 1 << 63;

    /// Runs `read`, which gets the count and loads the words. Returns `None` if `read` does, if a bit of
    /// `reject_mask` is set, or if the words changed meanwhile. `reject_mask` must contain [`Self::WRITING`] unless
    /// the owner only uses [`Self::invalidate`].
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
    pub fn write(&self, store: impl FnOnce()) {
        let before = self.0.load(Ordering::Relaxed);
        self.0.store(before + Self::WRITING, Ordering::Relaxed);
        fence(Ordering::Release);
        store();
        self.0.store(before + 2 * Self::WRITING, Ordering::Release);
    }

    /// Fails every read that is in progress, without changing the words.
    #[inline]
    pub fn invalidate(&self) {
        let before = self.0.load(Ordering::Relaxed);
        self.0.store(before + 2 * Self::WRITING, Ordering::Release);
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

    /// Sets or clears the flag. One thread at a time, as for [`Self::write`].
    #[inline]
    pub fn set_flag(&self, is_set: bool) {
        let count = self.0.load(Ordering::Relaxed) & !Self::FLAG;
        // Release: a reader that loads this value instead of the one that `write` stored also sees the words of
        // that write.
        self.0.store(count | if is_set { Self::FLAG } else { 0 }, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_read_during_a_write_returns_none() {
        let sequence = SeqCount::default();
        let word = AtomicU64::new(1);
        let read = |reject_mask| sequence.read(reject_mask, |_| Some(word.load(Ordering::Relaxed)));
        assert_eq!(read(SeqCount::WRITING), Some(1));
        sequence.write(|| {
            assert_eq!(read(SeqCount::WRITING), None);
            word.store(2, Ordering::Relaxed);
        });
        assert_eq!(read(SeqCount::WRITING), Some(2));
        let interrupted = sequence.read(SeqCount::WRITING, |_| {
            sequence.write(|| {});
            Some(())
        });
        assert_eq!(interrupted, None);
    }

    #[test]
    fn the_flag_fails_only_reads_that_mask_it() {
        let sequence = SeqCount::default();
        sequence.set_flag(true);
        sequence.write(|| {});
        assert!(sequence.flag());
        assert_eq!(sequence.read(SeqCount::WRITING | SeqCount::FLAG, |_| Some(())), None);
        assert_eq!(sequence.read(SeqCount::WRITING, |_| Some(())), Some(()));
        sequence.set_flag(false);
        assert_eq!(sequence.read(SeqCount::WRITING | SeqCount::FLAG, |_| Some(())), Some(()));
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::Arc;

    use super::*;

    #[test]
    fn loom_a_read_never_mixes_two_writes() {
        loom::model(|| {
            let shared = Arc::new((SeqCount::default(), AtomicU64::new(1), AtomicU64::new(1)));
            let writer_shared = shared.clone();
            let writer = loom::thread::spawn(move || {
                let (sequence, one, other) = &*writer_shared;
                sequence.write(|| {
                    one.store(2, Ordering::Relaxed);
                    other.store(2, Ordering::Relaxed);
                });
            });
            let (sequence, one, other) = &*shared;
            let read = sequence.read(SeqCount::WRITING, |_| {
                Some((one.load(Ordering::Relaxed), other.load(Ordering::Relaxed)))
            });
            assert!(matches!(read, None | Some((1, 1) | (2, 2))), "{read:?}");
            writer.join().unwrap();
        });
    }
}
