//! Blocks for the catalog, taken from what is free before they are needed: a change is accepted only when
//! the blocks that committing it takes are there, in runs that the catalog can have.

use crate::catalog::{Reserve, Size};
use crate::core::state::{MOST_WAITING, VolumeState, region_of};
use crate::error::{Error, ErrorKind};
use crate::namespace::transaction::{Answers, Stop};
use crate::space::allocator::{REGION_BLOCKS, Want};
use crate::superblock::MAX_CATALOG_RUNS;

/// Blocks in a row that the catalog gets at the least, while there are so many: its runs are few.
const LEAST_IN_A_ROW: u64 = 64;
/// What is ordered at a time is one in so many of the blocks that the catalog has.
const GROWTH: u64 = 16;

/// How much to order where not all can be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// None of it, as far as that is known before.
    All,
    /// As much as there is.
    Some,
}

impl VolumeState {
    /// Sees to it that the next commits have room for what waits and for this, and leave what is kept.
    ///
    /// # Errors
    /// `NoSpace`, when what the catalog has and can get is too little.
    pub(crate) fn make_room_for(
        &mut self,
        more: Size,
        kept: Size,
        reserve: Reserve,
        answers: &Answers,
    ) -> Result<(), Stop> {
        if more == Size::default() {
            return Ok(());
        }
        let has_room = self.has_room_for(more + kept, reserve)?;
        if has_room && self.pending.waiting().changes < MOST_WAITING {
            return Ok(());
        }
        let uncommitted = self.pending.size() + self.to_collect() + self.room.logged();
        match answers.has_waited || uncommitted == Size::default() {
            // A commit makes room, or shows that there is none.
            false => {
                self.wants_checkpoint = true;
                Err(Stop::Uncommitted)
            }
            true if has_room || reserve == Reserve::Use => Ok(()),
            true => {
                let what = "the catalog is full: remove files, or enlarge the volume";
                Err(Error::new(ErrorKind::NoSpace, what).into())
            }
        }
    }

    /// Whether the next commits have room for what waits and for this, with what is ordered for it.
    pub(crate) fn has_room_for(&mut self, more: Size, reserve: Reserve) -> Result<bool, Stop> {
        let waiting = self.pending.size() + self.to_collect();
        let missing = self.room.missing_for(waiting + more, reserve);
        self.order_for_catalog(missing, Order::All)
    }

    /// What the catalog keeps for those who redeem what is promised.
    pub(crate) fn to_redeem(&self) -> Size {
        Size::of_promises(self.allocator.space().promised)
    }

    /// Has so many blocks on their way to the catalog, or tells that there are not so many that it
    /// can have: its runs are few.
    pub(crate) fn order_for_catalog(&mut self, blocks: u64, order: Order) -> Result<bool, Stop> {
        let Self { allocator, pending, superblock, ordered, .. } = self;
        let has: u64 = superblock.catalog.iter().map(|run| run.length).sum();
        let mut in_a_row = (has / GROWTH).clamp(LEAST_IN_A_ROW, REGION_BLOCKS);
        loop {
            let left = blocks.saturating_sub(ordered.blocks());
            if left == 0 {
                return Ok(true);
            }
            let space = allocator.space();
            if order == Order::All && left > space.free.saturating_sub(space.promised) {
                return Ok(false);
            }
            if superblock.catalog.len() + ordered.pieces() >= MAX_CATALOG_RUNS {
                return Ok(false);
            }
            let goal = ordered.runs.last().map(|run| run.end());
            let want = Want { blocks: left.max(in_a_row), least: in_a_row, goal, caller: 0 };
            match allocator.allocate_reserved(want, |region| region_of(pending, region))? {
                Some(run) => ordered.push(run),
                None if in_a_row > 1 => in_a_row /= 2,
                None => return Ok(false),
            }
        }
    }
}
