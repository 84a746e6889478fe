//! One commit: takes all changes in one step, and writes them in an order that is consistent after a power cut
//! at any point. `docs/durability.md` has the order and its guarantees.

use std::sync::Arc;

use uringfs_reactor::quiescence;

use crate::blocks::Run;
use crate::catalog::{Key, Reserve, Table};
use crate::core::blocking::{WaitMode, run_blocking};
use crate::core::catalog_preallocation::Prealloc;
use crate::core::group_commit::{CommitError, GroupCommit};
use crate::core::state::{
    BLOCKS_KEY, COMMIT_THRESHOLD_RECORDS, NEXT_INODE_KEY, SUPERBLOCK_KEY, VolumeShared,
    VolumeState, encode_region, read_region, validated_extent,
};
use crate::error::{Error, ErrorKind};
use crate::namespace::transaction::{Orphan, ReadResults, Retry};
use crate::open_file::open_file::OpenFile;
use crate::records::inode::{Inode, InodeNumber};
use crate::records::overlay::{ChangeSet, NO_COMMIT};

/// Records that are cached under one lock.
const CACHED_AT_ONCE: usize = 256;

/// Whether a commit has reclaimed all closed orphans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reclaimed {
    All,
    /// The next commit goes on.
    Partial,
}

/// The outcome when a commit takes the changes.
pub(super) enum Collected {
    Changes(CommitSet),
    /// The volume must grow first.
    MustGrow,
    /// The inodes of these changed files are not in memory, and those of others are damaged.
    MissingInodes {
        missing: Vec<InodeNumber>,
        damaged: Vec<(InodeNumber, Error)>,
    },
    /// Regions of the blocks to free are not in memory, or damaged.
    MissingRegions,
}

/// The changes that one commit takes.
pub(super) struct CommitSet {
    changes: Arc<ChangeSet>,
    /// Blocks that no file uses any more.
    freed: Vec<Run>,
    catalog_growth: Vec<Run>,
    /// The changes go into the catalog's pages, together with all log records.
    must_checkpoint: bool,
    /// The catalog has little room, an operation waits for some, or the volume is closing.
    needs_room: bool,
}

impl VolumeShared {
    /// Makes all changes durable, unless the device has become too small for the volume: then what was written before may
    /// be gone, and nothing is acknowledged. Blocks the thread.
    pub(crate) fn commit(self: &Arc<Self>, group_commit: &GroupCommit) -> Result<(), CommitError> {
        let check_size = || self.size_watch.check().map_err(|_| CommitError::Stopped);
        check_size()?;
        self.commit_changes(group_commit)?;
        check_size()
    }

    /// Makes all changes durable: file data first, then the metadata that refer to them.
    fn commit_changes(self: &Arc<Self>, group_commit: &GroupCommit) -> Result<(), CommitError> {
        let reclaimed = self.reclaim_orphans()?;
        self.load_regions_to_free()?;
        let CommitSet { changes, freed, catalog_growth, must_checkpoint, needs_room } = loop {
            self.grow()?;
            self.preallocate()?;
            let collected = self.state.lock().collect(group_commit)?;
            match collected {
                Collected::Changes(taken) => break taken,
                Collected::MustGrow => {}
                Collected::MissingInodes { missing, damaged } => {
                    damaged
                        .into_iter()
                        .for_each(|(number, error)| self.lose_changes(number, error));
                    self.load_changed_inodes(missing)?;
                }
                Collected::MissingRegions => self.load_regions_to_free()?,
            }
        };
        if needs_room {
            // A check that begins again is better than an operation that fails.
            self.catalog.release_pins();
        }
        self.blocks.flush().map_err(|errno| Error::io("flushing file data", errno))?;
        // A flush that failed elsewhere may have lost the data, and this one succeeded nevertheless.
        if group_commit.has_failed() {
            return Err(CommitError::Stopped);
        }
        self.extend_catalog(&catalog_growth)?;
        let mut batch = changes.to_batch();
        if !catalog_growth.is_empty() {
            let superblock = self.state.lock().superblock.clone();
            batch.put(Key::State(SUPERBLOCK_KEY), &superblock.identity(superblock.generation));
        }
        batch.set_reserve(Reserve::Use);
        let is_logged = !must_checkpoint && self.catalog.append_to_log(&batch)?;
        let committed = if is_logged { Ok(()) } else { self.catalog.checkpoint(&batch) };
        let room = if is_logged { None } else { Some(self.catalog.page_budget()?) };
        {
            let state = &mut *self.state.lock();
            state.catalog_room =
                room.unwrap_or(state.catalog_room).with_logged(self.catalog.logged_size());
            state.checkpoints += u64::from(!is_logged && committed.is_ok());
            state.preallocated.end_commit();
            match committed {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::NoSpace => {
                    state.overlay.undo_commit();
                    state.freed.extend(freed);
                    return Err(CommitError::CatalogFull(error.errno()));
                }
                Err(error) => return Err(error.into()),
            }
        }
        self.cache_committed(&changes);
        {
            let state = &mut *self.state.lock();
            // The overlay's many records are dropped with `changes`, after the lock.
            state.overlay.end_commit();
            let epoch = quiescence(self.device.index()).retire();
            state.retired.push((epoch, freed));
        }
        self.release();
        if reclaimed == Reclaimed::Partial {
            group_commit.request(group_commit.next());
        }
        Ok(())
    }

