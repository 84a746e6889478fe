//! One commit: what has changed is taken in one step, and goes to the device in an order that a power
//! cut at any moment leaves whole. `docs/durability.md` has the order and what it guarantees.

use std::sync::Arc;

use uringfs_reactor::quiescence;

use crate::blocks::Run;
use crate::catalog::{Key, Reserve, Table};
use crate::core::blocking::{Who, now};
use crate::core::catalog_order::Order;
use crate::core::group_commit::{Board, Failed};
use crate::core::state::{
    BLOCKS, MANY_WAITING, NEXT_INODE, SUPERBLOCK, Shared, VolumeState, extent_of, region_of,
    region_record,
};
use crate::error::{Error, ErrorKind};
use crate::namespace::transaction::{Answers, Orphan, Stop};
use crate::open_file::open_file::OpenFile;
use crate::records::inode::{Inode, InodeNumber};
use crate::records::overlay::Changes;

/// Of what has lost its last name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Buried {
    All,
    /// The next commit goes on.
    Some,
}

/// What one commit takes.
struct Taken {
    changes: Arc<Changes>,
    /// Blocks that no file has any more.
    freed: Vec<Run>,
    for_catalog: Vec<Run>,
    /// It goes into the catalog's pages.
    is_checkpoint: bool,
}

impl Shared {
    /// Makes durable all that has changed, and what was written before what says where it is.
    pub(crate) fn commit(self: &Arc<Self>, board: &Board) -> Result<(), Failed> {
        let buried = self.bury()?;
        self.load_for_freeing()?;
        let Taken { changes, freed, for_catalog, is_checkpoint } = loop {
            self.grow()?;
            self.order()?;
            let taken = now(self.attempt(Who::Thread, |state, answers| state.take(answers, board)));
            if let Some(taken) = taken? {
                break taken;
            }
        };
        self.blocks.flush().map_err(|errno| Error::io("flushing what was written", errno))?;
        self.extend_catalog(&for_catalog)?;
        let mut batch = changes.to_batch();
        if !for_catalog.is_empty() {
            let superblock = self.state.lock().superblock.clone();
            batch.put(Key::State(SUPERBLOCK), &superblock.note(superblock.generation));
        }
        batch.reserve(Reserve::Use);
        let is_logged = !is_checkpoint && self.catalog.log(&batch)?;
        let committed = if is_logged { Ok(()) } else { self.catalog.commit(&batch) };
        let room = if is_logged { None } else { Some(self.catalog.room()?) };
        {
            let state = &mut *self.state.lock();
            state.room = room.unwrap_or(state.room).beside(self.catalog.logged());
            state.checkpoints += u64::from(!is_logged && committed.is_ok());
            state.ordered.end_commit();
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
        }
        self.release();
        if buried == Buried::Some {
            board.ask(board.next());
        }
        Ok(())
    }

    /// Destroys the orphans that nobody has open any more, as many as one commit has room for. One that
    /// is damaged stays what it is.
    fn bury(self: &Arc<Self>) -> Result<Buried, Error> {
        let (closed, before) = {
            let state = &mut *self.state.lock();
            state.is_burying = true;
            (state.take_closed_orphans(), state.pending.waiting().changes)
        };
        let buried = self.bury_each(closed, before);
        self.state.lock().is_burying = false;
        buried
    }

    fn bury_each(self: &Arc<Self>, mut closed: Vec<Orphan>, before: u64) -> Result<Buried, Error> {
        while let Some(orphan) = closed.pop() {
            let destroyed = self.destroy(orphan, before);
            let what = format!("inode {}, which has no name", orphan.0.0);
            if self.tell_damage(&what, destroyed)? == Some(Buried::Some) {
                closed.push(orphan);
                self.state.lock().orphans.extend(closed);
                return Ok(Buried::Some);
            }
        }
        Ok(Buried::All)
    }

    /// Loads the regions of blocks that are to be freed. Where that cannot be they stay taken.
    fn load_for_freeing(self: &Arc<Self>) -> Result<(), Error> {
        let mut loaded = 0;
        loop {
            let all = now(self.attempt(Who::Thread, |state, _| {
                let VolumeState { allocator, pending, freeing, .. } = state;
                while let Some(run) = freeing.get(loaded) {
                    allocator.load_for(*run, |region| region_of(pending, region))?;
                    loaded += 1;
                }
                Ok(())
            }));
            if all.is_ok() {
                return Ok(());
            }
            let run = self.state.lock().freeing.swap_remove(loaded);
            self.tell_damage(&format!("blocks {run:?} cannot be freed"), all)?;
        }
    }

