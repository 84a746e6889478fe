//! One round of a check: what its passes share.

use super::findings::Findings;
use super::report::{CheckReport, CheckStep};
use crate::blocks::Blocks;
use crate::catalog::Catalog;
use crate::records::inode::InodeNumber;
use crate::superblock::Superblock;

/// Of which no more are in memory at once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Inodes whose names are counted in one pass over the names.
    pub(super) inodes: usize,
    /// Blocks whose owners are found in one pass over the extents; a multiple of a region's.
    pub(super) blocks: u64,
}

impl Default for Bounds {
    fn default() -> Bounds {
        // 64 MiB each.
        Bounds { inodes: 1 << 21, blocks: 1 << 29 }
    }
}

/// Hears how far a check is: what is gone through, and how many of it.
pub(crate) type Progress<'p> = &'p mut dyn FnMut(CheckStep, u64);

/// What is to become of blocks that are neither free nor in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LeakedBlocks {
    /// They become free.
    Free,
    /// They stay taken: they may hold the bytes of files whose extents could not be read.
    Keep,
}

/// A check of all that the catalog says.
pub(super) struct Round<'r> {
    pub(super) catalog: &'r Catalog,
    pub(super) superblock: &'r Superblock,
    pub(super) blocks: &'r Blocks,
    /// Blocks of the volume.
    pub(super) total: u64,
    /// Of these, those that the records of regions speak of.
    pub(super) known: u64,
    pub(super) bounds: Bounds,
    pub(super) leaked: LeakedBlocks,
    pub(super) findings: Findings,
    pub(super) report: CheckReport,
    /// `/lost+found`, once something was put there.
    pub(super) lost_and_found: Option<InodeNumber>,
    pub(super) progress: Progress<'r>,
}