    /// Keeps committed records in memory. Takes the lock for a few at a time, so that no operation waits for all of them.
    fn cache_committed(&self, changes: &ChangeSet) {
        let mut records = changes.to_cache().peekable();
        while records.peek().is_some() {
            self.state.lock().overlay.insert_committed(records.by_ref().take(CACHED_AT_ONCE));
        }
    }

    /// Reclaims the orphans that no handle has open, as many as one commit has room for. A damaged orphan stays
    /// as it is.
    fn reclaim_orphans(self: &Arc<Self>) -> Result<Reclaimed, Error> {
        let (closed, before) = {
            let state = &mut *self.state.lock();
            state.is_reclaiming = true;
            (state.take_closed_orphans(), state.overlay.current_size().changes)
        };
        let reclaimed = self.reclaim_each(closed, before);
        self.state.lock().is_reclaiming = false;
        reclaimed
    }

    fn reclaim_each(
        self: &Arc<Self>,
        mut closed: Vec<Orphan>,
        before: u64,
    ) -> Result<Reclaimed, Error> {
        while let Some(orphan) = closed.pop() {
            let reclaimed = self.reclaim(orphan, before);
            let what = format!("inode {}, which has no name", orphan.0.0);
            if self.warn_if_damaged(&what, reclaimed)? == Some(Reclaimed::Partial) {
                closed.push(orphan);
                self.state.lock().orphans.extend(closed);
                return Ok(Reclaimed::Partial);
            }
        }
        Ok(Reclaimed::All)
    }

    /// Loads the regions of the blocks to free. The blocks of a damaged region stay allocated.
    pub(super) fn load_regions_to_free(self: &Arc<Self>) -> Result<(), Error> {
        let mut loaded = 0;
        loop {
            let all = run_blocking(self.with_retries(WaitMode::Blocking, |state, _| {
                let VolumeState { allocator, overlay, to_free, .. } = state;
                while let Some(run) = to_free.get(loaded) {
                    allocator.load_regions(*run, |region| read_region(overlay, region))?;
                    loaded += 1;
                }
                Ok(())
            }));
            if all.is_ok() {
                return Ok(());
            }
            let run = self.state.lock().to_free.swap_remove(loaded);
            self.warn_if_damaged(&format!("blocks {run:?} cannot be freed"), all)?;
        }
    }

    /// Turns damage into a warning and `None`, so that it affects nothing but the damaged record.
    fn warn_if_damaged<T>(&self, what: &str, result: Result<T, Error>) -> Result<Option<T>, Error> {
        match result {
            Err(error) if error.kind() == ErrorKind::Damaged => {
                self.state.lock().warnings.push(error.context(what).to_string());
                Ok(None)
            }
            result => result.map(Some),
        }
    }

    /// Reclaims an orphan: its extents, its extended attributes, then its inode, a chunk of records at a time. Large
    /// ones take several commits: while a record is left, the orphan is found again after a crash. `before` is the
    /// number of uncommitted changes from before the first orphan.
    fn reclaim(self: &Arc<Self>, Orphan(number): Orphan, before: u64) -> Result<Reclaimed, Error> {
        for first in [Key::Extent(number.0, 0), Key::Xattr(number.0, b"")] {
            let (table, mut next) = (first.table(), Some(first.bytes()));
            while let Some(from) = next {
                if !self.can_reclaim_more(before)? {
                    return Ok(Reclaimed::Partial);
                }
                next = run_blocking(self.with_retries(WaitMode::Blocking, |state, results| {
                    state.reclaim_chunk(table, number, from.clone(), results)
                }))?;
            }
        }
        let state = &mut *self.state.lock();
        state.open.remove(&number);
        let mut changes = ChangeSet::default();
        changes.delete(Key::Inode(number.0));
        changes.delete(Key::Orphan(number.0));
        state.overlay.apply(changes);
        Ok(Reclaimed::All)
    }

