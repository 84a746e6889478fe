//! Formats a volume, and opens one: reads superblock, regions and orphans before the first file is opened.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use parking_lot::Mutex;
use uringfs_device::{Device, Errno};

use crate::blocks::{BLOCK, BlockIo, Run};
use crate::catalog::{
    Access, Batch, Catalog, CatalogOptions, Key, MAX_RECORDS, MIN_BLOCKS, ScanEntry, Table,
};
use crate::core::closed::ClosedGuard;
use crate::core::device_lock::{DeviceLock, LockKind};
use crate::core::events::{Publisher, Warnings};
use crate::core::freeze::Freeze;
use crate::core::group_commit::{CommitThread, GroupCommit};
use crate::core::preallocated::Preallocated;
use crate::core::size_watch::SizeWatch;
use crate::core::state::{
    BLOCKS_KEY, NEXT_INODE_KEY, SUPERBLOCK_KEY, VolumeShared, VolumeState, encode_region,
    parse_region,
};
use crate::error::{Error, ErrorKind};
use crate::namespace::pins::Pins;
use crate::namespace::transaction::Orphan;
use crate::records::catalog_thread::CatalogThread;
use crate::records::inode::{FileType, Inode, InodeNumber};
use crate::records::overlay::{ChangeSet, Overlay};
use crate::space::allocator::{Allocator, RegionSummary, region_length};
use crate::space::system_zone::SystemZone;
use crate::superblock::{
    self, MAX_LOG_BLOCKS, REPAIR_ADVICE, RESERVED_BLOCKS, SlotDefect, Superblock,
    with_repair_advice,
};
use crate::volume::open_catalog::{known_blocks, open_catalog, with_checked_advice};
use crate::volume::options::{FormatOptions, VolumeOptions};
use crate::volume::volume::{Threads, Volume};

/// The share of blocks that stays free for the catalog, and for removing files, when the volume is full. It has a
/// lower and an upper bound.
const RESERVE_SHARE: u64 = 128;

impl Volume {
    /// Formats a device as an empty volume. Everything on it is lost.
    ///
    /// # Errors
    /// `Input` for a device that is too small (8.2 MiB are enough) or a label that is too long; EBUSY when any
    /// process has a volume on it open; errors of the device.
    pub fn format(device: &Device, options: &FormatOptions) -> Result<(), Error> {
        device.core().check_size();
        let blocks = BlockIo::new(device);
        let _lock = DeviceLock::acquire(device, LockKind::Exclusive)?;
        let total = options.size.map_or(blocks.count(), |size| size / BLOCK);
        if total > blocks.count() || total < RESERVED_BLOCKS + 2 * MIN_BLOCKS {
            let (least, there) =
                ((RESERVED_BLOCKS + 2 * MIN_BLOCKS) * BLOCK, blocks.count() * BLOCK);
            let why = match total > blocks.count() {
                true => format!("the device has {there}"),
                false => format!("a volume needs at least {least} bytes"),
            };
            let size = total.saturating_mul(BLOCK);
            let context = format!("cannot make a volume of {size} bytes: {why}");
            return Err(Error::new(ErrorKind::Input, context));
        }
        let (runs, log) = layout(total);
        let mut superblock = Superblock::new(total, &options.label, runs.clone(), log)?;
        superblock.erase(&blocks)?;
        let catalog = Catalog::create(&blocks, &runs, log, CatalogOptions::default())?;
        let mut root = Inode::new(FileType::Directory, 0o755);
        if let Some(owner) = options.root_owner {
            (root.user, root.group) = owner;
        }
        root.parent = InodeNumber::ROOT;
        let mut batch = Batch::default();
        batch.put(Key::Inode(InodeNumber::ROOT.0), &root.to_record());
        batch.put(Key::State(BLOCKS_KEY), &total.to_be_bytes());
        batch.put(Key::State(SUPERBLOCK_KEY), &superblock.identity(1));
        let mut allocator = Allocator::open(total, reserve_blocks(total), [])?;
        for taken in superblock.system_runs().chain(runs).chain([log]) {
            allocator.claim::<Error>(taken, |_| Ok(None))?;
        }
        for changed in allocator.take_changed() {
            batch.put(Key::Region(changed.index), &encode_region(&changed));
        }
        catalog.checkpoint(&batch)?;
        catalog.close()?;
        superblock.write(&blocks)
    }

