//! Per-file cache state, and what keeps buffered and direct I/O coherent.
//!
//! From its first use through a cache on, a file's writers take the locks of their ranges: so each knows when to
//! take what it has overwritten out of the cache. That is for good, as long as the file is open.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use uringfs_cache::{Cache, FOLIO, Pages};
use uringfs_device::DeviceIndex;

use crate::map::mapping::Generation;

/// The cache counts by devices; for loom, which follows every count, by few of them.
const _: () = assert!(cfg!(loom) || uringfs_device::MAX_DEVICES <= uringfs_cache::MAX_DEVICES);

/// What a fill is taken to take until one has ended, and at most.
const MAX_FILL_TIME: Duration = Duration::from_millis(10);
/// To wait is cheap, and another thread may not have a processor just now.
const MIN_FILL_TIMEOUT: Duration = Duration::from_millis(1);

/// What the openings of a file share of the cache.
#[derive(Debug)]
pub(crate) struct FileCache {
    pages: Pages,
    /// Writers take the locks of their ranges.
    has_range_locks: AtomicBool,
    /// That of the file when its folios were taken in.
    generation: AtomicU64,
    /// What a fill takes, in nanoseconds: those of late weigh most.
    fill_ns: AtomicU64,
}

impl FileCache {
    pub(crate) fn new(cache: &Cache, device: DeviceIndex) -> FileCache {
        FileCache {
            pages: cache.pages(device.get() as u16),
            has_range_locks: AtomicBool::new(false),
            generation: AtomicU64::new(0),
            fill_ns: AtomicU64::new(MAX_FILL_TIME.as_nanos() as u64),
        }
    }

    /// A fill has taken so long.
    pub(crate) fn note_fill(&self, time: Duration) {
        let time = time.min(MAX_FILL_TIME).as_nanos() as u64;
        let before = self.fill_ns.load(Ordering::Relaxed);
        self.fill_ns.store((before * 7 + time) / 8, Ordering::Relaxed);
    }

    /// How long a reader waits for a fill of another reactor, which sees that it is done only when it turns.
    pub(crate) fn fill_timeout(&self) -> Duration {
        Duration::from_nanos(4 * self.fill_ns.load(Ordering::Relaxed)).max(MIN_FILL_TIMEOUT)
    }

    #[inline(always)]
    pub(crate) fn pages(&self) -> &Pages {
        &self.pages
    }

    /// Whether nobody has emptied the file since its folios were taken in.
    #[inline(always)]
    pub(crate) fn is_current(&self, generation: Generation) -> bool {
        self.generation.load(Ordering::Acquire) == generation
    }

    /// Whether writers take the locks of their ranges.
    #[inline]
    pub(crate) fn has_range_locks(&self) -> bool {
        self.has_range_locks.load(Ordering::Acquire)
    }

    /// Writers take the locks of their ranges from now on.
    pub(crate) fn set_range_locks(&self) {
        self.has_range_locks.store(true, Ordering::Release);
    }

    /// Its folios are of this generation of the file, or of a later one.
    pub(crate) fn advance(&self, generation: Generation) {
        self.generation.fetch_max(generation, Ordering::AcqRel);
    }

    /// The generation of its folios.
    pub(crate) fn generation(&self) -> Generation {
        self.generation.load(Ordering::Acquire)
    }

    /// A range of bytes has been read by somebody who does not want it to stay. Of a folio that goes on behind it, and
    /// behind which the file goes on, the rest may be read next.
    pub(crate) fn drop_behind(&self, range: Range<u64>, size: u64) {
        let end = if range.end >= size { range.end.div_ceil(FOLIO) } else { range.end / FOLIO };
        self.pages.forget_passing(range.start / FOLIO..end);
    }

    /// Takes out what the cache has of a range of bytes.
    pub(crate) fn invalidate(&self, range: Range<u64>) {
        if range.start < range.end {
            self.pages.invalidate(range.start / FOLIO..range.end.div_ceil(FOLIO));
        }
    }
}

/// The folios around a range of bytes.
pub(crate) fn folios_around(range: &Range<u64>) -> Range<u64> {
    range.start / FOLIO..range.end.div_ceil(FOLIO)
}

/// The bytes of a range of folios.
pub(crate) fn bytes_of(folios: &Range<u64>) -> Range<u64> {
    folios.start * FOLIO..folios.end.saturating_mul(FOLIO)
}
