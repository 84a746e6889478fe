//! Opens a volume: reads superblock, regions and orphans before the first file is opened.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use parking_lot::Mutex;
use uringfs_device::{Device, Errno};

use crate::blocks::{BlockIo, Run};
use crate::catalog::{Access, Catalog, CatalogOptions, Key, MAX_RECORDS, ScanEntry, Table};
use crate::core::closed::ClosedGuard;
use crate::core::device_lock::{DeviceLock, LockKind};
use crate::core::events::{Publisher, Warnings};
use crate::core::freeze::Freeze;
use crate::core::group_commit::{CommitThread, GroupCommit};
use crate::core::preallocated::Preallocated;
use crate::core::size_watch::SizeWatch;
use crate::core::state::{
    BLOCKS_KEY, NEXT_INODE_KEY, SUPERBLOCK_KEY, VolumeShared, VolumeState, parse_region,
};
use crate::error::{Error, ErrorKind};
use crate::namespace::pins::Pins;
use crate::namespace::transaction::Orphan;
use crate::records::catalog_thread::CatalogThread;
use crate::records::inode::InodeNumber;
use crate::records::overlay::{ChangeSet, Overlay};
use crate::space::allocator::{Allocator, RegionSummary, region_length};
use crate::space::system_zone::SystemZone;
use crate::superblock::{
    LoadedSuperblock, REPAIR_ADVICE, SlotDefect, Superblock, with_repair_advice,
};
use crate::volume::format::reserve_blocks;
use crate::volume::open_catalog::{known_blocks, open_catalog, with_checked_advice};
use crate::volume::options::VolumeOptions;
use crate::volume::volume::{Threads, Volume};

impl VolumeOptions {
    /// Opens the volume on a device. It is read-only if the device is.
    ///
    /// # Errors
    /// `NotAVolume`, `OtherFormat` (when opening for writing, or if too little of the volume is left to read it),
    /// `Damaged`, `Unsupported`; EBUSY when any process has it open for writing, or for reading if
    /// this call opens it for writing; errors of the device.
    pub fn open_on(&self, device: Device) -> Result<Volume, Error> {
        // Publishes failures of the device from here on.
        let publisher = Publisher::new(&device);
        device.core().check_size();
        let is_read_only = device.geometry().read_only;
        let lock_kind = if is_read_only { LockKind::Shared } else { LockKind::Exclusive };
        let lock = DeviceLock::acquire(&device, lock_kind)?;
        let blocks = BlockIo::new(&device);
        let (found, access) = read_superblock(&blocks, is_read_only)?;
        let catalog = self.open_catalog(&blocks, &found, access)?;
        let loaded = LoadedVolume::load(&blocks, found, &catalog, access)?;
        let (total, uuid) = (loaded.superblock.total_blocks, loaded.superblock.uuid);
        let label = loaded.superblock.label.clone();
        let state = self.state(loaded, &device, &catalog, &publisher)?;
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
            label,
            uuid,
            access,
            page_cache: self.page_cache.clone(),
            lock,
            closed_guard: ClosedGuard::default(),
        });
        let commit_thread = match access {
            Access::ReadOnly => None,
            Access::ReadWrite => Some(start_commit_thread(&shared)?),
        };
        let threads = Threads::new(shared.clone(), commit_thread);
        Ok(Volume::new(shared, threads))
    }

    /// Opens the catalog that the superblock names. If that fails, the error says what the device has in its place.
    fn open_catalog(
        &self,
        blocks: &BlockIo,
        found: &LoadedSuperblock,
        access: Access,
    ) -> Result<Catalog, Error> {
        let cache_bytes = self.catalog_cache_bytes / 4;
        let open = |access| {
            let options = CatalogOptions { access, cache_bytes, ..CatalogOptions::default() };
            open_catalog(blocks, &found.superblock, options)
        };
        let opened = match access {
            // Opening for writing writes to the catalog and its log. So first find out whether they are those of this
            // superblock, which only the catalog knows.
            Access::ReadWrite if !found.has_own_backup() => {
                open(Access::ReadOnly).map(drop).and_then(|()| open(access))
            }
            _ => open(access),
        };
        opened.map_err(|error| match (error.kind(), found.other_format) {
            (ErrorKind::Damaged, Some(format)) => format.error(),
            _ if !found.has_own_backup() => with_checked_advice(blocks, error),
            _ => error,
        })
    }

    /// The state of a volume whose files are all closed.
    fn state(
        &self,
        loaded: LoadedVolume,
        device: &Device,
        catalog: &Catalog,
        publisher: &Arc<Publisher>,
    ) -> Result<VolumeState, Error> {
        let LoadedVolume { superblock, known, allocator, system_zone, .. } = loaded;
        let total = superblock.total_blocks;
        let mut overlay = Overlay::new(self.catalog_cache_bytes / 4 * 3);
        // Unless the last region is damaged, which cannot grow.
        if known < total && allocator.space().total == total {
            let mut changes = ChangeSet::default();
            changes.put(Key::State(BLOCKS_KEY), total.to_be_bytes().to_vec());
            changes.put(Key::State(SUPERBLOCK_KEY), superblock.identity(superblock.generation));
            overlay.apply(changes);
        }
        Ok(VolumeState {
            overlay,
            allocator,
            catalog_room: catalog.page_budget()?,
            preallocated: Preallocated::default(),
            next_inode: loaded.next_inode,
            first_uncommitted_inode: loaded.next_inode,
            open: HashMap::new(),
            pins: Pins::default(),
            dirty: HashMap::new(),
            orphans: loaded.orphans,
            out_of_place_blocks: 0,
            is_reclaiming: false,
            changed_extents: 0,
            refused_blocks: 0,
            wants_checkpoint: false,
            checkpoints: 0,
            freed: loaded.freed,
            to_free: Vec::new(),
            discards: self.discard && device.geometry().discard.is_some(),
            warnings: Warnings::from_open(loaded.warnings, publisher.clone()),
            retired: Vec::new(),
            system_zone,
            superblock,
            grow_target: None,
        })
    }
}

