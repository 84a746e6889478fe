//! How one opening reads and writes through the page cache: its advice and its readahead.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use uringfs_cache::{Cache, FOLIO};

use crate::state::readahead::Readahead;

/// How one opening asks through a cache.
pub(crate) struct CacheHandle {
    pub(crate) cache: Cache,
    /// Folios of a window, unless something else is advised.
    max_readahead: u32,
    pub(crate) readahead: Mutex<Readahead>,
    /// The folio in which the last read ended, when that was inside it: one that goes on there touches it no more.
    partial_folio: AtomicU64,
    /// What is asked is not counted as used: [`Advice::NoReuse`].
    is_no_reuse: AtomicBool,
    /// Nor does it stay: [`Advice::DontCache`].
    is_dropbehind: AtomicBool,
}

/// What whoever opened a file says of how it is going to be read through the page cache (`posix_fadvise`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// Nothing: what was said before is forgotten.
    Normal,
    /// From one end to the other: more is read ahead.
    Sequential,
    /// Here and there: nothing is read ahead.
    Random,
    /// Once: what is read leaves the cache before what others use.
    NoReuse,
    /// Once, and what it brings to the cache does not stay (`RWF_DONTCACHE`): what is read leaves at once, what is
    /// written as soon as the device has it, which is soon. What others use meanwhile stays.
    DontCache,
    /// This range soon: it is read into the cache, as far as there is room, and nobody waits for it.
    WillNeed,
    /// This range no more: it leaves the cache, but for what the device does not have.
    DoNotNeed,
}

/// No folio.
const NO_FOLIO: u64 = u64::MAX;

impl CacheHandle {
    /// With windows of so many folios at most.
    pub(crate) fn new(cache: &Cache, max_readahead: u32) -> CacheHandle {
        let readahead = Mutex::new(Readahead::new(max_readahead));
        let partial_folio = AtomicU64::new(NO_FOLIO);
        let (is_no_reuse, is_dropbehind) = (AtomicBool::new(false), AtomicBool::new(false));
        CacheHandle {
            cache: cache.clone(),
            max_readahead,
            readahead,
            partial_folio,
            is_no_reuse,
            is_dropbehind,
        }
    }

    /// Does what can be done about it at once: all but to read.
    pub(crate) fn advise(&self, advice: Advice) {
        let max_readahead = match advice {
            Advice::Normal | Advice::NoReuse | Advice::DontCache => self.max_readahead,
            Advice::Sequential => 2 * self.max_readahead,
            Advice::Random => 0,
            Advice::WillNeed | Advice::DoNotNeed => return,
        };
        let is_dropbehind = advice == Advice::DontCache;
        self.is_no_reuse.store(advice == Advice::NoReuse || is_dropbehind, Ordering::Relaxed);
        self.is_dropbehind.store(is_dropbehind, Ordering::Relaxed);
        self.readahead.lock().set_max_folios(max_readahead);
    }

    /// Whether a read that began at an offset and has got so far counts the folio it finds as used.
    #[inline]
    pub(crate) fn counts_as_use(&self, offset: u64, done: u64) -> bool {
        (done > 0 || !self.continues_in_folio(offset)) && !self.is_no_reuse.load(Ordering::Relaxed)
    }

    /// Whether what comes into the cache for it leaves when it is done with it.
    #[inline]
    pub(crate) fn is_dropbehind(&self) -> bool {
        self.is_dropbehind.load(Ordering::Relaxed)
    }

    /// Whether a read that begins at an offset goes on in a folio that the last one touched.
    #[inline]
    fn continues_in_folio(&self, offset: u64) -> bool {
        !offset.is_multiple_of(FOLIO)
            && self.partial_folio.load(Ordering::Relaxed) == offset / FOLIO
    }

    /// A read has ended before an offset. Whoever reads whole folios writes nothing here, so that threads with one
    /// opening do not disturb one another.
    #[inline]
    pub(crate) fn note_end(&self, offset: u64) {
        let partial_folio = if offset.is_multiple_of(FOLIO) { NO_FOLIO } else { offset / FOLIO };
        if self.partial_folio.load(Ordering::Relaxed) != partial_folio {
            self.partial_folio.store(partial_folio, Ordering::Relaxed);
        }
    }
}
