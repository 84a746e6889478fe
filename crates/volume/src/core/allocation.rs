//! Blocks for files: allocated, reserved, swapped and freed.
//!
//! 1. A write that does not lie in one written extent calls `VolumeShared::allocate`. Holes get blocks near the
//!    file's last ones, or in a region of the file's own, as unwritten extents. The map is a persistent tree, and
//!    readers have snapshots of it.
//! 2. If too few blocks are free the caller waits, at most a second, for a commit or for quiescence, and tries
//!    again. ENOSPC means that nothing more can become free.
//! 3. When the bytes are on the device, `mark_written` publishes a new snapshot (a reader's view of extents and
//!    size), in which the extents are written and the size covers them. The range is locked meanwhile. Then it
//!    queues the file for the next commit. The largest written extent is published as the hot extent; a file of
//!    many extents also has an extent cache.
//! 4. Freed blocks are pending until the commit that frees them is durable and every request issued before that
//!    has ended (`release`). Then they are discarded, if the volume does that, and allocatable.

use std::ops::Range;
use std::sync::{Arc, Weak};

use uringfs_device::{Device, Errno};
use uringfs_file::{
    AllocOutcome, FileExtent, OutOfPlaceExtents, SpaceReservation, TruncateGeneration,
};
use uringfs_reactor::quiescence;

use crate::blocks::{BLOCK, Run};
use crate::catalog::{Access, BatchSize, EXTENTS_PER_STEP, Reserve};
use crate::core::state::{COMMIT_THRESHOLD_RECORDS, VolumeShared, VolumeState, read_region};
use crate::error::{Error, ErrorKind};
use crate::namespace::transaction::{ReadResults, Retry};
use crate::open_file::open_file::OpenFile;
use crate::space::allocator::AllocationRequest;
use crate::space::extent::{Extent, ExtentState};

impl VolumeShared {
    /// Allocates blocks for every hole in a range, or returns what to wait for. Consumes the reservation as it
    /// allocates. Does nothing if the file was truncated to zero since `generation`.
    ///
    /// # Errors
    /// ENOSPC when no more blocks can become free; EROFS; errors of the catalog.
    pub(crate) fn allocate(
        self: &Arc<Self>,
        file: &Arc<OpenFile>,
        blocks: Range<u64>,
        reservation: &mut SpaceReservation,
        generation: TruncateGeneration,
    ) -> Result<AllocOutcome, Errno> {
        if self.access == Access::ReadOnly {
            return Err(Errno::ROFS);
        }
        let attempt = {
            let state = &mut *self.state.lock();
            match file.generation() == generation {
                true => self.try_allocate(state, file, blocks, reservation),
                // The file was truncated meanwhile: the writer finds that out by the generation.
                false => Ok(AllocOutcome::Ready(())),
            }
        };
        self.outcome(attempt)
    }

    /// Reserves space for bytes whose blocks are allocated later (delayed allocation), or returns what to wait
    /// for. Dropping the reservation gives the space back.
    ///
    /// # Errors
    /// As [`Self::allocate`].
    pub(crate) fn reserve_space(
        self: &Arc<Self>,
        file: &Arc<OpenFile>,
        bytes: u64,
    ) -> Result<AllocOutcome<SpaceReservation>, Errno> {
        if self.access == Access::ReadOnly {
            return Err(Errno::ROFS);
        }
        let blocks = bytes.div_ceil(BLOCK);
        let attempt = {
            let state = &mut *self.state.lock();
            let keep_free = BatchSize::for_delayed_blocks(state.allocator.space().delayed + blocks);
            self.ensure_space(state, 1, keep_free, blocks, 0).map(|wait| match wait {
                Some(wait) => wait,
                None => {
                    state.allocator.reserve_delayed(blocks);
                    file.add_delayed(blocks);
                    let (shared, file) = (self.clone(), Arc::downgrade(file));
                    let unreserve = move |bytes| {
                        shared.state.lock().allocator.release_delayed(bytes / BLOCK);
                        if let Some(file) = file.upgrade() {
                            file.remove_delayed(bytes / BLOCK);
                        }
                    };
                    AllocOutcome::Ready(SpaceReservation::new(blocks * BLOCK, Arc::new(unreserve)))
                }
            })
        };
        self.outcome(attempt)
    }