/// Reads the superblock, and decides whether the volume is opened for writing.
fn read_superblock(
    blocks: &BlockIo,
    is_read_only: bool,
) -> Result<(LoadedSuperblock, Access), Error> {
    let found = Superblock::read(blocks).map_err(|error| with_checked_advice(blocks, error))?;
    if is_read_only || found.superblock.is_read_only() {
        return Ok((found, Access::ReadOnly));
    }
    if found.superblock.needs_upgrade() {
        return Err(older_version());
    }
    found.require_no_other_format()?;
    Ok((found, Access::ReadWrite))
}

/// The error for writing to a volume of an older version.
pub(crate) fn older_version() -> Error {
    let what = "the volume is of an older version, and this uringfs only reads such volumes: to write, run \
                uringfs check --upgrade";
    Error::new(ErrorKind::Unsupported, what)
}

fn start_commit_thread(shared: &Arc<VolumeShared>) -> Result<CommitThread, Error> {
    let committing = shared.clone();
    let commit = move |group_commit: &GroupCommit| committing.commit(group_commit);
    let (closed, publisher) = (shared.closed(), shared.publisher.clone());
    let lost = move |errno| {
        closed.set_lost(errno);
        publisher.publish_lost(errno);
    };
    CommitThread::start(shared.group_commit.clone(), commit, lost)
        .map_err(|error| Error::io("starting the commit thread", Errno::AGAIN).with_cause(error))
}

/// The parts of a volume's state that are on the device.
struct LoadedVolume {
    superblock: Superblock,
    /// The blocks that the catalog's regions cover: fewer than the superblock's after a power cut while the volume grew.
    known: u64,
    allocator: Allocator,
    system_zone: Arc<SystemZone>,
    /// Blocks that become free with the first commit.
    freed: Vec<Run>,
    next_inode: u64,
    orphans: Vec<Orphan>,
    warnings: Vec<String>,
}

