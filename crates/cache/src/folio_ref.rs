//! Read access to a folio's bytes: briefly ([`FolioRef`]), or for any length of time ([`FolioSnapshot`]).

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use uringfs_buffer::{SharedFrame, Snapshot};

use crate::core::{CacheCore, is_last_share};
use crate::folio::{ACCESS_COUNT, DROPBEHIND, Folio, READAHEAD_MARKER};
use uringfs_sync::atomic::Ordering;

/// A shared reference to a folio. Keep it only while you copy from it.
pub struct FolioRef<'a> {
    cache: &'a Arc<CacheCore>,
    frame: u32,
    /// None once it has become a snapshot.
    share: Option<SharedFrame<'a, Folio>>,
}

impl fmt::Debug for FolioRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_struct("FolioRef").field("frame", &self.frame).finish_non_exhaustive()
    }
}

impl<'a> FolioRef<'a> {
    #[inline(always)]
    pub(crate) fn new(
        cache: &'a Arc<CacheCore>,
        frame: u32,
        share: SharedFrame<'a, Folio>,
    ) -> FolioRef<'a> {
        FolioRef { cache, frame, share: Some(share) }
    }

    /// Whether reading it starts the next window of readahead.
    #[inline]
    pub fn has_readahead_marker(&self) -> bool {
        self.share.as_ref().is_some_and(|share| share.state().flags() & READAHEAD_MARKER != 0)
    }

    /// Clears the readahead marker; true for the one caller that found it set.
    #[inline]
    pub fn take_readahead_marker(&self) -> bool {
        self.has_readahead_marker() && self.cache.take_readahead_marker(self.frame)
    }

    /// Counts an access, for eviction. Do not count small sequential reads of one folio more than once.
    #[inline]
    pub fn touch(&self) {
        let flags = self.share.as_ref().map_or(0, |share| share.state().flags());
        if flags & (ACCESS_COUNT[2] | DROPBEHIND) != ACCESS_COUNT[2] {
            self.cache.touch(self.frame, flags);
        }
    }

    /// Turns it into a snapshot. The caller has counted the snapshot in [`CacheCore::snapshots`].
    pub(crate) fn into_counted_snapshot(mut self) -> FolioSnapshot {
        let share = self.share.take().expect("it is no snapshot yet");
        let snapshot = share.into_snapshot(self.cache.frames.slab());
        let (cache, frame) = (self.cache.clone(), self.frame);
        FolioSnapshot { cache, frame, snapshot: Some(snapshot), is_counted: true }
    }
}

impl Deref for FolioRef<'_> {
    type Target = [u8];

    #[inline(always)]
    fn deref(&self) -> &[u8] {
        self.share.as_ref().expect("it is no snapshot")
    }
}

impl Drop for FolioRef<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        if let Some(share) = self.share.take() {
            let before = share.release();
            if is_last_share(before) {
                self.cache.reclaim(self.frame);
            }
        }
    }
}

/// A snapshot of a folio. It keeps the bytes and the frame, whatever happens to the file.
pub struct FolioSnapshot {
    cache: Arc<CacheCore>,
    frame: u32,
    snapshot: Option<Snapshot<Folio>>,
    /// Counted in [`CacheCore::snapshots`]. False for the result of a wait, which lives only until it is copied.
    is_counted: bool,
}

impl fmt::Debug for FolioSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_struct("FolioSnapshot").field("frame", &self.frame).finish_non_exhaustive()
    }
}

impl FolioSnapshot {
    pub(crate) fn new(
        cache: Arc<CacheCore>,
        frame: u32,
        snapshot: Snapshot<Folio>,
    ) -> FolioSnapshot {
        FolioSnapshot { cache, frame, snapshot: Some(snapshot), is_counted: false }
    }

    /// Clears the readahead marker; true for the one caller that found it set.
    pub fn take_readahead_marker(&self) -> bool {
        self.cache.take_readahead_marker(self.frame)
    }

    /// Counts the first access. All readers that waited for the same fill count as one.
    pub fn touch_once(&self) {
        self.cache.touch(self.frame, 0);
    }
}

impl Deref for FolioSnapshot {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        self.snapshot.as_ref().expect("it is not dropped yet")
    }
}

impl Drop for FolioSnapshot {
    fn drop(&mut self) {
        let snapshot = self.snapshot.take().expect("it is dropped once");
        self.cache.release(self.frame, snapshot);
        if self.is_counted {
            self.cache.snapshots.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
