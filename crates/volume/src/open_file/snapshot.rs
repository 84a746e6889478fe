//! A reader's view of a file: its extents and its size.

use std::sync::atomic::{AtomicU64, Ordering};

use uringfs_file::ExtentWindow;

use crate::blocks::BLOCK;
use crate::space::extent::ExtentState;
use crate::space::extent_map::{ExtentMap, ExtentOrHole};

/// A reader's view of a file. It is replaced, not changed, except that its size grows within written blocks.
pub(crate) struct Snapshot {
    pub(crate) extents: ExtentMap,
    /// In bytes.
    pub(super) size: AtomicU64,
}

impl Snapshot {
    pub(super) fn new(extents: ExtentMap, size: u64) -> Snapshot {
        Snapshot { extents, size: AtomicU64::new(size) }
    }

    /// In bytes.
    #[inline]
    pub(crate) fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    /// The written extent that holds `block`, up to the size.
    #[inline]
    pub(super) fn window(&self, block: u64) -> Option<ExtentWindow> {
        let size = self.size();
        match self.extents.find(block) {
            ExtentOrHole::Extent(extent)
                if extent.state == ExtentState::Written && extent.offset * BLOCK < size =>
            {
                Some(ExtentWindow {
                    start: extent.offset * BLOCK,
                    end: size.min(extent.end() * BLOCK),
                    address: extent.start * BLOCK,
                })
            }
            _ => None,
        }
    }
}