    /// Damage of what is being freed is told, and costs no more than what is damaged.
    fn tell_damage<T>(&self, what: &str, result: Result<T, Error>) -> Result<Option<T>, Error> {
        match result {
            Err(error) if error.kind() == ErrorKind::Damaged => {
                self.state.lock().flaws.push(error.of(what).to_string());
                Ok(None)
            }
            result => result.map(Some),
        }
    }

    /// Takes an orphan's extents and all else that belongs to it: some records at a time and, where they
    /// are many, in several commits, since as long as there are any it is found again after a crash.
    /// `before` is how much waited before anything was destroyed.
    fn destroy(self: &Arc<Self>, Orphan(number): Orphan, before: u64) -> Result<Buried, Error> {
        for first in [Key::Extent(number.0, 0), Key::Xattr(number.0, b"")] {
            let (table, mut next) = (first.table(), Some(first.bytes()));
            while let Some(from) = next {
                if !self.can_destroy_more(before)? {
                    return Ok(Buried::Some);
                }
                next = now(self.attempt(Who::Thread, |state, answers| {
                    state.destroy_some(table, number, from.clone(), answers)
                }))?;
            }
        }
        let state = &mut *self.state.lock();
        state.open.remove(&number);
        let mut changes = Changes::default();
        changes.delete(Key::Inode(number.0));
        changes.delete(Key::Orphan(number.0));
        state.pending.apply(changes);
        Ok(Buried::All)
    }

    /// Whether the commit that is about to begin takes more of what is destroyed. Something it does, or
    /// there would be no end.
    fn can_destroy_more(self: &Arc<Self>, before: u64) -> Result<bool, Error> {
        now(self.attempt(Who::Thread, |state, _| {
            let waiting = state.pending.waiting().changes;
            let has_room = state.has_room_for(state.to_redeem(), Reserve::Use)?;
            Ok(waiting <= before || waiting < MANY_WAITING && has_room)
        }))
    }

    /// Orders what the catalog is going to need for what waits. Without, commits go on as long as it has
    /// room.
    fn order(self: &Arc<Self>) -> Result<(), Error> {
        now(self.attempt(Who::Thread, |state, _| {
            let wanted = self.catalog.wanted_blocks(state.pending.waiting() + state.to_collect());
            state.order_for_catalog(wanted, Order::Some).map(drop)
        }))
    }

    /// Makes the volume larger, if it is to be. The superblock says so first: after a power cut the
    /// records of regions may speak of fewer blocks, and say of how many.
    fn grow(self: &Arc<Self>) -> Result<(), Error> {
        let (blocks, mut superblock) = {
            let state = self.state.lock();
            let Some(blocks) = state.grows_to else { return Ok(()) };
            (blocks, state.superblock.clone())
        };
        superblock.total_blocks = blocks;
        // Else it may have the one size or the other.
        superblock.write(&self.blocks).map_err(|error| self.catalog.stop(error))?;
        now(self.attempt(Who::Thread, |state, _| {
            let VolumeState { allocator, pending, freeing, .. } = state;
            let left_by_copy = superblock.left_by_copy(state.superblock.total_blocks);
            if let Some(run) = left_by_copy {
                // It goes to another block of this region, which nobody may take in between.
                allocator.load_for(run, |region| region_of(pending, region))?;
            }
            allocator.grow(blocks, |region| region_of(pending, region))?;
            if let Some(run) = left_by_copy {
                for taken in superblock.takes() {
                    allocator.take_free(taken, |region| region_of(pending, region))?;
                }
                freeing.push(run);
            }
            let mut changes = Changes::default();
            changes.put(Key::State(BLOCKS), blocks.to_be_bytes().to_vec());
            changes.put(Key::State(SUPERBLOCK), superblock.note(superblock.generation));
            pending.apply(changes);
            state.set_superblock(superblock.clone());
            state.grows_to = state.grows_to.filter(|wanted| *wanted != blocks);
            Ok(())
        }))
    }

    /// Gives the catalog blocks. The superblock names them before the records of regions count them as
    /// taken: opening takes what the superblock names, whatever the regions say.
    fn extend_catalog(&self, runs: &[Run]) -> Result<(), Error> {
        if runs.is_empty() {
            return Ok(());
        }
        let mut superblock = self.state.lock().superblock.clone();
        self.catalog.extend(&mut superblock, runs)?;
        self.state.lock().set_superblock(superblock);
        Ok(())
    }
}

