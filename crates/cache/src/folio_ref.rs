//! Read access to a folio's bytes: briefly ([`FolioRef`]), or for any length of time ([`FolioSnapshot`]).

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use uringfs_buffer::{SharedFrame, Snapshot};

use crate::folio::{ACCESS_COUNT, DROPBEHIND, Folio, READAHEAD_MARKER};
use crate::frames::{Frames, is_last_share};

/// A shared reference to a folio. Keep it only while you copy from it.
pub struct FolioRef<'a> {
    frames: &'a Arc<Frames>,
    frame: u32,
    /// None once it has become a snapshot.
    share: Option<SharedFrame<'a, Folio>>,
}

impl fmt::Debug for FolioRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FolioRef").field("frame", &self.frame).finish_non_exhaustive()
    }
}

impl<'a> FolioRef<'a> {
    #[inline(always)]
    pub(crate) fn new(
        frames: &'a Arc<Frames>,
        frame: u32,
        share: SharedFrame<'a, Folio>,
    ) -> FolioRef<'a> {
        FolioRef { frames, frame, share: Some(share) }
    }

    /// Whether reading it starts the next window of readahead.
    #[inline]
    pub fn has_readahead_marker(&self) -> bool {
        self.share.as_ref().is_some_and(|share| share.state().flags() & READAHEAD_MARKER != 0)
    }

    /// Clears the readahead marker; true for the one caller that found it set.
    #[inline]
    pub fn take_readahead_marker(&self) -> bool {
        self.has_readahead_marker() && self.frames.take_readahead_marker(self.frame)
    }

    /// Counts an access, for eviction. Do not count small sequential reads of one folio more than once.
    #[inline]
    pub fn touch(&self) {
        let flags = self.share.as_ref().map_or(0, |share| share.state().flags());
        if flags & (ACCESS_COUNT[2] | DROPBEHIND) != ACCESS_COUNT[2] {
            self.frames.touch(self.frame, flags);
        }
    }

    /// Turns it into a snapshot.
    #[inline]
    pub(crate) fn into_snapshot(mut self) -> FolioSnapshot {
        let share = self.share.take().expect("it is no snapshot yet");
        FolioSnapshot::new(self.frames.clone(), share.into_snapshot())
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
                self.frames.reclaim(self.frame);
            }
        }
    }
}

/// A snapshot of a folio. It keeps the bytes and the frame, whatever happens to the file.
pub struct FolioSnapshot {
    /// Its reference counts the snapshot: see [`FileFolios::snapshot`](crate::FileFolios::snapshot).
    frames: Arc<Frames>,
    /// None only while it is dropped.
    snapshot: Option<Snapshot>,
}

impl fmt::Debug for FolioSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FolioSnapshot").field("frame", &self.frame()).finish_non_exhaustive()
    }
}

impl FolioSnapshot {
    #[inline]
    pub(crate) fn new(frames: Arc<Frames>, snapshot: Snapshot) -> FolioSnapshot {
        FolioSnapshot { frames, snapshot: Some(snapshot) }
    }

    fn snapshot(&self) -> &Snapshot {
        self.snapshot.as_ref().expect("it is not dropped yet")
    }

    fn frame(&self) -> u32 {
        self.snapshot().frame()
    }

    /// Clears the readahead marker; true for the one caller that found it set.
    pub fn take_readahead_marker(&self) -> bool {
        self.frames.take_readahead_marker(self.frame())
    }

    /// Counts the first access. All readers that waited for the same fill count as one.
    pub fn touch_once(&self) {
        self.frames.touch(self.frame(), 0);
    }
}

impl Deref for FolioSnapshot {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        self.frames.slab().bytes(self.snapshot())
    }
}

impl Drop for FolioSnapshot {
    #[inline]
    fn drop(&mut self) {
        if let Some(snapshot) = self.snapshot.take() {
            self.frames.release(snapshot);
        }
    }
}
