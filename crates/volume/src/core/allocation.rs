//! The space of a volume as files take it and give it back, and what may still come when none is left.

use std::ops::Range;
use std::sync::{Arc, Weak};

use rustix::io::Errno;
use uringfs_device::Device;
use uringfs_file::{Generation, Piece, Prepared, Promise, Reservation};
use uringfs_reactor::quiescence;

use crate::blocks::{BLOCK, Run};
use crate::catalog::{Access, EXTENTS_A_STEP, Reserve, Size};
use crate::core::state::{MANY_WAITING, Shared, VolumeState, region_of};
use crate::error::{Error, ErrorKind};
use crate::namespace::transaction::{Answers, Stop};
use crate::open_file::open_file::OpenFile;
use crate::space::allocator::Want;
use crate::space::extent::{Extent, State};

impl Shared {
    /// Has every block of a range lie somewhere, or says what to wait for; unless the file has been emptied since
    /// `begun`. What was promised is redeemed as blocks are taken.
    ///
    /// # Errors
    /// ENOSPC when nothing more can come free; EROFS; what the catalog says.
    pub(crate) fn allocate(
        self: &Arc<Self>,
        file: &Arc<OpenFile>,
        blocks: Range<u64>,
        promise: &mut Promise,
        begun: Generation,
    ) -> Result<Prepared, Errno> {
        if self.access == Access::ReadOnly {
            return Err(Errno::ROFS);
        }
        let tried = {
            let state = &mut *self.state.lock();
            match file.generation() == begun {
                true => self.try_allocate(state, file, blocks, promise),
                // Whoever waits with its bytes finds no place for them, and that it was emptied.
                false => Ok(Prepared::Ready(())),
            }
        };
        self.prepared(tried)
    }

    /// Keeps blocks for bytes of a file whose place is found later, or says what to wait for.
    ///
    /// # Errors
    /// As [`Self::allocate`].
    pub(crate) fn promise(self: &Arc<Self>, bytes: u64) -> Result<Prepared<Promise>, Errno> {
        if self.access == Access::ReadOnly {
            return Err(Errno::ROFS);
        }
        let blocks = bytes.div_ceil(BLOCK);
        let tried = {
            let state = &mut *self.state.lock();
            let kept = Size::of_promises(state.allocator.space().promised + blocks);
            self.make_room(state, 1, kept, blocks, 0).map(|later| match later {
                Some(later) => later,
                None => {
                    state.allocator.promise(blocks);
                    let shared = self.clone();
                    let give_back = move |bytes| {
                        shared.state.lock().allocator.redeem(bytes / BLOCK);
                    };
                    Prepared::Ready(Promise::new(blocks * BLOCK, Arc::new(give_back)))
                }
            })
        };
        self.prepared(tried)
    }

    /// What a file's map answers.
    fn prepared<T>(
        self: &Arc<Self>,
        tried: Result<Prepared<T>, Stop>,
    ) -> Result<Prepared<T>, Errno> {
        match tried {
            Ok(prepared) => Ok(prepared),
            Err(Stop::Refused(error)) => Err(error.errno()),
            Err(Stop::Uncommitted) => Ok(self.after_commit()),
            Err(Stop::Unknown(wanted)) => Ok(Prepared::AfterCommit(self.clone().told(wanted))),
        }
    }

    fn try_allocate(
        &self,
        state: &mut VolumeState,
        file: &Arc<OpenFile>,
        blocks: Range<u64>,
        promise: &mut Promise,
    ) -> Result<Prepared, Stop> {
        loop {
            let holes = file.holes(blocks.clone());
            let wanted: u64 = holes.iter().map(|hole| hole.end - hole.start).sum();
            let promised = wanted.min(promise.bytes() / BLOCK);
            let kept = match promised {
                0 => state.to_redeem(),
                // This is what it was kept for.
                _ => Size::of_redeemed(state.allocator.space().promised - promised),
            };
            // What is only written for the first time is cut out of an unwritten extent.
            let extents = (holes.len() as u64).clamp(1, EXTENTS_A_STEP);
            if let Some(later) = self.make_room(state, extents, kept, wanted, promised)? {
                return Ok(later);
            }
            // Only now: what the catalog has ordered was not among it.
            state.allocator.redeem(promised);
            let made = state.take_blocks(file, holes, EXTENTS_A_STEP);
            let taken = made.iter().flatten().map(|extent| extent.length).sum::<u64>();
            let redeemed = taken.min(promised);
            state.allocator.promise(promised - redeemed);
            promise.redeem(redeemed * BLOCK);
            let made = made?;
            if !made.is_empty() {
                file.insert(&made);
            }
            state.dirty.insert(file.number, file.clone());
            state.allocated += made.len().max(1);
            if state.allocated as u64 > MANY_WAITING {
                self.board.ask(self.board.next());
            }
            if taken == wanted {
                promise.redeem(promise.bytes());
                return Ok(Prepared::Ready(()));
            }
        }
    }