    /// Checks that a path is not part of an open volume of any process, neither by this name nor through a loop
    /// device over it or below it. Succeeds for a path that cannot be opened.
    ///
    /// # Errors
    /// EBUSY, naming the process that has the volume open.
    pub fn require_closed(path: &Path) -> Result<(), Error> {
        crate::core::device_lock::require_closed(path)
    }
}

impl VolumeOptions {
    /// Opens the volume on a device. It is read-only if the device is.
    ///
    /// # Errors
    /// `NotAVolume`, `OtherFormat` (when opening for writing, or if too little of the volume is left to read it),
    /// `Damaged`, `Unsupported`; EBUSY when any process has it open for writing, or for reading if
    /// this call opens it for writing; errors of the device.
    pub fn open_on(&self, device: Device) -> Result<Volume, Error> {
        let options = self;
        let (blocks, publisher) = (BlockIo::new(&device), Publisher::new(&device));
        device.core().check_size();
        let lock_kind =
            if device.geometry().read_only { LockKind::Shared } else { LockKind::Exclusive };
        let lock = DeviceLock::acquire(&device, lock_kind)?;
        let found = Superblock::read(&blocks);
        let mut found = found.map_err(|error| with_checked_advice(&blocks, error))?;
        let superblock = &found.superblock;
        let access = match device.geometry().read_only || superblock.is_read_only() {
            true => Access::ReadOnly,
            false => Access::ReadWrite,
        };
        if access == Access::ReadWrite && superblock.needs_upgrade() {
            return Err(older_version());
        }
        if access == Access::ReadWrite {
            found.require_no_other_format()?;
        }
        let catalog_options = CatalogOptions {
            access,
            cache_bytes: options.catalog_cache_bytes / 4,
            ..CatalogOptions::default()
        };
        let (other_format, has_own_backup) = (found.other_format, found.has_own_backup());
        let catalog =
            open_catalog(&blocks, superblock, catalog_options).map_err(|error| {
                match (error.kind(), other_format) {
                    (ErrorKind::Damaged, Some(format)) => format.error(),
                    _ if !has_own_backup => with_checked_advice(&blocks, error),
                    _ => error,
                }
            })?;
        let total = superblock.total_blocks;
        let known = known_blocks(&catalog, total)?;
        found.reclassify_backup(known);
        let superblock::LoadedSuperblock { mut superblock, bad_slots, .. } = found;
        // An older slot is what a power cut between the two writes leaves: no damage.
        let damaged = bad_slots.iter().filter(|slot| slot.defect != SlotDefect::Older);
        let outcome = match access {
            Access::ReadWrite => "written again from a good one",
            Access::ReadOnly => REPAIR_ADVICE,
        };
        let slot_warnings: Vec<String> = match other_format {
            Some(format) => vec![format.warning()],
            None => damaged.map(|slot| format!("{slot}; {outcome}")).collect(),
        };
        let mut warnings = Vec::new();
        if access == Access::ReadWrite && (!bad_slots.is_empty() || !catalog.was_closed_cleanly()) {
            superblock.rewrite_slot(&blocks)?;
            superblock.write(&blocks)?;
        }
        if catalog.was_repaired() {
            warnings.push("the whole catalog had to be read".into());
        }
        let summaries = summaries(&catalog, known, &mut warnings)?;
        let mut allocator = Allocator::open(known, reserve_blocks(total), summaries)?;
        let load = |region| match catalog.get(Key::Region(region))? {
            Some(record) => Ok(Some(parse_region(&record)?.1.to_vec())),
            None => Ok(None),
        };
        if let Err(error) = allocator.grow::<Error>(total, load) {
            warnings.push(error.to_string());
        }
        let system_zone = Arc::new(SystemZone::from_superblock(&superblock));
        for run in system_zone.runs() {
            // After a power cut in a commit the regions may not count the catalog's newest blocks yet. A region that
            // cannot be read is not allocated from at all.
            let taken = allocator.claim_free(*run, load);
            warnings.extend(taken.err().map(|error: Error| error.to_string()));
        }
        let mut freed = Vec::new();
        if let Some(run) = superblock.previous_backup(known) {
            match free_previous_backup(&mut allocator, run, &system_zone, load) {
                Ok(()) => freed.push(run),
                Err(error) => warnings.push(error.to_string()),
            }
        }
        let next_inode = next_inode(&catalog, &mut warnings)?;
        let orphans = orphans(&catalog, &mut warnings)?;
        let with_advice = |line| match other_format {
            Some(_) => line,
            None => with_repair_advice(line),
        };
        let warnings = warnings.into_iter().map(with_advice);
        let warnings = slot_warnings.into_iter().chain(warnings).collect();
        let mut overlay = Overlay::new(options.catalog_cache_bytes / 4 * 3);
        if known < total {
            let mut changes = ChangeSet::default();
            changes.put(Key::State(BLOCKS_KEY), total.to_be_bytes().to_vec());
            changes.put(Key::State(SUPERBLOCK_KEY), superblock.identity(superblock.generation));
            overlay.apply(changes);
        }
        let state = VolumeState {
            overlay,
            allocator,
            catalog_room: catalog.page_budget()?,
            preallocated: Preallocated::default(),
            next_inode,
            first_uncommitted_inode: next_inode,
            open: HashMap::new(),
            pins: Pins::default(),
            dirty: HashMap::new(),
            orphans,
            out_of_place_blocks: 0,
            is_reclaiming: false,
            changed_extents: 0,
            refused_blocks: 0,
            wants_checkpoint: false,
            checkpoints: 0,
            freed,
            to_free: Vec::new(),
            discards: options.discard && device.geometry().discard.is_some(),
            warnings: Warnings::from_open(warnings, publisher.clone()),
            retired: Vec::new(),
            system_zone,
            superblock: superblock.clone(),
            grow_target: None,
        };
        let group_commit = Arc::<GroupCommit>::default();
        let size_watch = SizeWatch::begin(&device, total, group_commit.clone(), publisher.clone());
        let shared = Arc::new(VolumeShared {
            blocks,
            device,
            catalog,
            state: Mutex::new(state),
            freeze: Arc::new(Freeze::new(group_commit.clone())),
            group_commit,
            catalog_thread: CatalogThread::default(),
            publisher,
            size_watch,
            has_lost_writes: AtomicBool::new(false),
            lost_writes: Mutex::default(),
            label: superblock.label.clone(),
            uuid: superblock.uuid,
            access,
            page_cache: options.page_cache.clone(),
            lock,
            closed_guard: ClosedGuard::default(),
        });
        let commit_thread = match access {
            Access::ReadOnly => None,
            Access::ReadWrite => {
                let committing = shared.clone();
                let commit = move |group_commit: &GroupCommit| committing.commit(group_commit);
                let publisher = shared.publisher.clone();
                let closed = shared.closed();
                let lost = move |errno| {
                    closed.set_lost(errno);
                    publisher.publish_lost(errno);
                };
                let started = CommitThread::start(shared.group_commit.clone(), commit, lost);
                let started = started.map_err(|error| {
                    Error::io("starting the commit thread", Errno::AGAIN).with_cause(error)
                })?;
                Some(started)
            }
        };
        let threads = Arc::new(Threads::new(shared.clone(), commit_thread));
        Ok(Volume { shared, _threads: threads })
    }
}