    /// True if the next commit has room to reclaim more. It always reclaims something, so that there is progress.
    fn can_reclaim_more(self: &Arc<Self>, before: u64) -> Result<bool, Error> {
        run_blocking(self.with_retries(WaitMode::Blocking, |state, _| {
            let waiting = state.overlay.current_size().changes;
            let has_room = state.preallocate_room(state.delayed_size(), Reserve::Use)?;
            Ok(waiting <= before || waiting < COMMIT_THRESHOLD_RECORDS && has_room)
        }))
    }

    /// Preallocates the blocks that the catalog will need for the uncommitted changes. If there are too few, commits
    /// succeed as long as the catalog has room.
    fn preallocate(self: &Arc<Self>) -> Result<(), Error> {
        run_blocking(self.with_retries(WaitMode::Blocking, |state, _| {
            let wanted =
                self.catalog.wanted_blocks(state.overlay.current_size() + state.uncollected_size());
            state.preallocate_for_catalog(wanted, Prealloc::BestEffort).map(drop)
        }))
    }

    /// Enlarges the volume, if that was requested. The superblock is written first: after a power cut it
    /// may have more blocks than the records of regions cover. The record [`BLOCKS_KEY`] has the number that they cover.
    fn grow(self: &Arc<Self>) -> Result<(), Error> {
        let (blocks, mut superblock) = {
            let mut state = self.state.lock();
            let Some(blocks) = state.grow_target else { return Ok(()) };
            if blocks > self.blocks.count() {
                // The device has shrunk again. `Volume::resize` finds the volume as it was.
                state.grow_target = None;
                return Ok(());
            }
            (blocks, state.superblock.clone())
        };
        superblock.total_blocks = blocks;
        self.size_watch.set_blocks(blocks);
        self.catalog.write_superblock(&mut superblock)?;
        run_blocking(self.with_retries(WaitMode::Blocking, |state, _| {
            let VolumeState { allocator, overlay, to_free, .. } = state;
            let previous_backup = superblock.previous_backup(state.superblock.total_blocks);
            if let Some(run) = previous_backup {
                // The backup superblock moves to another block of this region: no allocation may take that in between.
                allocator.load_regions(run, |region| read_region(overlay, region))?;
            }
            allocator.grow(blocks, |region| read_region(overlay, region))?;
            if let Some(run) = previous_backup {
                for taken in superblock.system_runs() {
                    allocator.claim_free(taken, |region| read_region(overlay, region))?;
                }
                to_free.push(run);
            }
            let mut changes = ChangeSet::default();
            changes.put(Key::State(BLOCKS_KEY), blocks.to_be_bytes().to_vec());
            changes.put(Key::State(SUPERBLOCK_KEY), superblock.identity(superblock.generation));
            overlay.apply(changes);
            state.set_superblock(superblock.clone());
            state.grow_target = state.grow_target.filter(|wanted| *wanted != blocks);
            Ok(())
        }))
    }