    /// Sees to it that a file can have so many extents more, which leave what the catalog keeps, and so many
    /// blocks, some of which it was promised; or says what to wait for.
    fn make_room<T>(
        &self,
        state: &mut VolumeState,
        extents: u64,
        kept: Size,
        blocks: u64,
        promised: u64,
    ) -> Result<Option<Prepared<T>>, Stop> {
        // First, since it keeps blocks for the catalog.
        let records = Size::of_files(1, extents);
        state.make_room_for(records, kept, Reserve::Keep, &Answers::default())?;
        if state.available() + promised < blocks {
            state.release_quiet(&self.device);
            if state.available() + promised < blocks {
                return self.room_to_come(state, blocks - promised).map(Some);
            }
        }
        Ok(None)
    }

    /// Keeps blocks for a range of a file that is going to lie elsewhere: see [`uringfs_file::Map::reserve`].
    ///
    /// # Errors
    /// As [`Self::allocate`].
    pub(crate) fn reserve(
        self: &Arc<Self>,
        file: &Arc<OpenFile>,
        blocks: Range<u64>,
    ) -> Result<Prepared<Reservation>, Errno> {
        if self.access == Access::ReadOnly {
            return Err(Errno::ROFS);
        }
        let tried = self.try_reserve(&mut self.state.lock(), file, blocks);
        self.prepared(tried)
    }

    fn try_reserve(
        self: &Arc<Self>,
        state: &mut VolumeState,
        file: &OpenFile,
        blocks: Range<u64>,
    ) -> Result<Prepared<Reservation>, Stop> {
        let wanted = blocks.end - blocks.start;
        let kept = state.to_redeem();
        if let Some(later) = self.make_room(state, wanted, kept, wanted, 0)? {
            return Ok(later);
        }
        let made = state.take_blocks(file, vec![blocks], wanted)?;
        let VolumeState { allocator, pending, .. } = state;
        for extent in &made {
            // A commit counts them as free, until something leads to them.
            allocator.free(extent.run(), |region| region_of(pending, region))?;
        }
        state.reserved += wanted;
        let pieces = made.iter().map(|extent| Piece {
            offset: extent.offset * BLOCK,
            address: extent.start * BLOCK,
            length: extent.length * BLOCK,
        });
        let shared = self.clone();
        let give_back = move |pieces: Vec<Piece>| {
            let state = &mut *shared.state.lock();
            for piece in &pieces {
                state.reserved -= piece.length / BLOCK;
                state.allocator.release(extent_at(piece).run());
            }
        };
        Ok(Prepared::Ready(Reservation::new(pieces.collect(), Box::new(give_back))))
    }

    /// Puts what was reserved in its place: see [`uringfs_file::Map::replace`].
    ///
    /// # Errors
    /// As [`Self::allocate`].
    pub(crate) fn replace(
        self: &Arc<Self>,
        file: &Arc<OpenFile>,
        bytes: Range<u64>,
        reserved: &mut Option<Reservation>,
        begun: Generation,
    ) -> Result<Prepared, Errno> {
        let tried = self.try_replace(&mut self.state.lock(), file, bytes, reserved, begun);
        self.prepared(tried)
    }