/// The catalog's runs and the log of a new volume of this many blocks: one after the other, around the backup
/// superblock.
fn layout(total: u64) -> (Vec<Run>, Run) {
    let (start, backup) = (Superblock::reserved_for(total), Superblock::backup_block_in(total));
    let length = (total / 256).clamp(MIN_BLOCKS, 16 * MIN_BLOCKS);
    let run = Run { start, length };
    let runs = match (run.start..run.end()).contains(&backup) {
        true => {
            let second = Run { start: backup + 1, length: run.end() - backup };
            vec![Run { length: backup - start, ..run }, second]
        }
        false => vec![run],
    };
    let mut log = Run { start: runs[runs.len() - 1].end(), length: log_blocks(total) };
    if (log.start..log.end()).contains(&backup) {
        log.start = backup + 1;
    }
    (runs, log)
}

/// The error for writing to a volume of an older version.
pub(crate) fn older_version() -> Error {
    let what = "the volume is of an older version, and this uringfs only reads such volumes: to write, run \
                uringfs check --upgrade";
    Error::new(ErrorKind::Unsupported, what)
}

/// Blocks of the log for a volume of this many: large enough that few commits are checkpoints, small enough that
/// opening reads it at once.
fn log_blocks(total: u64) -> u64 {
    (total / 1024).clamp(4, MAX_LOG_BLOCKS / 2) * 2
}