    /// Converts the result of an attempt for a file's map.
    fn outcome<T>(
        self: &Arc<Self>,
        attempt: Result<AllocOutcome<T>, Retry>,
    ) -> Result<AllocOutcome<T>, Errno> {
        match attempt {
            Ok(prepared) => Ok(prepared),
            Err(Retry::Fail(error)) => Err(error.errno()),
            Err(Retry::NeedsCommit) => Ok(self.after_commit()),
            Err(Retry::NeedsRead(request)) => {
                Ok(AllocOutcome::AfterCommit(self.clone().read_async(request)))
            }
        }
    }

    fn try_allocate(
        &self,
        state: &mut VolumeState,
        file: &Arc<OpenFile>,
        blocks: Range<u64>,
        reservation: &mut SpaceReservation,
    ) -> Result<AllocOutcome, Retry> {
        loop {
            let holes = file.holes(blocks.clone());
            let wanted: u64 = holes.iter().map(|hole| hole.end - hole.start).sum();
            let promised = wanted.min(reservation.bytes() / BLOCK);
            let keep_free = match promised {
                0 => state.delayed_size(),
                // The catalog's pages were reserved for this.
                _ => BatchSize::for_delayed_extents(state.allocator.space().delayed - promised),
            };
            // A block that is written for the first time is cut out of an unwritten extent.
            let extents = (holes.len() as u64).clamp(1, EXTENTS_PER_STEP);
            if let Some(wait) = self.ensure_space(state, extents, keep_free, wanted, promised)? {
                return Ok(wait);
            }
            // Not earlier: the blocks that were just preallocated for the catalog must not come from this reservation.
            state.allocator.release_delayed(promised);
            let allocated = state.allocate_extents(file, holes, EXTENTS_PER_STEP);
            let allocated_blocks =
                allocated.iter().flatten().map(|extent| extent.length).sum::<u64>();
            let redeemed = allocated_blocks.min(promised);
            state.allocator.reserve_delayed(promised - redeemed);
            reservation.redeem(redeemed * BLOCK);
            file.remove_delayed(redeemed);
            let allocated = allocated?;
            if !allocated.is_empty() {
                file.insert(&allocated);
            }
            state.dirty.insert(file.number, file.clone());
            state.changed_extents += allocated.len().max(1);
            if state.changed_extents as u64 > COMMIT_THRESHOLD_RECORDS {
                self.group_commit.request(self.group_commit.next());
            }
            if allocated_blocks == wanted {
                return Ok(AllocOutcome::Ready(()));
            }
        }
    }

    /// Checks for room for `extents` more extents, besides `keep_free`, and for `blocks` blocks, `promised` of which
    /// are already reserved. Returns what to wait for, if there is too little.
    fn ensure_space<T>(
        &self,
        state: &mut VolumeState,
        extents: u64,
        keep_free: BatchSize,
        blocks: u64,
        promised: u64,
    ) -> Result<Option<AllocOutcome<T>>, Retry> {
        // First, because it preallocates blocks for the catalog.
        let records = BatchSize::for_files(1, extents);
        state.catalog_room_or_retry(records, keep_free, Reserve::Keep, &ReadResults::default())?;
        if state.available() + promised < blocks {
            state.release_quiescent(&self.device);
            if state.available() + promised < blocks {
                state.refused_blocks = blocks - promised;
                return self.space_to_wait_for(state, blocks - promised).map(Some);
            }
        }
        Ok(None)
    }

    /// Allocates blocks that will replace a range of a file: see [`uringfs_file::Map::allocate_out_of_place`].
    ///
    /// # Errors
    /// As [`Self::allocate`].
    pub(crate) fn allocate_out_of_place(
        self: &Arc<Self>,
        file: &Arc<OpenFile>,
        blocks: Range<u64>,
    ) -> Result<AllocOutcome<OutOfPlaceExtents>, Errno> {
        if self.access == Access::ReadOnly {
            return Err(Errno::ROFS);
        }
        let attempt = self.try_allocate_out_of_place(&mut self.state.lock(), file, blocks);
        self.outcome(attempt)
    }