    fn try_replace(
        &self,
        state: &mut VolumeState,
        file: &Arc<OpenFile>,
        bytes: Range<u64>,
        reserved: &mut Option<Reservation>,
        begun: Generation,
    ) -> Result<Prepared, Stop> {
        // With what is left on both sides.
        let extents = reserved.as_ref().map_or(0, |reserved| reserved.pieces().len()) + 2;
        let (records, kept) = (Size::of_files(1, extents as u64), state.to_redeem());
        state.make_room_for(records, kept, Reserve::Keep, &Answers::default())?;
        if file.generation() != begun {
            return Ok(Prepared::Ready(()));
        }
        let made: Vec<Extent> =
            reserved.take().map_or(Vec::new(), Reservation::take).iter().map(extent_at).collect();
        for extent in &made {
            state.reserved -= extent.length;
            state.allocator.take_back(extent.run());
        }
        let freed = file.replace(&made, bytes.end);
        state.dirty.insert(file.number, file.clone());
        state.allocated += freed.len() + extents;
        state.freeing.extend(freed);
        Ok(Prepared::Ready(()))
    }

    /// What has to end for blocks to come free, if any can.
    fn room_to_come<T>(&self, state: &VolumeState, wanted: u64) -> Result<Prepared<T>, Stop> {
        let pending = state.pending_blocks();
        let has_orphans = state.is_burying || state.has_closed_orphans();
        if !has_orphans && state.available() + pending < wanted {
            return Err(no_space());
        }
        if has_orphans || pending > state.retired_blocks() {
            return Ok(self.after_commit());
        }
        match state.retired.last() {
            Some((epoch, _)) => Ok(Prepared::AfterQuiescence(*epoch)),
            None => Err(no_space()),
        }
    }

    fn after_commit<T>(&self) -> Prepared<T> {
        let board = self.board.clone();
        let next = board.next();
        Prepared::AfterCommit(board.wait_in_task(next))
    }

    /// Cuts a file off, or makes it longer.
    pub(crate) fn set_size(&self, file: &Arc<OpenFile>, bytes: u64) {
        self.give_back(file, |file| file.set_size(bytes));
    }

    /// Empties a file, whoever is writing.
    pub(crate) fn empty(&self, file: &Arc<OpenFile>) {
        self.give_back(file, OpenFile::empty);
    }

    /// Makes a range of blocks of a file a hole.
    pub(crate) fn remove(&self, file: &Arc<OpenFile>, blocks: Range<u64>) {
        self.give_back(file, |file| file.remove(blocks));
    }

    /// Makes free what was freed, is committed, and is read by nobody any more. Where the device is to
    /// hear of it that comes first, without the lock.
    pub(crate) fn release(&self) {
        let quiet = {
            let state = &mut *self.state.lock();
            if !state.discards {
                return state.release_quiet(&self.device);
            }
            state.take_quiet(&self.device)
        };
        let discarded = self.discard(&quiet);
        let state = &mut *self.state.lock();
        if let Err(errno) = discarded {
            state.discards = false;
            state.flaws.push(format!("freed blocks are not discarded any more: {errno}"));
        }
        quiet.into_iter().for_each(|run| state.allocator.release(run));
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

    /// The blocks are free once that is committed and nobody reads them any more.
    fn give_back(&self, file: &Arc<OpenFile>, take: impl FnOnce(&OpenFile) -> Vec<Run>) {
        let state = &mut *self.state.lock();
        state.dirty.insert(file.number, file.clone());
        let runs = take(file);
        // With what is left on both sides.
        state.allocated += runs.len() + 1;
        state.freeing.extend(runs);
    }
}

fn no_space() -> Stop {
    Error::new(ErrorKind::NoSpace, "no block is free").into()
}

/// Where a piece is to lie, written.
fn extent_at(piece: &Piece) -> Extent {
    Extent {
        offset: piece.offset / BLOCK,
        start: piece.address / BLOCK,
        length: piece.length / BLOCK,
        state: State::Written,
    }
}

impl VolumeState {
    /// Blocks that files can have now.
    fn available(&self) -> u64 {
        self.allocator.space().available()
    }

