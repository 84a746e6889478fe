//! [`ExtentCache`]: where the bytes of a file in many pieces lie, for reads that jump about in it. As a
//! processor's translation lookaside buffer for pages: a table in which the offset alone says where to
//! look, of what the map of all extents has answered before.
//!
//! An entry is one line of memory less than a search of the map, a search touches ten. Readers that find
//! an entry write nothing; what comes first stays, so that those who miss hardly ever write either.

use std::sync::OnceLock;

use crossbeam_utils::CachePadded;

use uringfs_file::Window;
use uringfs_sync::Sequence;
use uringfs_sync::atomic::{AtomicU64, Ordering, fence};

use crate::blocks::BLOCK;

/// Entries for each extent, since not all are equally long; and the most there are, 64 KiB.
const ENTRIES_PER_EXTENT: u64 = 2;
const MAX_ENTRIES: u64 = 2048;
/// Of an entry that was never noted: no count of a sequence.
const NO_EPOCH: u64 = u64::MAX;

/// What the map of a file's extents has answered.
pub(crate) struct ExtentCache(CachePadded<Inner>);

struct Inner {
    /// Counts how often something written ceased to lie where it lay. Entries of before say nothing.
    epoch: Sequence,
    /// Made when there is something to note.
    table: OnceLock<Table>,
}

struct Table {
    /// An entry is of so many bytes of the file, as a power of two.
    granule: u32,
    entries: Box<[Entry]>,
}

/// A window, where `epoch` is today's.
#[repr(align(32))]
struct Entry {
    epoch: AtomicU64,
    start: AtomicU64,
    end: AtomicU64,
    /// From offsets to addresses, modulo 2^64.
    shift: AtomicU64,
}

impl ExtentCache {
    pub(crate) fn new() -> ExtentCache {
        let inner = Inner { epoch: Sequence::default(), table: OnceLock::new() };
        ExtentCache(CachePadded::new(inner))
    }

    /// Where the bytes from `offset` up to `end` lie, if that is noted.
    #[inline]
    pub(crate) fn address(&self, offset: u64, end: u64) -> Option<u64> {
        // Only advanced, never changed: no bit closes it.
        self.0.epoch.read(0, |epoch| {
            let entry = self.0.table.get()?.entry(offset);
            let is_current = entry.epoch.load(Ordering::Acquire) == epoch;
            let is_inside = entry.start.load(Ordering::Relaxed) <= offset
                && end <= entry.end.load(Ordering::Relaxed);
            let address = offset.wrapping_add(entry.shift.load(Ordering::Relaxed));
            (is_current && is_inside).then_some(address)
        })
    }

    /// Whether there is room to note what is at `offset`.
    pub(crate) fn has_room(&self, offset: u64) -> bool {
        let epoch = self.0.epoch.count();
        let table = self.0.table.get();
        table.is_none_or(|table| table.entry(offset).epoch.load(Ordering::Relaxed) != epoch)
    }

    /// Notes the window that `offset` is in, of a file of so many extents and bytes. One at a time may, and
    /// not beside [`Self::forget`]: whoever holds the file's lock for changes.
    pub(crate) fn insert(&self, offset: u64, window: Window, extents: u64, size: u64) {
        let table = self.0.table.get_or_init(|| Table::new(extents, size));
        if !self.has_room(offset) {
            return;
        }
        let entry = table.entry(offset);
        // Who reads what is written now sees the epoch that has made the entry old.
        fence(Ordering::Release);
        entry.start.store(window.start, Ordering::Relaxed);
        entry.end.store(window.end, Ordering::Relaxed);
        entry.shift.store(window.shift(), Ordering::Relaxed);
        entry.epoch.store(self.0.epoch.count(), Ordering::Release);
    }

    /// Something that was written does not lie where it lay any more.
    pub(crate) fn invalidate(&self) {
        self.0.epoch.advance();
    }
}

impl Table {
    fn new(extents: u64, size: u64) -> Table {
        let entries = extents.saturating_mul(ENTRIES_PER_EXTENT).min(MAX_ENTRIES);
        let entries = entries.next_power_of_two();
        let granule = (size / entries).max(BLOCK).next_power_of_two().ilog2();
        let empty = || Entry {
            epoch: AtomicU64::new(NO_EPOCH),
            start: AtomicU64::new(0),
            end: AtomicU64::new(0),
            shift: AtomicU64::new(0),
        };
        Table { granule, entries: (0..entries).map(|_| empty()).collect() }
    }

    #[inline]
    fn entry(&self, offset: u64) -> &Entry {
        let index = (offset >> self.granule) as usize;
        &self.entries[index & (self.entries.len() - 1)]
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// A piece of a mebibyte, the last of them first.
    fn piece(number: u64) -> Window {
        Window { start: number * MIB, end: (number + 1) * MIB, address: (1000 - number) * MIB }
    }

    #[test]
    fn what_was_noted_is_found_until_it_is_forgotten() {
        let extent_cache = ExtentCache::new();
        assert_eq!(extent_cache.address(0, 1), None);
        for number in 0..8 {
            assert!(extent_cache.has_room(number * MIB));
            extent_cache.insert(number * MIB, piece(number), 8, 8 * MIB);
        }
        for number in 0..8 {
            let start = number * MIB;
            assert_eq!(extent_cache.address(start, start + MIB / 2), Some((1000 - number) * MIB));
            assert_eq!(
                extent_cache.address(start + 1, start + MIB + 1),
                None,
                "it ends in the next"
            );
        }
        extent_cache.invalidate();
        assert_eq!(extent_cache.address(0, 1), None);
        extent_cache.insert(0, piece(0), 8, 8 * MIB);
        assert_eq!(extent_cache.address(0, 1), Some(1000 * MIB));
        assert_eq!(extent_cache.address(MIB, MIB + 1), None);
    }

    #[test]
    fn of_two_with_one_place_the_first_stays() {
        let extent_cache = ExtentCache::new();
        extent_cache.insert(0, piece(0), 2, 4 * MIB);
        let far = 64 * MIB;
        assert!(!extent_cache.has_room(far));
        extent_cache.insert(far, Window { start: far, end: far + MIB, address: 0 }, 2, 4 * MIB);
        assert_eq!(extent_cache.address(0, 1), Some(1000 * MIB));
        assert_eq!(extent_cache.address(far, far + 1), None);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;

    /// Whoever mixed the words of two windows would find a third address; whoever trusted an entry of
    /// before would find what is gone.
    #[test]
    fn loom_nobody_finds_what_is_gone_or_never_was() {
        loom::model(|| {
            let extent_cache = loom::sync::Arc::new(ExtentCache::new());
            let old = Window { start: 0, end: 8192, address: 100 };
            extent_cache.insert(4096, old, 1, 8192);
            let gone = loom::sync::Arc::new(AtomicU64::new(0));
            let (theirs, told) = (extent_cache.clone(), gone.clone());
            let writer = loom::thread::spawn(move || {
                theirs.invalidate();
                told.store(1, Ordering::Release);
                theirs.insert(4096, Window { start: 4096, end: 16384, address: 5096 }, 1, 8192);
            });
            let is_gone = gone.load(Ordering::Acquire) == 1;
            match extent_cache.address(4096, 4097) {
                None => {}
                Some(4196) => assert!(!is_gone),
                Some(address) => assert_eq!(address, 5096),
            }
            writer.join().unwrap();
            assert_eq!(extent_cache.address(4096, 4097), Some(5096));
        });
    }
}