    /// Adds blocks to the catalog. The superblock names them before the records of regions count them as
    /// allocated: opening trusts the superblock over the regions.
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
    /// Takes the changes for this commit; later changes go into the next. Nothing is taken if something is missing.
    pub(super) fn collect(&mut self, group_commit: &GroupCommit) -> Result<Collected, Error> {
        if self.grow_target.is_some() {
            return Ok(Collected::MustGrow);
        }
        let no_reads = ReadResults::default();
        let transaction = self.transaction(&no_reads);
        let mut inodes: Vec<(InodeNumber, Inode)> = Vec::new();
        let (mut missing, mut damaged) = (Vec::new(), Vec::new());
        for number in self.dirty.keys() {
            match transaction.inode(*number) {
                Ok(inode) => inodes.push((*number, inode)),
                Err(Retry::Fail(error)) => damaged.push((*number, error)),
                Err(_) => missing.push(*number),
            }
        }
        if !missing.is_empty() || !damaged.is_empty() {
            return Ok(Collected::MissingInodes { missing, damaged });
        }
        let Self { allocator, overlay, to_free, freed, warnings, .. } = self;
        let mut load = |run: &Run| {
            let loaded: Result<(), Retry> =
                allocator.load_regions(*run, |region| read_region(overlay, region));
            loaded.is_ok()
        };
        if !to_free.iter().all(&mut load) {
            return Ok(Collected::MissingRegions);
        }
        for run in to_free.drain(..) {
            match allocator.free(run, |region| read_region(overlay, region)) {
                Ok(()) => freed.push(run),
                Err(Retry::Fail(error)) => {
                    warnings.push(error.context(format!("blocks {run:?}")).to_string())
                }
                Err(_) => unreachable!("its regions are in memory"),
            }
        }
        let commit = group_commit.begin();
        self.changed_extents = 0;
        let mut changes = ChangeSet::default();
        for (number, inode) in inodes {
            let file = self.dirty.remove(&number).expect("the file was dirty a moment ago");
            if let Some(delta) = file.take_changes(&mut changes, commit) {
                let mut inode = inode;
                delta.apply_to(&mut inode);
                changes.put(Key::Inode(number.0), inode.to_record());
            }
        }
        for changed in self.allocator.take_changed() {
            changes.put(Key::Region(changed.index), encode_region(&changed));
        }
        self.first_uncommitted_inode = self.next_inode;
        changes.put(Key::State(NEXT_INODE_KEY), self.next_inode.to_be_bytes().to_vec());
        self.overlay.apply(changes);
        // In one commit with the records of the regions, which count these blocks as allocated.
        let catalog_growth = self.preallocated.begin_commit();
        let (changes, freed) = (self.overlay.begin_commit(), std::mem::take(&mut self.freed));
        // Free pages must suffice for the logged changes plus this commit.
        let has_room = self.catalog_room.blocks_missing_for(changes.size(), Reserve::Keep) == 0;
        let needs_room = std::mem::take(&mut self.wants_checkpoint) || !has_room;
        let must_checkpoint = needs_room || !catalog_growth.is_empty();
        let taken = CommitSet { changes, freed, catalog_growth, must_checkpoint, needs_room };
        Ok(Collected::Changes(taken))
    }

    /// Takes the orphans that no handle has open and nothing pins, and moves their uncommitted changes into the overlay.
    fn take_closed_orphans(&mut self) -> Vec<Orphan> {
        let mut changes = ChangeSet::default();
        for Orphan(number) in &self.orphans {
            // A retired file changes no more, though its last holder may still be there.
            let is_retired = !self.open.contains_key(number);
            let is_closed = |file: &Arc<OpenFile>| is_retired || Arc::strong_count(file) == 1;
            if !self.pins.contains(*number)
                && self.dirty.get(number).is_some_and(is_closed)
                && let Some(file) = self.dirty.remove(number)
            {
                file.take_changes(&mut changes, NO_COMMIT);
            }
        }
        self.overlay.apply(changes);
        let (open, closed) = self.orphans.drain(..).partition(|orphan| {
            self.pins.contains(orphan.0)
                || self.open.get(&orphan.0).is_some_and(|open| open.strong_count() > 0)
        });
        self.orphans = open;
        closed
    }