    /// Blocks for the holes of a file, in so many extents at most.
    ///
    /// # Errors
    /// `NoSpace` where there are not enough, with none taken.
    fn take_blocks(
        &mut self,
        file: &OpenFile,
        holes: Vec<Range<u64>>,
        most_extents: u64,
    ) -> Result<Vec<Extent>, Stop> {
        let Self { allocator, pending, .. } = self;
        let mut load = |region| region_of(pending, region);
        let mut made: Vec<Extent> = Vec::new();
        for hole in holes {
            let mut at = hole.start;
            while at < hole.end && (made.len() as u64) < most_extents {
                let goal = match made.last() {
                    Some(extent) if extent.end() == at => Some(extent.start + extent.length),
                    _ => file.goal(at),
                };
                let caller = file.number.0 as usize;
                let want = Want { blocks: hole.end - at, least: 1, goal, caller };
                let found = allocator.allocate_reserved(want, &mut load);
                let Run { start, length } = match found.and_then(|run| run.ok_or_else(no_space)) {
                    Ok(run) => run,
                    Err(stop) => {
                        for extent in &made {
                            // It was allocated a moment ago, and nobody has heard of it.
                            allocator.free(extent.run(), &mut load)?;
                            allocator.release(extent.run());
                        }
                        return Err(stop);
                    }
                };
                made.push(Extent { offset: at, start, length, state: State::Unwritten });
                at += length;
            }
        }
        Ok(made)
    }

    /// Makes free what was freed, committed, and is read by nobody any more; the device does not hear
    /// of what is wanted again at once.
    fn release_quiet(&mut self, device: &Device) {
        for run in self.take_quiet(device) {
            self.allocator.release(run);
        }
    }

    /// What was freed, committed, and is read by nobody any more.
    fn take_quiet(&mut self, device: &Device) -> Vec<Run> {
        let domain = quiescence(device.index());
        let (quiet, busy): (Vec<_>, Vec<_>) =
            self.retired.drain(..).partition(|(epoch, _)| domain.passed(*epoch));
        self.retired = busy;
        quiet.into_iter().flat_map(|(_, runs)| runs).collect()
    }

    /// Blocks that files have given back and that are not free yet.
    pub(crate) fn pending_blocks(&self) -> u64 {
        let freeing: u64 = self.freeing.iter().map(|run| run.length).sum();
        self.allocator.space().pending - self.reserved + freeing
    }

    /// Blocks that are free when what is in flight has ended.
    pub(crate) fn retired_blocks(&self) -> u64 {
        self.retired.iter().flat_map(|(_, runs)| runs).map(|run| run.length).sum()
    }

    /// Whether there are files without a name that the next commit destroys.
    fn has_closed_orphans(&self) -> bool {
        self.orphans.iter().any(|orphan| {
            let holders = self.open.get(&orphan.0).map_or(0, Weak::strong_count);
            holders <= usize::from(self.dirty.contains_key(&orphan.0))
        })
    }
}

#[cfg(test)]
mod tests {
    use uringfs_device::backend::memory::Memory;

    use super::*;
    use crate::namespace::open_options::OpenOptions;
    use crate::volume::format::FormatOptions;
    use crate::volume::volume::Volume;

    #[test]
    fn whoever_waits_for_blocks_takes_none_for_a_file_that_was_emptied_meanwhile() {
        let device = Device::new(Memory::new(64 << 20).unwrap()).unwrap();
        Volume::format(&device, &FormatOptions::default()).unwrap();
        let volume = Volume::open_on(device).unwrap();
        let create = OpenOptions { create: Some(0o600), ..OpenOptions::direct() };
        let _file = volume.open("/f", create).unwrap();
        let shared = &volume.shared;
        let open = shared.state.lock().open.values().find_map(Weak::upgrade).unwrap();
        let space = || shared.state.lock().allocator.space();
        let before = space();
        let Ok(Prepared::Ready(mut promise)) = shared.promise(8 * BLOCK) else { panic!("no room") };
        let begun = open.generation();
        shared.empty(&open);
        let prepared = shared.allocate(&open, 0..8, &mut promise, begun);
        assert!(matches!(prepared, Ok(Prepared::Ready(()))) && open.is_empty());
        drop(promise);
        assert_eq!(space(), before);
        // One that begins now has room.
        let mut none = Promise::default();
        let prepared = shared.allocate(&open, 0..8, &mut none, open.generation());
        assert!(matches!(prepared, Ok(Prepared::Ready(()))) && !open.is_empty());
    }
}