    fn try_allocate_out_of_place(
        self: &Arc<Self>,
        state: &mut VolumeState,
        file: &OpenFile,
        blocks: Range<u64>,
    ) -> Result<AllocOutcome<OutOfPlaceExtents>, Retry> {
        let wanted = blocks.end - blocks.start;
        let keep_free = state.delayed_size();
        if let Some(wait) = self.ensure_space(state, wanted, keep_free, wanted, 0)? {
            return Ok(wait);
        }
        let allocated = state.allocate_extents(file, vec![blocks], wanted)?;
        let VolumeState { allocator, overlay, .. } = state;
        for extent in &allocated {
            // A commit counts the blocks as free until an extent names them.
            allocator.free(extent.run(), |region| read_region(overlay, region))?;
        }
        state.out_of_place_blocks += wanted;
        let pieces = allocated.iter().map(|extent| FileExtent {
            offset: extent.offset * BLOCK,
            address: extent.start * BLOCK,
            length: extent.length * BLOCK,
        });
        let shared = self.clone();
        let release = move |pieces: Vec<FileExtent>| {
            let state = &mut *shared.state.lock();
            for piece in &pieces {
                state.out_of_place_blocks -= piece.length / BLOCK;
                state.allocator.release(written_extent(piece).run());
            }
        };
        Ok(AllocOutcome::Ready(OutOfPlaceExtents::new(pieces.collect(), Box::new(release))))
    }

    /// Swaps reserved blocks into a file: see [`uringfs_file::Map::swap_extents`].
    ///
    /// # Errors
    /// As [`Self::allocate`].
    pub(crate) fn swap_extents(
        self: &Arc<Self>,
        file: &Arc<OpenFile>,
        bytes: Range<u64>,
        new_blocks: &mut Option<OutOfPlaceExtents>,
        generation: TruncateGeneration,
    ) -> Result<AllocOutcome, Errno> {
        let attempt =
            self.try_swap_extents(&mut self.state.lock(), file, bytes, new_blocks, generation);
        self.outcome(attempt)
    }

    fn try_swap_extents(
        &self,
        state: &mut VolumeState,
        file: &Arc<OpenFile>,
        bytes: Range<u64>,
        new_blocks: &mut Option<OutOfPlaceExtents>,
        generation: TruncateGeneration,
    ) -> Result<AllocOutcome, Retry> {
        // Plus the remainders on both sides.
        let extents = new_blocks.as_ref().map_or(0, |reserved| reserved.extents().len()) + 2;
        let (records, keep_free) = (BatchSize::for_files(1, extents as u64), state.delayed_size());
        state.catalog_room_or_retry(records, keep_free, Reserve::Keep, &ReadResults::default())?;
        if file.generation() != generation {
            return Ok(AllocOutcome::Ready(()));
        }
        let replacements: Vec<Extent> = new_blocks
            .take()
            .map_or(Vec::new(), OutOfPlaceExtents::take)
            .iter()
            .map(written_extent)
            .collect();
        for extent in &replacements {
            state.out_of_place_blocks -= extent.length;
            state.allocator.cancel_free(extent.run());
        }
        let freed = file.swap_extents(&replacements, bytes.end);
        state.dirty.insert(file.number, file.clone());
        state.changed_extents += freed.len() + extents;
        state.to_free.extend(freed);
        Ok(AllocOutcome::Ready(()))
    }

    /// The event after which blocks become free: a commit, or quiescence.
    ///
    /// # Errors
    /// `NoSpace` when neither frees enough.
    fn space_to_wait_for<T>(
        &self,
        state: &VolumeState,
        wanted: u64,
    ) -> Result<AllocOutcome<T>, Retry> {
        let pending = state.pending_blocks();
        let has_orphans = state.is_reclaiming || state.has_closed_orphans();
        if !has_orphans && state.available() + pending < wanted {
            return Err(no_space());
        }
        if has_orphans || pending > state.retired_blocks() {
            return Ok(self.after_commit());
        }
        match state.retired.last() {
            Some((epoch, _)) => Ok(AllocOutcome::AfterQuiescence(*epoch)),
            None => Err(no_space()),
        }
    }

