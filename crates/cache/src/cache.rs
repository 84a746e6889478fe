//! The cache, as its users have it: a handle to folios of many files, in memory that has a bound.

use std::fmt;
use std::sync::{Arc, LazyLock};

use crate::core::CacheCore;
use crate::dirty::MAX_DEVICES;
use crate::file_folios::Pages;
use crate::folio::FOLIO;
use uringfs_sync::atomic::Ordering;

/// A page cache. Clones are the same cache; it can be used from any thread.
#[derive(Clone)]
pub struct Cache {
    shared: Arc<CacheCore>,
}

/// What a cache has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheStatistics {
    /// Bytes it may have at most.
    pub bound_bytes: u64,
    /// Bytes of memory that it has from the system.
    pub mapped_bytes: u64,
    /// Bytes of folios.
    pub used_bytes: u64,
    /// Bytes of folios that the device does not have.
    pub unsaved_bytes: u64,
    /// Folios that have come since the beginning.
    pub filled: u64,
    /// Folios that left to make room.
    pub evicted: u64,
}

static OF_PROCESS: LazyLock<Cache> = LazyLock::new(|| {
    let system = rustix::system::sysinfo();
    // Wider or narrower from one machine to the next.
    let total = u128::from(system.totalram) * u128::from(system.mem_unit.max(1));
    Cache::new(u64::try_from(total / 8).unwrap_or(u64::MAX))
});

impl Cache {
    /// The one that all have who want no other: at most an eighth of the machine's memory.
    pub fn of_process() -> Cache {
        OF_PROCESS.clone()
    }

    /// A cache of at most `bound_bytes` of files' bytes, at least one folio. Memory is taken when it is needed.
    pub fn new(bound_bytes: u64) -> Cache {
        let bound = (bound_bytes / FOLIO).clamp(1, u64::from(u32::MAX >> 1)) as u32;
        Cache { shared: Arc::new(CacheCore::new(bound)) }
    }

    /// The folios of a file that has none yet, on a device with a number below [`MAX_DEVICES`](crate::MAX_DEVICES):
    /// how many folios may be unsaved goes by devices, so that one that saves nothing does not hold up the others.
    pub fn pages(&self, device: u16) -> Pages {
        assert!(usize::from(device) < MAX_DEVICES, "the device's number");
        let file = self.shared.next_file.fetch_add(1, Ordering::Relaxed);
        Pages::new(self.shared.clone(), file, device)
    }

    /// What it has.
    pub fn statistics(&self) -> CacheStatistics {
        let CacheCore { frames, filled, evicted, .. } = &*self.shared;
        CacheStatistics {
            bound_bytes: u64::from(frames.bound()) * FOLIO,
            mapped_bytes: u64::from(frames.mapped()) * FOLIO,
            used_bytes: u64::from(frames.taken()) * FOLIO,
            unsaved_bytes: u64::from(self.shared.dirty.count()) * FOLIO,
            filled: filled.load(Ordering::Relaxed),
            evicted: evicted.load(Ordering::Relaxed),
        }
    }

    /// Evicts folios until at most `bytes` are used, as far as they may leave, and gives all memory back to the
    /// system that is not used; answers how many bytes of memory that was. Most of what files leave that are closed,
    /// cut off or removed goes back by itself.
    pub fn shrink(&self, bytes: u64) -> u64 {
        let before = self.shared.frames.mapped();
        while u64::from(self.shared.frames.taken()) * FOLIO > bytes {
            if self.shared.evict(1) == 0 {
                break;
            }
        }
        self.shared.frames.unmap_vacant();
        u64::from(before.saturating_sub(self.shared.frames.mapped())) * FOLIO
    }
}

impl fmt::Debug for Cache {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Cache: {:?}", self.statistics())
    }
}