impl LoadedVolume {
    /// Reads what the catalog says of space and inodes. If the volume is opened for writing, and was not closed cleanly, writes
    /// the superblock's slots again.
    fn load(
        blocks: &BlockIo,
        mut found: LoadedSuperblock,
        catalog: &Catalog,
        access: Access,
    ) -> Result<LoadedVolume, Error> {
        let total = found.superblock.total_blocks;
        let known = known_blocks(catalog, total)?;
        found.reclassify_backup(known);
        let slot_warnings = slot_warnings(&found, access);
        let LoadedSuperblock { mut superblock, bad_slots, other_format, .. } = found;
        if access == Access::ReadWrite && (!bad_slots.is_empty() || !catalog.was_closed_cleanly()) {
            superblock.rewrite_slot(blocks)?;
            superblock.write(blocks)?;
        }
        let mut warnings = Vec::new();
        if catalog.was_repaired() {
            warnings.push("the whole catalog had to be read".into());
        }
        let system_zone = Arc::new(SystemZone::from_superblock(&superblock));
        let mut allocator = load_allocator(catalog, (known, total), &system_zone, &mut warnings)?;
        let mut freed = Vec::new();
        if let Some(run) = superblock.previous_backup(known) {
            match free_previous_backup(&mut allocator, run, &system_zone, load_region(catalog)) {
                Ok(()) => freed.push(run),
                Err(error) => warnings.push(error.to_string()),
            }
        }
        let next_inode = next_inode(catalog, &mut warnings)?;
        let orphans = orphans(catalog, &mut warnings)?;
        let with_advice = |line| match other_format {
            Some(_) => line,
            None => with_repair_advice(line),
        };
        let warnings = warnings.into_iter().map(with_advice);
        let warnings = slot_warnings.into_iter().chain(warnings).collect();
        Ok(LoadedVolume {
            superblock,
            known,
            allocator,
            system_zone,
            freed,
            next_inode,
            orphans,
            warnings,
        })
    }
}

/// The damage of the superblock's slots, and what becomes of it.
fn slot_warnings(found: &LoadedSuperblock, access: Access) -> Vec<String> {
    if let Some(format) = found.other_format {
        return vec![format.warning()];
    }
    let outcome = match access {
        Access::ReadWrite => "written again from a good one",
        Access::ReadOnly => REPAIR_ADVICE,
    };
    // An older slot is what a power cut between the two writes leaves: no damage.
    let damaged = found.bad_slots.iter().filter(|slot| slot.defect != SlotDefect::Older);
    damaged.map(|slot| format!("{slot}; {outcome}")).collect()
}

/// The free blocks of a volume whose regions cover `known` of its `total` blocks.
fn load_allocator(
    catalog: &Catalog,
    (known, total): (u64, u64),
    system_zone: &SystemZone,
    warnings: &mut Vec<String>,
) -> Result<Allocator, Error> {
    let summaries = summaries(catalog, known, warnings)?;
    let mut allocator = Allocator::open(known, reserve_blocks(total), summaries)?;
    if let Err(error) = allocator.grow::<Error>(total, load_region(catalog)) {
        warnings.push(error.to_string());
    }
    for run in system_zone.runs() {
        // After a power cut in a commit the regions may not count the catalog's newest blocks yet. A region that
        // cannot be read is not allocated from at all.
        let taken = allocator.claim_free(*run, load_region(catalog));
        warnings.extend(taken.err().map(|error: Error| error.to_string()));
    }
    Ok(allocator)
}

/// Reads the map of a region's free blocks.
fn load_region(catalog: &Catalog) -> impl Fn(u32) -> Result<Option<Vec<u8>>, Error> {
    |region| match catalog.get(Key::Region(region))? {
        Some(record) => Ok(Some(parse_region(&record)?.1.to_vec())),
        None => Ok(None),
    }
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