    fn after_commit<T>(&self) -> AllocOutcome<T> {
        let group_commit = self.group_commit.clone();
        let next = group_commit.next();
        AllocOutcome::AfterCommit(group_commit.wait(next))
    }

    /// Sets a file's size in bytes; frees the blocks beyond a smaller one.
    pub(crate) fn set_size(&self, file: &Arc<OpenFile>, bytes: u64) {
        self.free_extents(file, |file| file.set_size(bytes));
    }

    /// Truncates a file to zero, even with writes in flight.
    pub(crate) fn truncate_to_zero(&self, file: &Arc<OpenFile>) {
        self.free_extents(file, OpenFile::truncate_to_zero);
    }

    /// Punches a hole of whole blocks.
    pub(crate) fn punch_hole(&self, file: &Arc<OpenFile>, blocks: Range<u64>) {
        self.free_extents(file, |file| file.remove(blocks));
    }

    /// Makes blocks allocatable that were freed, are committed and have no reads in flight. Discards them on
    /// the device before that, if the volume does, without the lock.
    pub(crate) fn release(&self) {
        let quiescent = {
            let state = &mut *self.state.lock();
            if !state.discards {
                return state.release_quiescent(&self.device);
            }
            state.take_quiescent(&self.device)
        };
        let discarded = self.discard(&quiescent);
        let state = &mut *self.state.lock();
        if let Err(errno) = discarded {
            state.discards = false;
            state.warnings.push(format!("freed blocks are no longer discarded: {errno}"));
        }
        quiescent.into_iter().for_each(|run| state.allocator.release(run));
    }

    fn discard(&self, runs: &[Run]) -> Result<(), Errno> {
        let mut runs = runs.to_vec();
        runs.sort_unstable_by_key(|run| run.start);
        for row in runs.chunk_by(|one, next| one.end() == next.start) {
            let (start, end) = (row[0].start, row[row.len() - 1].end());
            self.blocks.discard(Run { start, length: end - start })?;
        }
        Ok(())
    }

    /// Applies a change to a file and queues the blocks it freed. They become allocatable after the next commit,
    /// once no read of them is in flight.
    fn free_extents(&self, file: &Arc<OpenFile>, take: impl FnOnce(&OpenFile) -> Vec<Run>) {
        let state = &mut *self.state.lock();
        state.dirty.insert(file.number, file.clone());
        let runs = take(file);
        // Plus the remainders on both sides.
        state.changed_extents += runs.len() + 1;
        state.to_free.extend(runs);
    }
}

fn no_space() -> Retry {
    Error::new(ErrorKind::NoSpace, "no free blocks").into()
}

/// The written extent for a segment of a file.
fn written_extent(piece: &FileExtent) -> Extent {
    Extent {
        offset: piece.offset / BLOCK,
        start: piece.address / BLOCK,
        length: piece.length / BLOCK,
        state: ExtentState::Written,
    }
}

impl VolumeState {
    /// Blocks that files can allocate now.
    pub(crate) fn available(&self) -> u64 {
        self.allocator.space().available()
    }

    /// Allocates blocks for the holes of a file, in at most `max_extents` extents.
    ///
    /// # Errors
    /// `NoSpace` when there are too few; nothing stays allocated.
    fn allocate_extents(
        &mut self,
        file: &OpenFile,
        holes: Vec<Range<u64>>,
        max_extents: u64,
    ) -> Result<Vec<Extent>, Retry> {
        let Self { allocator, overlay, .. } = self;
        let mut load = |region| read_region(overlay, region);
        let mut allocated: Vec<Extent> = Vec::new();
        for hole in holes {
            let mut at = hole.start;
            while at < hole.end && (allocated.len() as u64) < max_extents {
                let goal = match allocated.last() {
                    Some(extent) if extent.end() == at => Some(extent.start + extent.length),
                    _ => file.goal(at),
                };
                let caller = file.number.0 as usize;
                let want = AllocationRequest { blocks: hole.end - at, min_blocks: 1, goal, caller };
                let found = allocator.allocate_reserved(want, &mut load);
                let Run { start, length } = match found.and_then(|run| run.ok_or_else(no_space)) {
                    Ok(run) => run,
                    Err(retry) => {
                        for extent in &allocated {
                            // It was allocated a moment ago, and no record or reader knows it.
                            allocator.free(extent.run(), &mut load)?;
                            allocator.release(extent.run());
                        }
                        return Err(retry);
                    }
                };
                allocated.push(Extent { offset: at, start, length, state: ExtentState::Unwritten });
                at += length;
            }
        }
        Ok(allocated)
    }

