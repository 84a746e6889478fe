//! What the page cache has of a file, and how those who ask through it and those who ask the device go together.
//!
//! From its first use through a cache on, a file's writers take the locks of their ranges: so each knows when to
//! take what it has overwritten out of the cache. That is for good, as long as the file is open.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use rustix::io::Errno;
use uringfs_cache::{Cache, FOLIO, Pages};
use uringfs_reactor::Operation;

use crate::file::Shared;
use crate::map::Generation;
use crate::readahead::{LONGEST, Readahead};

/// What the openings of a file share of the cache.
#[derive(Debug)]
pub(crate) struct Cached {
    pages: Pages,
    /// Writers take the locks of their ranges.
    is_mixed: AtomicBool,
    /// That of the file when its folios were taken in.
    generation: AtomicU64,
}

/// How one opening asks through a cache.
pub(crate) struct Caching {
    cache: Cache,
    pub(crate) readahead: Mutex<Readahead>,
}

impl Caching {
    pub(crate) fn new(cache: &Cache) -> Caching {
        Caching { cache: cache.clone(), readahead: Mutex::new(Readahead::new(LONGEST)) }
    }

    /// What the cache has of the file.
    #[inline(always)]
    pub(crate) fn of<'s>(&self, shared: &'s Shared) -> &'s Cached {
        shared.lock.cached(&self.cache)
    }
}

impl Cached {
    pub(crate) fn new(cache: &Cache) -> Cached {
        Cached {
            pages: cache.pages(),
            is_mixed: AtomicBool::new(false),
            generation: AtomicU64::new(0),
        }
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

    /// Before folios are looked for: writers know of them, and they are of the file as it is.
    pub(crate) async fn enter(
        &self,
        operation: &mut Operation,
        shared: &Shared,
    ) -> Result<(), Errno> {
        if !self.is_mixed.load(Ordering::Acquire) {
            if let Some(epoch) = shared.lock.mix(shared.index) {
                operation.wait_for_quiescence(epoch).await?;
            }
            shared.lock.settle();
            self.is_mixed.store(true, Ordering::Release);
        }
        let generation = shared.map.generation();
        if !self.is_current(generation) {
            self.pages.invalidate(0..u64::MAX);
            self.generation.store(generation, Ordering::Release);
        }
        Ok(())
    }

    /// Takes out what the cache has of a range of bytes.
    pub(crate) fn invalidate(&self, range: Range<u64>) {
        if range.start < range.end {
            self.pages.invalidate(range.start / FOLIO..range.end.div_ceil(FOLIO));
        }
    }
}
