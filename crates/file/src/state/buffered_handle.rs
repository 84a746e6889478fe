//! Per-handle state of buffered I/O: advice and readahead.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use uringfs_cache::{Cache, FOLIO};

use crate::state::readahead::Readahead;

/// A buffered handle's state.
pub(crate) struct BufferedHandleState {
    pub(crate) cache: Cache,
    /// Longest readahead window in folios, unless advice changes it or the cache is too small for it.
    max_readahead: u32,
    /// Longest window in folios that the size of the cache allows.
    cache_share: u32,
    pub(crate) readahead: Mutex<Readahead>,
    /// The folio inside which the last read or write ended. The next one does not touch the folio again if it
    /// continues there.
    partial_folio: AtomicU64,
    /// Reads do not count as accesses: [`Advice::NoReuse`], [`Advice::DontCache`].
    is_no_reuse: AtomicBool,
    /// Folios leave the cache after use (dropbehind): [`Advice::DontCache`].
    is_dropbehind: AtomicBool,
}

/// Advice on how a file will be read through the page cache (`posix_fadvise`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Advice {
    /// The default: earlier advice is dropped.
    Normal,
    /// Sequential access: readahead windows are twice as long, as far as the size of the cache allows.
    Sequential,
    /// Random access: no readahead.
    Random,
    /// Each byte is used once: folios read are evicted before those that other handles use.
    NoReuse,
    /// Each byte is used once and is not cached (`RWF_DONTCACHE`): folios leave after the read, or as soon as
    /// they are written back, which starts at once. Folios that other handles use stay.
    DontCache,
    /// The range is needed soon: it is read into the cache as far as there is space, in the background.
    WillNeed,
    /// The range is no longer needed: its clean folios leave the cache.
    DoNotNeed,
}

/// A window is at most this part of the cache: the windows of a reader must not evict each other before they are read,
/// even if the rest of the cache is in use (see [`uringfs_cache::eviction`]).
const CACHE_SHARE: u64 = 32;

/// The value for no folio.
const NO_FOLIO: u64 = u64::MAX;

impl BufferedHandleState {
    /// `max_readahead` is in folios. In a small cache windows are shorter.
    pub(crate) fn new(cache: &Cache, max_readahead: u32) -> BufferedHandleState {
        let cache_share = (cache.bound_bytes() / FOLIO / CACHE_SHARE).max(1);
        let cache_share = u32::try_from(cache_share).unwrap_or(u32::MAX);
        let readahead = Mutex::new(Readahead::new(max_readahead.min(cache_share)));
        let partial_folio = AtomicU64::new(NO_FOLIO);
        let (is_no_reuse, is_dropbehind) = (AtomicBool::new(false), AtomicBool::new(false));
        BufferedHandleState {
            cache: cache.clone(),
            max_readahead,
            cache_share,
            readahead,
            partial_folio,
            is_no_reuse,
            is_dropbehind,
        }
    }

    /// Applies the advice to this handle. Reading ahead and dropping folios is up to the caller.
    pub(crate) fn advise(&self, advice: Advice) {
        let max_readahead = match advice {
            Advice::Normal | Advice::NoReuse | Advice::DontCache => self.max_readahead,
            Advice::Sequential => self.max_readahead.saturating_mul(2),
            Advice::Random => 0,
            Advice::WillNeed | Advice::DoNotNeed => return,
        };
        let is_dropbehind = advice == Advice::DontCache;
        self.is_no_reuse.store(advice == Advice::NoReuse || is_dropbehind, Ordering::Relaxed);
        self.is_dropbehind.store(is_dropbehind, Ordering::Relaxed);
        self.readahead.lock().set_max_folios(max_readahead.min(self.cache_share));
    }

    /// True if a read or write that began at `offset` and has moved `done` bytes counts an access for the next folio.
    #[inline]
    pub(crate) fn counts_as_use(&self, offset: u64, done: u64) -> bool {
        (done > 0 || !self.continues_in_folio(offset)) && !self.is_no_reuse.load(Ordering::Relaxed)
    }

    /// True if folios leave the cache after use.
    #[inline]
    pub(crate) fn is_dropbehind(&self) -> bool {
        self.is_dropbehind.load(Ordering::Relaxed)
    }

    /// True if a read or write at `offset` continues in the folio where the last one ended.
    #[inline]
    fn continues_in_folio(&self, offset: u64) -> bool {
        !offset.is_multiple_of(FOLIO)
            && self.partial_folio.load(Ordering::Relaxed) == offset / FOLIO
    }

    /// Notes that a read or write ended at `offset`. Those of whole folios store nothing here, so threads with one
    /// handle do not contend on the line.
    #[inline]
    pub(crate) fn note_end(&self, offset: u64) {
        let partial_folio = if offset.is_multiple_of(FOLIO) { NO_FOLIO } else { offset / FOLIO };
        if self.partial_folio.load(Ordering::Relaxed) != partial_folio {
            self.partial_folio.store(partial_folio, Ordering::Relaxed);
        }
    }
}
