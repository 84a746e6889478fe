//! The shared state of the passes in one round of a check.

use super::findings::Findings;
use super::report::{CheckReport, CheckStep};
use crate::blocks::BlockIo;
use crate::catalog::Catalog;
use crate::error::Error;
use crate::records::inode::InodeNumber;
use crate::superblock::Superblock;
use crate::volume::open_catalog::known_blocks;

/// Limits of memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Inodes that are counted in one pass over the names.
    pub(super) inodes: usize,
    /// Blocks that are checked in one pass over the extents; a multiple of a region's.
    pub(super) blocks: u64,
}

impl Default for Bounds {
    fn default() -> Bounds {
        // 64 MiB each.
        Bounds { inodes: 1 << 21, blocks: 1 << 29 }
    }
}

/// A callback for progress: the step, and a count in its unit.
pub(crate) type Progress<'p> = &'p mut dyn FnMut(CheckStep, u64) -> Result<(), Error>;

/// The treatment of leaked blocks in a repair. A leaked block is neither free nor in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LeakedBlocks {
    /// Frees them.
    Free,
    /// Keeps them: they may belong to files whose extents could not be read.
    Keep,
}

/// One round over the whole catalog.
pub(super) struct Round<'r> {
    pub(super) catalog: &'r Catalog,
    pub(super) superblock: &'r Superblock,
    pub(super) blocks: &'r BlockIo,
    /// Blocks of the volume.
    pub(super) total: u64,
    /// Blocks that the records of regions cover.
    pub(super) known: u64,
    pub(super) bounds: Bounds,
    pub(super) leaked: LeakedBlocks,
    pub(super) findings: Findings,
    pub(super) report: CheckReport,
    /// `/lost+found`, once a repair has put a file there.
    pub(super) lost_and_found: Option<InodeNumber>,
    pub(super) progress: Progress<'r>,
}

impl<'r> Round<'r> {
    pub(super) fn new(
        catalog: &'r Catalog,
        superblock: &'r Superblock,
        blocks: &'r BlockIo,
        bounds: Bounds,
        leaked: LeakedBlocks,
        findings: Findings,
        progress: Progress<'r>,
    ) -> Result<Round<'r>, Error> {
        let total = superblock.total_blocks;
        Ok(Round {
            catalog,
            superblock,
            blocks,
            total,
            known: known_blocks(catalog, total)?,
            bounds,
            leaked,
            findings,
            report: CheckReport::default(),
            lost_and_found: None,
            progress,
        })
    }
}
