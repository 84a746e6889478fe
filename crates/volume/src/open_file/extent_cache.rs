//! [`ExtentCache`]: extents that were looked up before, for random reads of a file with many extents. Like a
//! processor's TLB it is a table indexed by offset, in front of the map of all extents.
//!
//! A hit touches two cache lines: its entry's, and one that all entries share. A search of the map touches
//! about ten. A reader with a hit writes nothing. An occupied entry is not replaced, so even
//! a reader that misses seldom writes.

use std::sync::OnceLock;

use crossbeam_utils::CachePadded;

use uringfs_file::ExtentWindow;
use uringfs_sync::SeqCount;
use uringfs_sync::atomic::{AtomicU64, Ordering, fence};

use crate::blocks::BLOCK;

/// Entries per extent, because extents differ in length; and the most entries, 64 KiB.
const ENTRIES_PER_EXTENT: u64 = 2;
const MAX_ENTRIES: u64 = 2048;
/// The epoch of an empty entry: no sequence has this count.
const NO_EPOCH: u64 = u64::MAX;

/// A table of extents by file offset.
pub(crate) struct ExtentCache(CachePadded<Inner>);

struct Inner {
    /// Advances when written blocks are unmapped. Entries of an earlier epoch are invalid.
    epoch: SeqCount,
    /// Allocated for the first entry.
    table: OnceLock<Table>,
}

struct Table {
    /// Bytes of the file that map to one entry, as a power of two.
    granule: u32,
    entries: Box<[Entry]>,
}

/// An extent, valid if `epoch` is the current one.
#[repr(align(32))]
struct Entry {
    epoch: AtomicU64,
    start: AtomicU64,
    end: AtomicU64,
    /// The number that, added to a file offset, gives the device address, modulo 2^64.
    shift: AtomicU64,
}

impl ExtentCache {
    pub(crate) fn new() -> ExtentCache {
        let inner = Inner { epoch: SeqCount::default(), table: OnceLock::new() };
        ExtentCache(CachePadded::new(inner))
    }

    /// The address of the bytes from `offset` to `end`, if an entry covers them.
    #[inline]
    pub(crate) fn address(&self, offset: u64, end: u64) -> Option<u64> {
        // The sequence is only advanced, never closed: no bit to wait for.
        self.0.epoch.read(0, |epoch| {
            let entry = self.0.table.get()?.entry(offset);
            let is_current = entry.epoch.load(Ordering::Acquire) == epoch;
            let is_inside = entry.start.load(Ordering::Relaxed) <= offset
                && end <= entry.end.load(Ordering::Relaxed);
            let address = offset.wrapping_add(entry.shift.load(Ordering::Relaxed));
            (is_current && is_inside).then_some(address)
        })
    }

    /// True if the entry for `offset` is empty or invalid.
    pub(crate) fn has_room(&self, offset: u64) -> bool {
        let epoch = self.0.epoch.count();
        let table = self.0.table.get();
        table.is_none_or(|table| table.entry(offset).epoch.load(Ordering::Relaxed) != epoch)
    }

    /// Caches the extent that holds `offset`, of a file with this many extents and bytes. Only the holder of the
    /// file's lock for changes may call this: not two threads at once, and not during [`Self::invalidate`].
    pub(crate) fn insert(&self, offset: u64, window: ExtentWindow, extents: u64, size: u64) {
        let table = self.0.table.get_or_init(|| Table::new(extents, size));
        if !self.has_room(offset) {
            return;
        }
        let entry = table.entry(offset);
        // A reader that sees the stores below also sees the epoch that made the old entry invalid.
        fence(Ordering::Release);
        entry.start.store(window.start, Ordering::Relaxed);
        entry.end.store(window.end, Ordering::Relaxed);
        entry.shift.store(window.shift(), Ordering::Relaxed);
        entry.epoch.store(self.0.epoch.count(), Ordering::Release);
    }

    /// Invalidates all entries: written blocks were unmapped.
    pub(crate) fn invalidate(&self) {
        self.0.epoch.invalidate();
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

    /// An extent of one mebibyte. The extents lie in reverse order.
    fn piece(number: u64) -> ExtentWindow {
        ExtentWindow {
            start: number * MIB,
            end: (number + 1) * MIB,
            address: (1000 - number) * MIB,
        }
    }

    #[test]
    fn an_entry_is_found_until_it_is_invalidated() {
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
    fn an_occupied_entry_is_not_replaced() {
        let extent_cache = ExtentCache::new();
        extent_cache.insert(0, piece(0), 2, 4 * MIB);
        let far = 64 * MIB;
        assert!(!extent_cache.has_room(far));
        extent_cache.insert(
            far,
            ExtentWindow { start: far, end: far + MIB, address: 0 },
            2,
            4 * MIB,
        );
        assert_eq!(extent_cache.address(0, 1), Some(1000 * MIB));
        assert_eq!(extent_cache.address(far, far + 1), None);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;

    /// A mix of two entries would give a third address. An entry from before the invalidation would give an address
    /// that is gone.
    #[test]
    fn loom_no_reader_gets_a_stale_or_mixed_entry() {
        loom::model(|| {
            let extent_cache = loom::sync::Arc::new(ExtentCache::new());
            let old = ExtentWindow { start: 0, end: 8192, address: 100 };
            extent_cache.insert(4096, old, 1, 8192);
            let gone = loom::sync::Arc::new(AtomicU64::new(0));
            let (writer_cache, writer_gone) = (extent_cache.clone(), gone.clone());
            let writer = loom::thread::spawn(move || {
                writer_cache.invalidate();
                writer_gone.store(1, Ordering::Release);
                writer_cache.insert(
                    4096,
                    ExtentWindow { start: 4096, end: 16384, address: 5096 },
                    1,
                    8192,
                );
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
