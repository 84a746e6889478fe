//! How one opening reads and writes through the page cache: its advice and its readahead.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use uringfs_cache::{Cache, FOLIO};

use crate::state::readahead::Readahead;

/// How one opening asks through a cache.
pub(crate) struct Caching {
    pub(crate) cache: Cache,
    /// Folios of a window, unless something else is advised.
    longest: u32,
    pub(crate) readahead: Mutex<Readahead>,
    /// The folio in which the last read ended, when that was inside it: one that goes on there touches it no more.
    inside: AtomicU64,
    /// What is asked is not counted as used: [`Advice::NoReuse`].
    is_once: AtomicBool,
    /// Nor does it stay: [`Advice::DontCache`].
    is_passing: AtomicBool,
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
const NONE: u64 = u64::MAX;

impl Caching {
    /// With windows of so many folios at most.
    pub(crate) fn new(cache: &Cache, longest: u32) -> Caching {
        let readahead = Mutex::new(Readahead::new(longest));
        let inside = AtomicU64::new(NONE);
        let (is_once, is_passing) = (AtomicBool::new(false), AtomicBool::new(false));
        Caching { cache: cache.clone(), longest, readahead, inside, is_once, is_passing }
    }

    /// Does what can be done about it at once: all but to read.
    pub(crate) fn advise(&self, advice: Advice) {
        let longest = match advice {
            Advice::Normal | Advice::NoReuse | Advice::DontCache => self.longest,
            Advice::Sequential => 2 * self.longest,
            Advice::Random => 0,
            Advice::WillNeed | Advice::DoNotNeed => return,
        };
        let is_passing = advice == Advice::DontCache;
        self.is_once.store(advice == Advice::NoReuse || is_passing, Ordering::Relaxed);
        self.is_passing.store(is_passing, Ordering::Relaxed);
        self.readahead.lock().set_longest(longest);
    }

    /// Whether a read that began at an offset and has got so far counts the folio it finds as used.
    #[inline]
    pub(crate) fn is_counted(&self, offset: u64, done: u64) -> bool {
        (done > 0 || !self.goes_on(offset)) && !self.is_once.load(Ordering::Relaxed)
    }

    /// Whether what comes into the cache for it leaves when it is done with it.
    #[inline]
    pub(crate) fn is_passing(&self) -> bool {
        self.is_passing.load(Ordering::Relaxed)
    }

    /// Whether a read that begins at an offset goes on in a folio that the last one touched.
    #[inline]
    fn goes_on(&self, offset: u64) -> bool {
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
}
