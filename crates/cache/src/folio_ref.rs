//! A folio's bytes, as they are read: for the moment, or for as long as one likes.

use std::ops::Deref;
use std::sync::Arc;

use uringfs_buffer::{Share, Snapshot};

use crate::core::{CacheCore, is_last_share};
use crate::folio::{ACCESS_COUNT, DROPBEHIND, Folio, READAHEAD_MARKER};
use uringfs_sync::atomic::Ordering;

/// A folio that was found, for as long as it takes to copy from it.
pub struct Found<'a> {
    cache: &'a Arc<CacheCore>,
    place: u32,
    /// None once it is kept.
    share: Option<Share<'a, Folio>>,
}

impl<'a> Found<'a> {
    #[inline(always)]
    pub(crate) fn new(cache: &'a Arc<CacheCore>, place: u32, share: Share<'a, Folio>) -> Found<'a> {
        Found { cache, place, share: Some(share) }
    }

    /// Whether reading it starts the next window of readahead.
    #[inline]
    pub fn is_marked(&self) -> bool {
        self.share.as_ref().is_some_and(|share| share.state().flags() & READAHEAD_MARKER != 0)
    }

    /// The same, said to one reader only.
    #[inline]
    pub fn take_mark(&self) -> bool {
        self.is_marked() && self.cache.take_mark(self.place)
    }

    /// Counts that it is read, and not as a part of what was read of it just before: so eviction knows what is
    /// read again and again.
    #[inline]
    pub fn touch(&self) {
        let flags = self.share.as_ref().map_or(0, |share| share.state().flags());
        if flags & (ACCESS_COUNT[2] | DROPBEHIND) != ACCESS_COUNT[2] {
            self.cache.touch(self.place, flags);
        }
    }

    /// The same, for as long as it is wanted; counted among those that are kept.
    pub(crate) fn keep_counted(mut self) -> Page {
        let share = self.share.take().expect("it is kept once");
        let snapshot = share.keep(self.cache.frames.slab());
        let (cache, place) = (self.cache.clone(), self.place);
        Page { cache, place, snapshot: Some(snapshot), is_counted: true }
    }
}

impl Deref for Found<'_> {
    type Target = [u8];

    #[inline(always)]
    fn deref(&self) -> &[u8] {
        self.share.as_ref().expect("it is not kept")
    }
}

impl Drop for Found<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        if let Some(share) = self.share.take() {
            let before = share.release();
            if is_last_share(before) {
                self.cache.reclaim(self.place);
            }
        }
    }
}

/// A snapshot of a folio: it keeps its bytes, and its frame, whatever happens to the file.
pub struct Page {
    cache: Arc<CacheCore>,
    place: u32,
    snapshot: Option<Snapshot<Folio>>,
    /// Among those that are kept, and not handed on to be copied from.
    is_counted: bool,
}

impl Page {
    pub(crate) fn new(cache: Arc<CacheCore>, place: u32, snapshot: Snapshot<Folio>) -> Page {
        Page { cache, place, snapshot: Some(snapshot), is_counted: false }
    }

    /// Whether reading it starts the next window of readahead: said to one reader.
    pub fn take_mark(&self) -> bool {
        self.cache.take_mark(self.place)
    }

    /// Counts that it is read, once for all who waited for it.
    pub fn touch_first(&self) {
        self.cache.touch(self.place, 0);
    }
}

impl Deref for Page {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        self.snapshot.as_ref().expect("until it is dropped")
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        let snapshot = self.snapshot.take().expect("it is dropped once");
        self.cache.release(self.place, snapshot);
        if self.is_counted {
            self.cache.guards.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
