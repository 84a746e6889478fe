//! The uncommitted changes of an open file: extents, size and times.

use std::ops::Range;

use uringfs_file::ExtentWindow;

use crate::blocks::{BLOCK, Run};
use crate::open_file::snapshot::Snapshot;
use crate::records::inode::{Inode, Time};
use crate::records::overlay::CommitNumber;
use crate::space::extent::Extent;
use crate::space::extent_map::ExtentMap;

/// Fields of an inode that are newer than its record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InodeDelta {
    pub(super) size: u64,
    pub(super) blocks: u64,
    pub(super) modified: Option<Time>,
    pub(super) accessed: Option<Time>,
    pub(super) change_cookie: Option<u64>,
}

impl InodeDelta {
    pub(crate) fn apply_to(&self, inode: &mut Inode) {
        (inode.size, inode.blocks) = (self.size, self.blocks);
        if let Some(modified) = self.modified {
            (inode.modified, inode.changed) = (modified, inode.changed.max(modified));
        }
        inode.accessed = self.accessed.unwrap_or(inode.accessed);
        inode.change_cookie = self.change_cookie.unwrap_or(inode.change_cookie);
    }
}

/// Changes since the last commit.
pub(super) struct UncommittedState {
    /// The extents in the catalog, once the commit in progress has ended.
    pub(super) committed: ExtentMap,
    /// File blocks whose extents changed; sorted and disjoint.
    pub(super) changed: Vec<Range<u64>>,
    /// The size or the number of blocks changed.
    pub(super) is_inode_changed: bool,
    pub(super) modified: Option<Time>,
    pub(super) accessed: Option<Time>,
    /// The cookie of the last change of the content since the file was opened.
    pub(super) change_cookie: Option<u64>,
    /// Two file blocks where the largest written extent may be: one inside the last known largest, and the first
    /// block of the last change.
    pub(super) largest_hints: [u64; 2],
    /// The published hot extent.
    pub(super) window: ExtentWindow,
    /// Written blocks were unmapped or made unwritten.
    pub(super) has_unmapped: bool,
    /// The last commit that took changes.
    pub(super) last_commit: CommitNumber,
    /// The next commit takes the changes.
    pub(super) is_queued: bool,
}

impl UncommittedState {
    pub(super) fn inode_delta(&self, now: &Snapshot) -> InodeDelta {
        let (size, blocks) = (now.size(), now.extents.blocks());
        let UncommittedState { modified, accessed, change_cookie, .. } = *self;
        InodeDelta { size, blocks, modified, accessed, change_cookie }
    }

    /// Records that extents were unmapped. Returns their blocks.
    pub(super) fn mark_unmapped(&mut self, extents: Vec<Extent>) -> Vec<Run> {
        self.has_unmapped |= !extents.is_empty();
        extents.iter().for_each(|extent| self.mark_changed(extent.range()));
        extents.iter().map(Extent::run).collect()
    }

    /// Adds a range to the changed blocks and merges ranges that touch.
    pub(super) fn mark_changed(&mut self, mut blocks: Range<u64>) {
        self.largest_hints[1] = blocks.start;
        let first = self.changed.partition_point(|range| range.end < blocks.start);
        let end = self.changed.partition_point(|range| range.start <= blocks.end);
        for range in &self.changed[first..end] {
            blocks = blocks.start.min(range.start)..blocks.end.max(range.end);
        }
        self.changed.splice(first..end, [blocks]);
    }

    /// The largest written extent that is known.
    pub(super) fn largest_window(&mut self, snapshot: &Snapshot) -> ExtentWindow {
        let written = self.largest_hints.iter().filter_map(|block| snapshot.window(*block));
        let Some(window) = written.max_by_key(|window| window.end - window.start) else {
            return ExtentWindow::default();
        };
        self.largest_hints[0] = window.start / BLOCK;
        window
    }
}
