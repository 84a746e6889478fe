//! What the page cache has of a file, and how those who ask through it and those who ask the device go together.
//!
//! From its first use through a cache on, a file's writers take the locks of their ranges: so each knows when to
//! take what it has overwritten out of the cache. That is for good, as long as the file is open.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::io::Errno;
use uringfs_cache::{Cache, FOLIO, Pages};
use uringfs_device::DeviceIndex;
use uringfs_reactor::Operation;

use crate::map::mapping::Generation;
use crate::state::file::Shared;
use crate::state::readahead::Readahead;

/// The cache counts by devices; for loom, which follows every count, by few of them.
const _: () = assert!(cfg!(loom) || uringfs_device::MAX_DEVICES <= uringfs_cache::MAX_DEVICES);

/// What a fill is taken to take until one has ended, and at most.
const SLOW: Duration = Duration::from_millis(10);
/// To wait is cheap, and another thread may not have a processor just now.
const SHORTEST_PATIENCE: Duration = Duration::from_millis(1);

/// What the openings of a file share of the cache.
#[derive(Debug)]
pub(crate) struct Cached {
    pages: Pages,
    /// Writers take the locks of their ranges.
    is_mixed: AtomicBool,
    /// That of the file when its folios were taken in.
    generation: AtomicU64,
    /// What a fill takes, in nanoseconds: those of late weigh most.
    fill_ns: AtomicU64,
}

/// How one opening asks through a cache.
pub(crate) struct Caching {
    cache: Cache,
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

    /// What the cache has of the file.
    #[inline(always)]
    pub(crate) fn of<'s>(&self, shared: &'s Shared) -> &'s Cached {
        shared.lock.cached(&self.cache, shared.index)
    }
}

impl Cached {
    pub(crate) fn new(cache: &Cache, device: DeviceIndex) -> Cached {
        Cached {
            pages: cache.pages(device.get() as u16),
            is_mixed: AtomicBool::new(false),
            generation: AtomicU64::new(0),
            fill_ns: AtomicU64::new(SLOW.as_nanos() as u64),
        }
    }

    /// A fill has taken so long.
    pub(crate) fn note_fill(&self, time: Duration) {
        let time = time.min(SLOW).as_nanos() as u64;
        let before = self.fill_ns.load(Ordering::Relaxed);
        self.fill_ns.store((before * 7 + time) / 8, Ordering::Relaxed);
    }

    /// How long a reader waits for a fill of another reactor, which sees that it is done only when it turns.
    pub(crate) fn patience(&self) -> Duration {
        Duration::from_nanos(4 * self.fill_ns.load(Ordering::Relaxed)).max(SHORTEST_PATIENCE)
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
            shared.lock.unsaved().forget(&self.pages, generation);
            self.generation.fetch_max(generation, Ordering::AcqRel);
        }
        Ok(())
    }

    /// The generation of its folios.
    pub(crate) fn generation(&self) -> Generation {
        self.generation.load(Ordering::Acquire)
    }

    /// A range of bytes has been read by somebody who does not want it to stay. Of a folio that goes on behind it, and
    /// behind which the file goes on, the rest may be read next.
    pub(crate) fn passed(&self, range: Range<u64>, size: u64) {
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
pub(crate) fn folios_of(range: &Range<u64>) -> Range<u64> {
    range.start / FOLIO..range.end.div_ceil(FOLIO)
}

/// The bytes of a range of folios.
pub(crate) fn bytes_of(folios: &Range<u64>) -> Range<u64> {
    folios.start * FOLIO..folios.end.saturating_mul(FOLIO)
}