    /// Deletes a chunk of an orphan's records from a key on, and queues their blocks to be freed. Returns the key
    /// where more may follow.
    fn reclaim_chunk(
        &mut self,
        table: Table,
        number: InodeNumber,
        from: Vec<u8>,
        results: &ReadResults,
    ) -> Result<Option<Vec<u8>>, Retry> {
        let (records, next) = self.transaction(results).chunk(table, number, from)?;
        let (mut changes, mut runs) = (ChangeSet::default(), Vec::new());
        for record in records {
            if table == Table::Extents {
                let (total_blocks, zone) = (self.superblock.total_blocks, &self.system_zone);
                runs.push(validated_extent(&record, total_blocks, zone)?.run());
            }
            changes.set(table, record.0.into(), None);
        }
        // All of them or none: if a run were freed while its record stays, it would be freed twice.
        self.to_free.extend(runs);
        self.overlay.apply(changes);
        Ok(next)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Weak;

    use uringfs_buffer::Buffer;
    use uringfs_device::Device;
    use uringfs_device::backend::memory::Memory;
    use uringfs_file::FallocateSize as Length;
    use uringfs_reactor::{Reactor, ReactorOptions};

    use super::*;
    use crate::blocks::BLOCK;
    use crate::check::CheckOptions;
    use crate::namespace::open_options::OpenOptions;
    use crate::namespace::path::Follow;
    use crate::namespace::transaction::CHUNK_RECORDS;
    use crate::volume::options::FormatOptions;
    use crate::volume::volume::Volume;
    use uringfs_file::WriteOrigin;

    #[test]
    fn a_retired_file_frees_its_blocks_while_still_referenced() {
        let device = Device::new(Memory::new(64 << 20).unwrap()).unwrap();
        Volume::format(&device, &FormatOptions::default()).unwrap();
        let reactor = Reactor::new(ReactorOptions::default()).unwrap();
        let volume = Volume::open_on(device.clone()).unwrap();
        let create =
            OpenOptions::new().read(true).write(true).create(true).mode(0o600).direct(true);
        let file = volume.open_with("/f", create).unwrap();
        assert_eq!(reactor.block_on(file.write_at(Buffer::zeroed(1 << 20), 0)).0, Ok(1 << 20));
        let held = volume.shared.state.lock().dirty.values().next().unwrap().clone();
        volume.remove_file("/f").unwrap();
        drop(file);
        let pin = volume.shared.state.lock().pins.pin(held.number);
        assert!(!volume.shared.retire_if_unlinked(&held), "it can still be found by number");
        drop(pin);
        assert!(volume.shared.retire_if_unlinked(&held));
        volume.sync().unwrap();
        assert_eq!(volume.warnings(), [""; 0]);
        drop((held, volume));
        let checked = Volume::check(&device, CheckOptions::default(), &mut |_, _| {}).unwrap();
        assert_eq!(checked.findings.iter().map(ToString::to_string).collect::<Vec<_>>(), [""; 0]);
    }

    #[test]
    fn an_orphan_of_many_extents_is_reclaimed_by_several_commits() {
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
        let create =
            OpenOptions::new().read(true).write(true).create(true).mode(0o600).direct(true);
        let file = volume.open_with("/f", create).unwrap();
        let extents = COMMIT_THRESHOLD_RECORDS + 10 * CHUNK_RECORDS as u64;
        reactor.block_on(file.allocate(0, extents * BLOCK, Length::Extend)).unwrap();
        // Written and unwritten blocks alternate, so that each is an extent.
        let mut buffer = Buffer::copy_of(&[7; BLOCK as usize]);
        for block in (0..extents).step_by(2) {
            let (written, back) = reactor.block_on(file.write_at(buffer, block * BLOCK));
            assert_eq!(written, Ok(BLOCK as usize));
            buffer = back;
        }
        volume.sync().unwrap();
        drop(file);
        volume.remove_file("/f").unwrap();
        assert_eq!(volume.shared.reclaim_orphans().unwrap(), Reclaimed::Partial);
        let waiting = volume.shared.state.lock().overlay.current_size().changes;
        assert!(waiting <= COMMIT_THRESHOLD_RECORDS + 2 * CHUNK_RECORDS as u64, "{waiting}");
        drop(volume);
        let volume = open();
        assert_eq!((blocks_of(&volume), volume.warnings()), (before, Vec::new()));
    }

    #[test]
    fn a_commit_takes_size_and_blocks_of_a_write_together() {
        let device = Device::new(Memory::new(64 << 20).unwrap()).unwrap();
        Volume::format(&device, &FormatOptions::default()).unwrap();
        let reactor = Reactor::new(ReactorOptions::default()).unwrap();
        let volume = Volume::open_on(device).unwrap();
        let create =
            OpenOptions::new().read(true).write(true).create(true).mode(0o600).direct(true);
        let file = volume.open_with("/f", create).unwrap();
        reactor.block_on(file.allocate(0, 2 * BLOCK, Length::Keep)).unwrap();
        volume.sync().unwrap();
        let size = || {
            volume.set_attributes("/f", Follow::No, |inode| inode.permissions ^= 1).unwrap();
            volume.sync().unwrap();
            let number = InodeNumber(volume.symlink_metadata("/f").unwrap().ino());
            let record = volume.shared.catalog.get(Key::Inode(number.0)).unwrap().unwrap();
            Inode::from_record(&record).unwrap().size
        };
        // As in a write, with a commit of attributes in the middle.
        let open = volume.shared.state.lock().open.values().find_map(Weak::upgrade).unwrap();
        let noted = open.mark_written(0..2 * BLOCK, open.generation(), WriteOrigin::Direct);
        assert_eq!((noted.is_err(), size()), (true, 0));
        volume.mark_written(&open, 0..2 * BLOCK, open.generation(), WriteOrigin::Direct);
        assert_eq!(size(), 2 * BLOCK);
    }
}