    /// Makes freed, committed and quiescent blocks allocatable, without a discard: they are needed at once.
    fn release_quiescent(&mut self, device: &Device) {
        for run in self.take_quiescent(device) {
            self.allocator.release(run);
        }
    }

    /// Takes the runs that were freed, are committed and have no reads in flight.
    fn take_quiescent(&mut self, device: &Device) -> Vec<Run> {
        if self.retired.is_empty() {
            return Vec::new();
        }
        let earliest = quiescence(device.index()).earliest();
        let (quiescent, busy): (Vec<_>, Vec<_>) =
            self.retired.drain(..).partition(|(epoch, _)| *epoch < earliest);
        self.retired = busy;
        quiescent.into_iter().flat_map(|(_, runs)| runs).collect()
    }

    /// Blocks that files have freed and that are not allocatable yet.
    pub(crate) fn pending_blocks(&self) -> u64 {
        let to_free: u64 = self.to_free.iter().map(|run| run.length).sum();
        self.allocator.space().pending - self.out_of_place_blocks + to_free
    }

    /// Blocks that become allocatable when reads in flight have ended.
    pub(crate) fn retired_blocks(&self) -> u64 {
        self.retired.iter().flat_map(|(_, runs)| runs).map(|run| run.length).sum()
    }

    /// True if the next commit has orphans to reclaim: files without a name that no handle has open and
    /// nothing pins.
    pub(crate) fn has_closed_orphans(&self) -> bool {
        self.orphans.iter().any(|orphan| {
            let holders = self.open.get(&orphan.0).map_or(0, Weak::strong_count);
            !self.pins.contains(orphan.0)
                && holders <= usize::from(self.dirty.contains_key(&orphan.0))
        })
    }
}

#[cfg(test)]
mod tests {
    use uringfs_device::backend::memory::Memory;

    use super::*;
    use crate::namespace::open_options::OpenOptions;
    use crate::volume::options::FormatOptions;
    use crate::volume::volume::Volume;

    #[test]
    fn a_write_older_than_a_truncate_allocates_nothing() {
        let device = Device::new(Memory::new(64 << 20).unwrap()).unwrap();
        Volume::format(&device, &FormatOptions::default()).unwrap();
        let volume = Volume::open_on(device).unwrap();
        let create =
            OpenOptions::new().read(true).write(true).create(true).mode(0o600).direct(true);
        let _file = volume.open_with("/f", create).unwrap();
        let shared = &volume.shared;
        let open = shared.state.lock().open.values().find_map(Weak::upgrade).unwrap();
        let space = || shared.state.lock().allocator.space();
        let before = space();
        let Ok(AllocOutcome::Ready(mut reservation)) = shared.reserve_space(&open, 8 * BLOCK)
        else {
            panic!("no room")
        };
        let generation = open.generation();
        shared.truncate_to_zero(&open);
        let prepared = shared.allocate(&open, 0..8, &mut reservation, generation);
        assert!(matches!(prepared, Ok(AllocOutcome::Ready(()))) && open.is_empty());
        drop(reservation);
        assert_eq!(space(), before);
        // A write that begins now gets blocks.
        let mut none = SpaceReservation::default();
        let prepared = shared.allocate(&open, 0..8, &mut none, open.generation());
        assert!(matches!(prepared, Ok(AllocOutcome::Ready(()))) && !open.is_empty());
    }
}
