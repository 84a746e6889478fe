//! Preallocates blocks for the catalog. A change is accepted only when the blocks that its commit may need are
//! there, in runs that the catalog can take.

use crate::catalog::{BatchSize, Reserve};
use crate::core::state::{MAX_UNCOMMITTED_RECORDS, VolumeState, read_region};
use crate::error::{Error, ErrorKind};
use crate::namespace::transaction::{ReadResults, Retry};
use crate::space::allocator::{AllocationRequest, REGION_BLOCKS};
use crate::superblock::MAX_CATALOG_RUNS;

/// The run to look for in a small catalog, since the superblock names few runs. Shorter ones are taken only when no
/// run is so long.
const PREFERRED_RUN_BLOCKS: u64 = 64;
/// In a large catalog: the catalog's blocks, divided by this.
const GROWTH_DIVISOR: u64 = 16;

/// The behaviour when too few blocks are free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Prealloc {
    /// Allocate nothing if too few blocks are free. Fragmentation may still leave a part.
    AllOrNothing,
    /// Allocate what there is.
    BestEffort,
}

impl VolumeState {
    /// Ensures that the next commits have room for the uncommitted changes and for `more`, and that the room in
    /// `keep_free` stays free.
    ///
    /// # Errors
    /// `NoSpace`, when the catalog is too small and cannot grow enough.
    pub(crate) fn catalog_room_or_retry(
        &mut self,
        more: BatchSize,
        keep_free: BatchSize,
        reserve: Reserve,
        results: &ReadResults,
    ) -> Result<(), Retry> {
        if more == BatchSize::default() {
            return Ok(());
        }
        let has_room = self.preallocate_room(more + keep_free, reserve)?;
        if has_room && self.overlay.current_size().changes < MAX_UNCOMMITTED_RECORDS {
            return Ok(());
        }
        let uncommitted =
            self.overlay.size() + self.uncollected_size() + self.catalog_room.logged_size();
        match results.is_last_try || uncommitted == BatchSize::default() {
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

    /// True if the next commits have room for the uncommitted changes and for `more`. Preallocates what is missing.
    pub(crate) fn preallocate_room(
        &mut self,
        more: BatchSize,
        reserve: Reserve,
    ) -> Result<bool, Retry> {
        let waiting = self.overlay.size() + self.uncollected_size();
        let missing = self.catalog_room.blocks_missing_for(waiting + more, reserve);
        self.preallocate_for_catalog(missing, Prealloc::AllOrNothing)
    }

    /// The room that the catalog keeps for delayed allocation: what redeeming all reservations takes.
    pub(crate) fn delayed_size(&self) -> BatchSize {
        BatchSize::for_delayed_blocks(self.allocator.space().delayed)
    }

    /// Preallocates until `blocks` are on their way to the catalog. False if there are too few blocks, or too
    /// many runs: the superblock names a limited number.
    pub(crate) fn preallocate_for_catalog(
        &mut self,
        blocks: u64,
        prealloc: Prealloc,
    ) -> Result<bool, Retry> {
        let Self { allocator, overlay, superblock, preallocated, .. } = self;
        let has: u64 = superblock.catalog.iter().map(|run| run.length).sum();
        let mut contiguous = (has / GROWTH_DIVISOR).clamp(PREFERRED_RUN_BLOCKS, REGION_BLOCKS);
        loop {
            let left = blocks.saturating_sub(preallocated.blocks());
            if left == 0 {
                return Ok(true);
            }
            let space = allocator.space();
            if prealloc == Prealloc::AllOrNothing && left > space.free.saturating_sub(space.delayed)
            {
                return Ok(false);
            }
            if superblock.catalog.len() + preallocated.run_count() >= MAX_CATALOG_RUNS {
                return Ok(false);
            }
            let goal = preallocated.runs.last().map(|run| run.end());
            let want = AllocationRequest {
                blocks: left.max(contiguous),
                min_blocks: contiguous,
                goal,
                caller: 0,
            };
            match allocator.allocate_reserved(want, |region| read_region(overlay, region))? {
                Some(run) => preallocated.push(run),
                None if contiguous > 1 => contiguous /= 2,
                None => return Ok(false),
            }
        }
    }
}