impl VolumeState {
    /// What this commit takes. Changes made from now on are in the next. Nothing, where the volume is to
    /// become larger first.
    fn take(&mut self, answers: &Answers, board: &Board) -> Result<Option<Taken>, Stop> {
        if self.grows_to.is_some() {
            return Ok(None);
        }
        // First what may have to be asked for.
        let records = self.records(answers);
        let mut inodes: Vec<(InodeNumber, Inode)> = Vec::new();
        let mut lost: Vec<(InodeNumber, Error)> = Vec::new();
        for number in self.dirty.keys() {
            match records.inode(*number) {
                Ok(inode) => inodes.push((*number, inode)),
                // That one file is lost, and no other.
                Err(Stop::Refused(error)) => lost.push((*number, error)),
                Err(stop) => return Err(stop),
            }
        }
        for (number, error) in lost {
            if let Some(file) = self.dirty.remove(&number) {
                file.collect(&mut Changes::default(), 0);
            }
            self.flaws
                .push(error.of(format!("changes of inode {} are lost", number.0)).to_string());
        }
        let Self { allocator, pending, freeing, freed, flaws, .. } = self;
        for run in freeing.iter() {
            allocator.load_for(*run, |region| region_of(pending, region))?;
        }
        for run in freeing.drain(..) {
            match allocator.free(run, |region| region_of(pending, region)) {
                Ok(()) => freed.push(run),
                Err(Stop::Refused(error)) => {
                    flaws.push(error.of(format!("blocks {run:?}")).to_string())
                }
                Err(stop) => return Err(stop),
            }
        }
        let commit = board.begin();
        self.allocated = 0;
        let mut changes = Changes::default();
        for (number, inode) in inodes {
            let file = self.dirty.remove(&number).expect("it was there a moment ago");
            if let Some(newer) = file.collect(&mut changes, commit) {
                let mut inode = inode;
                newer.lay_over(&mut inode);
                changes.put(Key::Inode(number.0), inode.to_record());
            }
        }
        for changed in self.allocator.take_changed() {
            changes.put(Key::Region(changed.index), region_record(&changed));
        }
        self.first_new = self.next_inode;
        changes.put(Key::State(NEXT_INODE), self.next_inode.to_be_bytes().to_vec());
        self.pending.apply(changes);
        // Together with the records of the regions, which count them as taken.
        let for_catalog = self.ordered.begin_commit();
        let (changes, freed) = (self.pending.begin_commit(), std::mem::take(&mut self.freed));
        // What is in the log must have room in the catalog with all that goes there until the next checkpoint.
        let has_room = self.room.missing_for(changes.size(), Reserve::Keep) == 0;
        let is_checkpoint =
            std::mem::take(&mut self.wants_checkpoint) || !has_room || !for_catalog.is_empty();
        Ok(Some(Taken { changes, freed, for_catalog, is_checkpoint }))
    }

    /// Those that nobody has open any more; what was to be collected of them is.
    fn take_closed_orphans(&mut self) -> Vec<Orphan> {
        let mut changes = Changes::default();
        for Orphan(number) in &self.orphans {
            // One that was abandoned changes no more, though its last holder may still be there.
            let is_abandoned = !self.open.contains_key(number);
            let is_closed = |file: &Arc<OpenFile>| is_abandoned || Arc::strong_count(file) == 1;
            if self.dirty.get(number).is_some_and(is_closed)
                && let Some(file) = self.dirty.remove(number)
            {
                file.collect(&mut changes, 0);
            }
        }
        self.pending.apply(changes);
        let (open, closed) = self.orphans.drain(..).partition(|orphan| {
            self.open.get(&orphan.0).is_some_and(|open| open.strong_count() > 0)
        });
        self.orphans = open;
        closed
    }

