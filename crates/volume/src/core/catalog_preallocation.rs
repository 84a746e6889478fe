//! Blocks for the catalog, taken from what is free before they are needed: a change is accepted only when
//! the blocks that committing it takes are there, in runs that the catalog can have.

use crate::catalog::{Reserve, Size};
use crate::core::state::{MAX_UNCOMMITTED_RECORDS, VolumeState, read_region};
use crate::error::{Error, ErrorKind};
use crate::namespace::transaction::{ReadResults, Retry};
use crate::space::allocator::{REGION_BLOCKS, Want};
use crate::superblock::MAX_CATALOG_RUNS;

/// Blocks in a row that the catalog gets at the least, while there are so many: its runs are few.
const MIN_CONTIGUOUS_BLOCKS: u64 = 64;
/// What is ordered at a time is one in so many of the blocks that the catalog has.
const GROWTH_SHARE: u64 = 16;

/// How much to order where not all can be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Prealloc {
    /// None of it, as far as that is known before.
    AllOrNothing,
    /// As much as there is.
    BestEffort,
}

impl VolumeState {
    /// Sees to it that the next commits have room for what waits and for this, and leave what is kept.
    ///
    /// # Errors
    /// `NoSpace`, when what the catalog has and can get is too little.
    pub(crate) fn require_catalog_room(
        &mut self,
        more: Size,
        kept: Size,
        reserve: Reserve,
        results: &ReadResults,
    ) -> Result<(), Retry> {
        if more == Size::default() {
            return Ok(());
        }
        let has_room = self.reserve_catalog_room(more + kept, reserve)?;
        if has_room && self.overlay.waiting().changes < MAX_UNCOMMITTED_RECORDS {
            return Ok(());
        }
        let uncommitted =
            self.overlay.size() + self.uncollected_size() + self.catalog_room.logged();
        match results.is_last_try || uncommitted == Size::default() {
            // A commit makes room, or shows that there is none.
            false => {
                self.wants_checkpoint = true;
                Err(Retry::NeedsCommit)
            }
            true if has_room || reserve == Reserve::Use => Ok(()),
            true => {
                let what = "the catalog is full: remove files, or enlarge the volume";
                Err(Error::new(ErrorKind::NoSpace, what).into())
            }
        }
    }

    /// Whether the next commits have room for what waits and for this, with what is ordered for it.
    pub(crate) fn reserve_catalog_room(
        &mut self,
        more: Size,
        reserve: Reserve,
    ) -> Result<bool, Retry> {
        let waiting = self.overlay.size() + self.uncollected_size();
        let missing = self.catalog_room.missing_for(waiting + more, reserve);
        self.preallocate_for_catalog(missing, Prealloc::AllOrNothing)
    }

    /// What the catalog keeps for those who redeem what is promised.
    pub(crate) fn reserved_size(&self) -> Size {
        Size::of_promises(self.allocator.space().promised)
    }

    /// Has so many blocks on their way to the catalog, or tells that there are not so many that it
    /// can have: its runs are few.
    pub(crate) fn preallocate_for_catalog(
        &mut self,
        blocks: u64,
        prealloc: Prealloc,
    ) -> Result<bool, Retry> {
        let Self { allocator, overlay, superblock, preallocated, .. } = self;
        let has: u64 = superblock.catalog.iter().map(|run| run.length).sum();
        let mut contiguous = (has / GROWTH_SHARE).clamp(MIN_CONTIGUOUS_BLOCKS, REGION_BLOCKS);
        loop {
            let left = blocks.saturating_sub(preallocated.blocks());
            if left == 0 {
                return Ok(true);
            }
            let space = allocator.space();
            if prealloc == Prealloc::AllOrNothing
                && left > space.free.saturating_sub(space.promised)
            {
                return Ok(false);
            }
            if superblock.catalog.len() + preallocated.run_count() >= MAX_CATALOG_RUNS {
                return Ok(false);
            }
            let goal = preallocated.runs.last().map(|run| run.end());
            let want = Want { blocks: left.max(contiguous), least: contiguous, goal, caller: 0 };
            match allocator.allocate_reserved(want, |region| read_region(overlay, region))? {
                Some(run) => preallocated.push(run),
                None if contiguous > 1 => contiguous /= 2,
                None => return Ok(false),
            }
        }
    }
}
