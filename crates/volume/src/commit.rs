//! One commit: what has changed is taken in one step, and goes to the device in an order that a power
//! cut at any moment leaves whole. `docs/durability.md` has the order and what it guarantees.

use std::sync::Arc;

use uringfs_reactor::quiescence;

use crate::allocator::Want;
use crate::blocks::Run;
use crate::catalog::{Catalog, Key, Reserve, Size};
use crate::changes::Changes;
use crate::committer::{Board, Failed};
use crate::error::{Error, ErrorKind};
use crate::shared::{BLOCKS, NEXT_INODE, Shared, VolumeState, region_of, region_record};
use crate::superblock::MAX_CATALOG_RUNS;

/// Records of a commit besides those of names, inodes and extents: the counter, and regions.
const OTHER_RECORDS: Size = Size { changes: 8, bytes: 8 * 4200 };
/// Blocks in a row that the catalog gets at the least, while there are so many: its runs are few.
const LEAST_IN_A_ROW: u64 = 64;

/// What one commit takes.
struct Taken {
    changes: Arc<Changes>,
    /// Blocks that no file has any more.
    freed: Vec<Run>,
    for_catalog: Vec<Run>,
}

impl Shared {
    /// Makes durable all that has changed, and what was written before what says where it is.
    pub(crate) fn commit(&self, board: &Board) -> Result<(), Failed> {
        let Taken { changes, freed, for_catalog } = self.take(board)?;
        self.blocks.flush().map_err(|errno| Error::io("flushing what was written", errno))?;
        self.extend_catalog(for_catalog)?;
        let mut batch = changes.to_batch();
        if !freed.is_empty() {
            batch.reserve(Reserve::Use);
        }
        let committed = self.catalog.commit(&batch);
        let state = &mut *self.state.lock();
        match committed {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::NoSpace => {
                state.pending.undo_commit();
                state.freed.extend(freed);
                return Err(Failed::Refused(error.errno()));
            }
            Err(error) => return Err(error.into()),
        }
        // Its many records are freed with `changes`, after the lock.
        state.pending.end_commit();
        let epoch = quiescence(self.device.index()).retire();
        state.retired.push((epoch, freed));
        state.release_quiet(&self.device);
        Ok(())
    }

    /// What this commit takes. Changes made from now on are in the next.
    fn take(&self, board: &Board) -> Result<Taken, Error> {
        let state = &mut *self.state.lock();
        let commit = board.begin();
        state.allocated = 0;
        self.grow(state)?;
        for (number, file) in std::mem::take(&mut state.dirty) {
            if let Some(newer) = file.collect(state.pending.current(), commit) {
                let mut records = state.records(&self.catalog);
                let mut inode = records.inode(number)?;
                newer.lay_over(&mut inode);
                records.put_inode(number, &inode);
            }
        }
        // What was only open because it was dirty is not any more.
        state.bury_closed(&self.catalog)?;
        let for_catalog = state.allocate_for_catalog(&self.catalog)?;
        for changed in state.allocator.take_changed() {
            state.pending.current().put(Key::Region(changed.index), region_record(&changed));
        }
        let next = state.next_inode.to_be_bytes().to_vec();
        state.pending.current().put(Key::State(NEXT_INODE), next);
        let changes = state.pending.begin_commit();
        Ok(Taken { changes, freed: std::mem::take(&mut state.freed), for_catalog })
    }

    /// Makes the volume larger, if it is to be. The superblock says so first: after a power cut the
    /// records of regions may speak of fewer blocks, and say of how many. Others wait, since nobody else
    /// may write a superblock meanwhile.
    fn grow(&self, state: &mut VolumeState) -> Result<(), Error> {
        let Some(blocks) = state.grows_to.take() else { return Ok(()) };
        let mut superblock = state.superblock.clone();
        superblock.total_blocks = blocks;
        superblock.write(&self.blocks)?;
        state.superblock = superblock;
        let VolumeState { allocator, pending, .. } = state;
        allocator.grow::<Error>(blocks, |region| region_of(&self.catalog, pending, region))?;
        pending.current().put(Key::State(BLOCKS), blocks.to_be_bytes().to_vec());
        Ok(())
    }

    /// Gives the catalog blocks. The superblock names them before the records of regions count them as
    /// taken: opening takes what the superblock names, whatever the regions say.
    fn extend_catalog(&self, runs: Vec<Run>) -> Result<(), Error> {
        if runs.is_empty() {
            return Ok(());
        }
        let mut superblock = self.state.lock().superblock.clone();
        self.catalog.extend(&mut superblock, &runs)?;
        self.state.lock().superblock = superblock;
        Ok(())
    }
}

impl VolumeState {
    /// Blocks that the catalog is going to need for what waits.
    fn allocate_for_catalog(&mut self, catalog: &Catalog) -> Result<Vec<Run>, Error> {
        let mut left = catalog.wanted_blocks(self.pending.waiting() + OTHER_RECORDS);
        let mut runs = Vec::new();
        let Self { allocator, pending, superblock, .. } = self;
        while left > 0 && superblock.catalog.len() + runs.len() < MAX_CATALOG_RUNS {
            let goal = runs.last().map(|run: &Run| run.end());
            let want = Want { blocks: left, least: left.min(LEAST_IN_A_ROW), goal, caller: 0 };
            let load = |region| region_of(catalog, pending, region);
            // Without them commits go on as long as the catalog has room.
            let Some(run) = allocator.allocate_reserved::<Error>(want, load)? else { break };
            left -= run.length;
            runs.push(run);
        }
        Ok(runs)
    }
}