    /// Destroys some records of an orphan from a key on, and frees the blocks they name; answers where
    /// more may follow.
    fn destroy_some(
        &mut self,
        table: Table,
        number: InodeNumber,
        from: Vec<u8>,
        answers: &Answers,
    ) -> Result<Option<Vec<u8>>, Stop> {
        let (records, next) = self.records(answers).batch(table, number, from)?;
        let (mut changes, mut runs) = (Changes::default(), Vec::new());
        for record in records {
            if table == Table::Extents {
                let (total_blocks, zone) = (self.superblock.total_blocks, &self.system_zone);
                runs.push(extent_of(&record, total_blocks, zone)?.run());
            }
            changes.set(table, record.0.into(), None);
        }
        // All of them or none: a run that is freed while its record stays would be freed twice.
        self.freeing.extend(runs);
        self.pending.apply(changes);
        Ok(next)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Weak;

    use uringfs_buffer::Buffer;
    use uringfs_device::Device;
    use uringfs_device::backend::memory::Memory;
    use uringfs_file::Size as Length;
    use uringfs_reactor::{Reactor, ReactorOptions};

    use super::*;
    use crate::blocks::BLOCK;
    use crate::check::CheckOptions;
    use crate::namespace::open_options::OpenOptions;
    use crate::namespace::path::Follow;
    use crate::namespace::transaction::BATCH;
    use crate::open_file::open_file::Written;
    use crate::volume::format::FormatOptions;
    use crate::volume::volume::Volume;

    #[test]
    fn a_file_that_was_abandoned_gives_its_blocks_back_though_somebody_still_holds_it() {
        let device = Device::new(Memory::new(64 << 20).unwrap()).unwrap();
        Volume::format(&device, &FormatOptions::default()).unwrap();
        let reactor = Reactor::new(ReactorOptions::default()).unwrap();
        let volume = Volume::open_on(device.clone()).unwrap();
        let create = OpenOptions { create: Some(0o600), ..OpenOptions::direct() };
        let file = volume.open("/f", create).unwrap();
        assert_eq!(reactor.block_on(file.write(Buffer::zeroed(1 << 20), 0)).1, Ok(1 << 20));
        let held = volume.shared.state.lock().dirty.values().next().unwrap().clone();
        volume.remove("/f").unwrap();
        drop(file);
        assert!(volume.shared.abandon(&held));
        volume.sync().unwrap();
        assert_eq!(volume.flaws(), [""; 0]);
        drop((held, volume));
        let checked = Volume::check(&device, CheckOptions::default(), &mut |_, _| {}).unwrap();
        assert_eq!(checked.findings.iter().map(ToString::to_string).collect::<Vec<_>>(), [""; 0]);
    }

    #[test]
    fn an_orphan_of_many_extents_is_destroyed_by_several_commits() {
        let device = Device::new(Memory::new(1 << 30).unwrap()).unwrap();
        Volume::format(&device, &FormatOptions::default()).unwrap();
        let reactor = Reactor::new(ReactorOptions::default()).unwrap();
        let open = || Volume::open_on(device.clone()).unwrap();
        let blocks_of = |volume: &Volume| {
            let statistics = volume.statistics();
            statistics.free_blocks + statistics.catalog_blocks
        };
        let volume = open();
        let before = blocks_of(&volume);
        let create = OpenOptions { create: Some(0o600), ..OpenOptions::direct() };
        let file = volume.open("/f", create).unwrap();
        let extents = MANY_WAITING + 10 * BATCH as u64;
        reactor.block_on(file.allocate(0, extents * BLOCK, Length::Extend)).unwrap();
        // What is written and what is not yet lie by turns.
        let mut buffer = Buffer::copy_of(&[7; BLOCK as usize]);
        for block in (0..extents).step_by(2) {
            let (back, written) = reactor.block_on(file.write(buffer, block * BLOCK));
            assert_eq!(written, Ok(BLOCK as usize));
            buffer = back;
        }
        volume.sync().unwrap();
        drop(file);
        volume.remove("/f").unwrap();
        assert_eq!(volume.shared.bury().unwrap(), Buried::Some);
        let waiting = volume.shared.state.lock().pending.waiting().changes;
        assert!(waiting <= MANY_WAITING + 2 * BATCH as u64, "{waiting}");
        drop(volume);
        let volume = open();
        assert_eq!((blocks_of(&volume), volume.flaws()), (before, Vec::new()));
    }

    #[test]
    fn a_file_is_not_longer_for_a_commit_that_does_not_take_its_blocks() {
        let device = Device::new(Memory::new(64 << 20).unwrap()).unwrap();
        Volume::format(&device, &FormatOptions::default()).unwrap();
        let reactor = Reactor::new(ReactorOptions::default()).unwrap();
        let volume = Volume::open_on(device).unwrap();
        let create = OpenOptions { create: Some(0o600), ..OpenOptions::direct() };
        let file = volume.open("/f", create).unwrap();
        reactor.block_on(file.allocate(0, 2 * BLOCK, Length::Keep)).unwrap();
        volume.sync().unwrap();
        let size = || {
            volume.set_attributes("/f", Follow::No, |inode| inode.permissions ^= 1).unwrap();
            volume.sync().unwrap();
            let number = volume.inode("/f", Follow::No).unwrap().0;
            let record = volume.shared.catalog.get(Key::Inode(number.0)).unwrap().unwrap();
            Inode::of_record(&record).unwrap().size
        };
        // As a write goes, with a commit of the attributes in the midst of it.
        let open = volume.shared.state.lock().open.values().find_map(Weak::upgrade).unwrap();
        let noted = open.wrote(0..2 * BLOCK, open.generation(), Written::Now);
        assert_eq!((noted.is_err(), size()), (true, 0));
        volume.wrote(&open, 0..2 * BLOCK, open.generation(), Written::Now);
        assert_eq!(size(), 2 * BLOCK);
    }
}