fn reserve_blocks(blocks: u64) -> u64 {
    (blocks / RESERVE_SHARE).clamp(64, 65_536)
}

/// Frees the former block of the backup superblock. Its number follows from a record of the catalog, which may be
/// crafted: a block in use by the volume itself stays as it is.
fn free_previous_backup(
    allocator: &mut Allocator,
    run: Run,
    system_zone: &SystemZone,
    load: impl Fn(u32) -> Result<Option<Vec<u8>>, Error>,
) -> Result<(), Error> {
    if system_zone.overlaps(run) {
        return Err(Error::damaged(format!(
            "block {} must be free according to the volume size in the catalog, but it holds metadata",
            run.start
        )));
    }
    allocator.claim_free(run, &load)?;
    allocator.free(run, &load)
}

/// The summary of each region. A region with a damaged record counts as full.
fn summaries(
    catalog: &Catalog,
    total: u64,
    warnings: &mut Vec<String>,
) -> Result<Vec<(u32, RegionSummary)>, Error> {
    let mut summaries = Vec::new();
    for found in all_of(catalog, Table::Regions)? {
        let index = found.key.as_slice().try_into().map(u32::from_be_bytes);
        let Some(index) = index.ok().filter(|index| region_length(*index, total) > 0) else {
            warnings
                .push("there is a record of free blocks for a region that does not exist".into());
            continue;
        };
        let summary = found.value.and_then(|record| Ok(parse_region(&record)?.0));
        let possible = |summary: &RegionSummary| summary.is_possible(region_length(index, total));
        let summary = summary.ok().filter(possible).unwrap_or_else(|| {
            let what = "its record of free blocks is damaged; its blocks are not used for new data \
                        until it is repaired";
            warnings.push(format!("region {index}: {what}"));
            RegionSummary::default()
        });
        summaries.push((index, summary));
    }
    Ok(summaries)
}

/// The next inode's number. If the record is damaged or too low, the number after the last inode.
fn next_inode(catalog: &Catalog, warnings: &mut Vec<String>) -> Result<u64, Error> {
    let last = catalog.last_key(Table::Inodes)?.unwrap_or_default();
    let last = last.first_chunk().and_then(|key| InodeNumber::new(u64::from_be_bytes(*key)));
    let lowest = last.unwrap_or(InodeNumber::ROOT).0 + 1;
    match catalog.get(Key::State(NEXT_INODE_KEY)).and_then(|value| value.map(number_of).transpose())
    {
        Ok(None) => Ok(lowest),
        Ok(Some(next)) if next >= lowest => Ok(next),
        Ok(Some(next)) => {
            warnings.push(format!("the number of the next inode is {next}, not {lowest} or above"));
            Ok(lowest)
        }
        Err(error) if error.kind() == ErrorKind::Damaged => {
            warnings.push(format!("the number of the next inode: {error}"));
            Ok(lowest)
        }
        Err(error) => Err(error),
    }
}

fn number_of(value: Vec<u8>) -> Result<u64, Error> {
    let bytes = value.try_into().map_err(|_| Error::damaged("its length is wrong"))?;
    Ok(u64::from_be_bytes(bytes))
}

/// The inodes without a name. A damaged record is skipped.
fn orphans(catalog: &Catalog, warnings: &mut Vec<String>) -> Result<Vec<Orphan>, Error> {
    let mut orphans: Vec<Orphan> = Vec::new();
    for found in all_of(catalog, Table::Orphans)? {
        let key = <[u8; 8]>::try_from(found.key.as_slice()).map(u64::from_be_bytes);
        match (key.ok().and_then(InodeNumber::new), found.value) {
            (Some(number), Ok(_)) => orphans.push(Orphan(number)),
            _ => warnings.push("the record of an orphan is damaged".into()),
        }
    }
    Ok(orphans)
}

fn all_of(catalog: &Catalog, table: Table) -> Result<Vec<ScanEntry>, Error> {
    let mut all: Vec<ScanEntry> = Vec::new();
    loop {
        let from = all.last().map_or(Vec::new(), |last| [&last.key[..], &[0]].concat());
        let batch = catalog.scan_entries(table, from, None, MAX_RECORDS)?;
        if batch.is_empty() {
            return Ok(all);
        }
        all.extend(batch);
    }
}
