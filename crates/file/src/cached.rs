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
    /// The folio in which the last read ended, when that was inside it: one that goes on there touches it no more.
    inside: AtomicU64,
}

/// No folio.
const NONE: u64 = u64::MAX;

impl Caching {
    pub(crate) fn new(cache: &Cache) -> Caching {
        let readahead = Mutex::new(Readahead::new(LONGEST));
        Caching { cache: cache.clone(), readahead, inside: AtomicU64::new(NONE) }
    }

    /// Whether a read that begins at an offset goes on in a folio that the last one touched.
    #[inline]
    pub(crate) fn goes_on(&self, offset: u64) -> bool {
        !offset.is_multiple_of(FOLIO) && self.inside.load(Ordering::Relaxed) == offset / FOLIO
    }

    /// A read has ended before an offset. Whoever reads whole folios writes nothing here, so that threads with one
    /// opening do not disturb one another.
    #[inline]
    pub(crate) fn ended(&self, offset: u64) {
        let inside = if offset.is_multiple_of(FOLIO) { NONE } else { offset / FOLIO };
        if self.inside.load(Ordering::Relaxed) != inside {
            self.inside.store(inside, Ordering::Relaxed);
        }
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
