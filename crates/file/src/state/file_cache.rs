//! Per-file cache state, and what keeps buffered and direct I/O coherent.
//!
//! From the first buffered use of a file, all its writers take range locks. So each writer knows when to remove
//! what it has overwritten from the cache. This holds as long as the file is open.
//!
//! A folio has zeros beyond the end of the file, and one that is being filled may have stale bytes there. When a direct
//! write or a change of the size extends the file, a reader must not find the new size and such a folio. So readers take
//! the size from [`FileCache::settled_size`], which waits while [`FileCache::grow`] publishes the size and removes the
//! folios.

use std::ops::Range;
use std::time::{Duration, Instant};

use uringfs_cache::{Cache, FOLIO, FileFolios};
use uringfs_device::DeviceIndex;
use uringfs_sync::Mutex;
use uringfs_sync::atomic::{AtomicBool, AtomicU64, Ordering};

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
    /// The file is being extended, past the cache, under the lock.
    is_growing: AtomicBool,
    growing: Mutex<()>,
}

impl FileCache {
    pub(crate) fn new(cache: &Cache, device: DeviceIndex) -> FileCache {
        FileCache {
            folios: cache.file_folios(device.get() as u16),
            has_range_locks: AtomicBool::new(false),
            generation: AtomicU64::new(0),
            fills: AtomicU64::new(0),
            fill_ns: AtomicU64::new(MAX_FILL_TIME.as_nanos() as u64),
            is_growing: AtomicBool::new(false),
            growing: Mutex::new(()),
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

    /// Publishes a larger size of the file, and removes the folios of a range that has changed.
    pub(crate) fn grow<T>(&self, changed: Range<u64>, publish: impl FnOnce() -> T) -> T {
        let _growing = self.growing.lock();
        self.is_growing.store(true, Ordering::Relaxed);
        // Also after a panic.
        let _grown = Grown(&self.is_growing);
        // Releases the store above.
        let published = publish();
        self.invalidate(changed);
        published
    }

    /// The file's size, which `size` loads with acquire ordering. A folio that is looked up afterwards has the bytes up to
    /// it, or is being filled.
    #[inline(always)]
    pub(crate) fn settled_size(&self, size: impl Fn() -> u64) -> u64 {
        loop {
            let size = size();
            if !self.is_growing.load(Ordering::Acquire) {
                return size;
            }
            self.wait_until_grown();
        }
    }

    #[cold]
    #[inline(never)]
    fn wait_until_grown(&self) {
        drop(self.growing.lock());
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

/// The end of [`FileCache::grow`].
struct Grown<'c>(&'c AtomicBool);

impl Drop for Grown<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
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

#[cfg(all(test, loom))]
mod loom_tests {
    use std::sync::Arc;

    use loom::thread;
    use uringfs_cache::Lookup;

    use super::*;

    fn device() -> DeviceIndex {
        let device = uringfs_device::backend::null::Null::new(1 << 20);
        uringfs_device::Device::new(device).unwrap().index()
    }

    #[test]
    fn loom_a_reader_of_the_new_size_finds_no_folio_of_the_old_one() {
        let device = device();
        loom::model(move || {
            let pages = Cache::new(2 * FOLIO);
            let cache = Arc::new(FileCache::new(&pages, device));
            let size = Arc::new(AtomicU64::new(100));
            let fills = cache.file_folios().begin_fill(0..1, 0).unwrap();
            fills.into_iter().for_each(|fill| fill.end(Ok(())));
            let writer = thread::spawn({
                let (cache, size) = (cache.clone(), size.clone());
                move || cache.grow(100..150, || size.store(150, Ordering::Release))
            });
            let found = cache.settled_size(|| size.load(Ordering::Acquire));
            let is_stale = matches!(cache.file_folios().lookup(0), Lookup::Found(_));
            assert!(found == 100 || !is_stale, "the folio of the old size");
            writer.join().unwrap();
        });
    }
}
