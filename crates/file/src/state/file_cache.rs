//! Per-file cache state, and what keeps buffered and direct I/O coherent.
//!
//! From the first buffered use of a file, all its writers take range locks. So each writer knows when to remove
//! what it has overwritten from the cache. This holds as long as the file is open.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use uringfs_cache::{Cache, FOLIO, FileFolios};
use uringfs_device::DeviceIndex;

use crate::map::mapping::TruncateGeneration;

/// The cache has a dirty limit for each device. Under loom, which follows every counter, only for a few.
const _: () = assert!(cfg!(loom) || uringfs_device::MAX_DEVICES <= uringfs_cache::MAX_DEVICES);

/// Assumed duration of a fill until the first has ended, and upper bound of the average.
const MAX_FILL_TIME: Duration = Duration::from_millis(10);
/// One fill in this many is timed.
const TIMED_FILLS: u64 = 8;
/// Lower bound of [`FileCache::fill_timeout`]: waiting is cheap, and the other thread may not be scheduled at the
/// moment.
const MIN_FILL_TIMEOUT: Duration = Duration::from_millis(1);

/// State of a file in the cache, shared by its handles.
#[derive(Debug)]
pub(crate) struct FileCache {
    folios: FileFolios,
    /// All writers take range locks.
    has_range_locks: AtomicBool,
    /// The file's truncate generation when its folios were added.
    generation: AtomicU64,
    /// Fills begun, roughly: see [`Self::begin_timing`].
    fills: AtomicU64,
    /// Duration of a fill in nanoseconds, a moving average.
    fill_ns: AtomicU64,
}

impl FileCache {
    pub(crate) fn new(cache: &Cache, device: DeviceIndex) -> FileCache {
        FileCache {
            folios: cache.file_folios(device.get() as u16),
            has_range_locks: AtomicBool::new(false),
            generation: AtomicU64::new(0),
            fills: AtomicU64::new(0),
            fill_ns: AtomicU64::new(MAX_FILL_TIME.as_nanos() as u64),
        }
    }

    /// The begin of a fill, if it is one of those that are timed. For a small fill two readings of the clock are a
    /// noticeable cost.
    pub(crate) fn begin_timing(&self, now: impl Fn() -> Instant) -> Option<Instant> {
        // Not one addition: it is no harm if two threads count as one.
        let fills = self.fills.load(Ordering::Relaxed);
        self.fills.store(fills.wrapping_add(1), Ordering::Relaxed);
        fills.is_multiple_of(TIMED_FILLS).then(now)
    }

    /// Adds the duration of a fill to the average, if it is timed.
    pub(crate) fn end_timing(&self, begun: Option<Instant>, now: impl Fn() -> Instant) {
        let Some(begun) = begun else { return };
        let time = (now() - begun).min(MAX_FILL_TIME).as_nanos() as u64;
        let before = self.fill_ns.load(Ordering::Relaxed);
        self.fill_ns.store((before * 7 + time) / 8, Ordering::Relaxed);
    }

    /// Longest wait of a reader for a fill of another reactor, which notices the completion only when it turns.
    pub(crate) fn fill_timeout(&self) -> Duration {
        Duration::from_nanos(4 * self.fill_ns.load(Ordering::Relaxed)).max(MIN_FILL_TIMEOUT)
    }

    #[inline(always)]
    pub(crate) fn file_folios(&self) -> &FileFolios {
        &self.folios
    }

    /// True if the cached folios are of this generation.
    #[inline(always)]
    pub(crate) fn is_current(&self, generation: TruncateGeneration) -> bool {
        self.generation.load(Ordering::Acquire) == generation
    }

    /// True if all writers take range locks.
    #[inline]
    pub(crate) fn has_range_locks(&self) -> bool {
        self.has_range_locks.load(Ordering::Acquire)
    }

    /// From now on all writers take range locks.
    pub(crate) fn set_range_locks(&self) {
        self.has_range_locks.store(true, Ordering::Release);
    }

    /// Raises the generation; no effect if it is later already.
    pub(crate) fn advance(&self, generation: TruncateGeneration) {
        self.generation.fetch_max(generation, Ordering::AcqRel);
    }

    /// The generation of the cached folios.
    pub(crate) fn generation(&self) -> TruncateGeneration {
        self.generation.load(Ordering::Acquire)
    }

    /// Removes the dropbehind folios of a range that a handle has read. The last folio stays if the file continues
    /// in it: the rest may be read next.
    pub(crate) fn drop_behind(&self, range: Range<u64>, size: u64) {
        let end = if range.end >= size { range.end.div_ceil(FOLIO) } else { range.end / FOLIO };
        self.folios.drop_behind(range.start / FOLIO..end);
    }

    /// Removes the folios that overlap a range of bytes.
    pub(crate) fn invalidate(&self, range: Range<u64>) {
        if range.start < range.end {
            self.folios.invalidate(range.start / FOLIO..range.end.div_ceil(FOLIO));
        }
    }
}

/// The folios that overlap a range of bytes.
pub(crate) fn folios_around(range: &Range<u64>) -> Range<u64> {
    range.start / FOLIO..range.end.div_ceil(FOLIO)
}

/// The bytes of a range of folios.
pub(crate) fn bytes_of(folios: &Range<u64>) -> Range<u64> {
    folios.start * FOLIO..folios.end.saturating_mul(FOLIO)
}
