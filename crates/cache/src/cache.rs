//! The public handle: a cache of the folios of many files, in a bounded amount of memory.

use std::fmt;
use std::sync::{Arc, LazyLock};

use crate::core::CacheCore;
use crate::dirty::MAX_DEVICES;
use crate::file_folios::FileFolios;
use crate::folio::FOLIO;
use uringfs_sync::atomic::Ordering;

/// A page cache. Clones are the same cache; it can be used from any thread.
///
/// ```
/// # mod uringfs { pub use uringfs_cache as cache; }
/// use uringfs::cache::Cache;
///
/// // Memory is mapped as it is needed.
/// let cache = Cache::new(1 << 30);
/// assert_eq!(cache.statistics().bound_bytes, 1 << 30);
/// assert_eq!(cache.statistics().used_bytes, 0);
/// ```
#[derive(Clone)]
pub struct Cache {
    core: Arc<CacheCore>,
}

/// How large a cache is, and how many folios have come and gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CacheStatistics {
    /// Upper bound for the bytes of folios.
    pub bound_bytes: u64,
    /// Bytes of memory that the system has given it.
    pub mapped_bytes: u64,
    /// Bytes of folios.
    pub used_bytes: u64,
    /// Bytes of dirty folios.
    pub dirty_bytes: u64,
    /// Folios inserted since the cache was made.
    pub filled: u64,
    /// Folios evicted to make room.
    pub evicted: u64,
}

static OF_PROCESS: LazyLock<Cache> = LazyLock::new(|| {
    let system = rustix::system::sysinfo();
    // The fields differ in width between architectures.
    let total = u128::from(system.totalram) * u128::from(system.mem_unit.max(1));
    Cache::new(u64::try_from(total / 8).unwrap_or(u64::MAX))
});

impl Cache {
    /// The default cache of the process: at most an eighth of the machine's memory.
    pub fn of_process() -> Cache {
        OF_PROCESS.clone()
    }

    /// A cache of at most `bound_bytes` of file data, and of at least one folio. Memory is mapped as it is needed.
    pub fn new(bound_bytes: u64) -> Cache {
        let bound = (bound_bytes / FOLIO).clamp(1, u64::from(u32::MAX >> 1)) as u32;
        Cache { core: Arc::new(CacheCore::new(bound)) }
    }

    /// An empty set of folios for one file, on a device with an index below [`MAX_DEVICES`](crate::MAX_DEVICES).
    /// Dirty folios are limited by device, so that a device that writes nothing back does not block the others.
    #[doc(hidden)]
    pub fn file_folios(&self, device: u16) -> FileFolios {
        assert!(usize::from(device) < MAX_DEVICES, "device index {device} is out of range");
        let file = self.core.next_file.fetch_add(1, Ordering::Relaxed);
        FileFolios::new(self.core.clone(), file, device)
    }

    /// Upper bound for the bytes of folios.
    #[doc(hidden)]
    pub fn bound_bytes(&self) -> u64 {
        u64::from(self.core.frames.bound()) * FOLIO
    }

    /// Current sizes and counts.
    pub fn statistics(&self) -> CacheStatistics {
        let CacheCore { frames, filled, evicted, .. } = &*self.core;
        CacheStatistics {
            bound_bytes: self.bound_bytes(),
            mapped_bytes: u64::from(frames.mapped()) * FOLIO,
            used_bytes: u64::from(frames.allocated()) * FOLIO,
            dirty_bytes: u64::from(self.core.dirty.count()) * FOLIO,
            filled: filled.load(Ordering::Relaxed),
            evicted: evicted.load(Ordering::Relaxed),
        }
    }

    /// Evicts folios until at most `bytes` are used, or no further folio can be evicted. Then returns all unused
    /// memory to the system. The result is that memory in bytes. Without this call, most memory goes back by itself
    /// when files are closed, truncated or removed.
    pub fn shrink(&self, bytes: u64) -> u64 {
        let before = self.core.frames.mapped();
        while u64::from(self.core.frames.allocated()) * FOLIO > bytes {
            if self.core.evict(1) == 0 {
                break;
            }
        }
        self.core.frames.unmap_free_chunks();
        u64::from(before.saturating_sub(self.core.frames.mapped())) * FOLIO
    }
}

impl fmt::Debug for Cache {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Cache: {:?}", self.statistics())
    }
}
