//! The state that a volume's clones, its open files and the commit thread share: uncommitted records, open
//! files, free blocks. `commit` writes it to the device.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use uringfs_cache::Cache;
use uringfs_device::Device;
use uringfs_reactor::Epoch;

use crate::blocks::{BLOCK, BlockIo, Run};
use crate::catalog::{Access, BatchSize, Catalog, Key, PageBudget, Record};
use crate::core::closed::{Closed, ClosedGuard};
use crate::core::device_lock::DeviceLock;
use crate::core::events::{BlockOwner, OwnerLookup, Publisher, Warnings};
use crate::core::freeze::Freeze;
use crate::core::group_commit::GroupCommit;
use crate::core::preallocated::Preallocated;
use crate::core::size_watch::SizeWatch;
use crate::error::Error;
use crate::namespace::pins::Pins;
use crate::namespace::transaction::{Orphan, ReadResults, Retry, Transaction, TransactionEffects};
use crate::open_file::open_file::OpenFile;
use crate::records::catalog_thread::CatalogThread;
use crate::records::inode::InodeNumber;
use crate::records::overlay::Overlay;
use crate::space::allocator::{Allocator, ChangedRegion, InvalidRegion, RegionSummary};
use crate::space::extent::{Extent, ExtentRecord, InvalidExtent};
use crate::space::system_zone::SystemZone;
use crate::superblock::Superblock;

/// Uncommitted records at which a commit is requested.
pub(crate) const COMMIT_THRESHOLD_RECORDS: u64 = 1 << 16;
/// Uncommitted records at which operations wait for a commit.
pub(crate) const MAX_UNCOMMITTED_RECORDS: u64 = 2 * COMMIT_THRESHOLD_RECORDS;
/// The key of the number of blocks that the records of regions cover.
pub(crate) const BLOCKS_KEY: &[u8] = b"blocks";
/// The key of [`Superblock::identity`]: the superblock that first named the catalog's current blocks.
pub(crate) const SUPERBLOCK_KEY: &[u8] = b"superblock";
/// The key of the next inode's number.
pub(crate) const NEXT_INODE_KEY: &[u8] = b"next inode";

/// The parts of a volume that all its clones share.
pub(crate) struct VolumeShared {
    pub(crate) device: Device,
    pub(crate) blocks: BlockIo,
    pub(crate) catalog: Catalog,
    pub(crate) state: Mutex<VolumeState>,
    pub(crate) group_commit: Arc<GroupCommit>,
    pub(crate) freeze: Arc<Freeze>,
    pub(crate) catalog_thread: CatalogThread,
    pub(crate) publisher: Arc<Publisher>,
    pub(crate) size_watch: Arc<SizeWatch>,
    /// True if a closed file has lost buffered writes since the last sync of the volume.
    pub(crate) has_lost_writes: AtomicBool,
    /// The files that lost buffered writes, until their next open handle reports it.
    pub(crate) lost_writes: Mutex<BTreeSet<InodeNumber>>,
    pub(crate) label: String,
    pub(crate) uuid: [u8; 16],
    pub(crate) access: Access,
    /// The cache of files that are opened without one of their own; `None` is the process's cache.
    pub(crate) page_cache: Option<Cache>,
    /// Dropped after everything that uses the device.
    pub(crate) lock: DeviceLock,
    /// Dropped last.
    pub(crate) closed_guard: ClosedGuard,
}

/// The mutable state, under one lock.
pub(crate) struct VolumeState {
    pub(crate) overlay: Overlay,
    pub(crate) allocator: Allocator,
    pub(crate) superblock: Superblock,
    /// The system zone of that superblock.
    pub(crate) system_zone: Arc<SystemZone>,
    /// The catalog's room for the next commits.
    pub(crate) catalog_room: PageBudget,
    /// The blocks that the next commits will add to it.
    pub(crate) preallocated: Preallocated,
    /// The size in blocks that the volume will grow to.
    pub(crate) grow_target: Option<u64>,
    pub(crate) next_inode: u64,
    /// [`Self::next_inode`] when the last commit began: the catalog has no inode from this one on.
    pub(crate) first_uncommitted_inode: u64,
    pub(crate) open: HashMap<InodeNumber, Weak<OpenFile>>,
    /// References that keep an inode, whether its file is open or not.
    pub(crate) pins: Pins,
    /// Files with uncommitted extents or sizes; they stay open until a commit takes those.
    pub(crate) dirty: HashMap<InodeNumber, Arc<OpenFile>>,
    /// Inodes without a name that are open or wait for the next commit.
    pub(crate) orphans: Vec<Orphan>,
    /// Blocks of atomic writes in flight. The allocator counts them as pending: after a power cut they are free.
    pub(crate) out_of_place_blocks: u64,
    /// A commit is reclaiming orphans that it took out of [`Self::orphans`].
    pub(crate) is_reclaiming: bool,
    /// The next commit goes into the catalog's pages, together with all log records: to make room, or because it is
    /// the last.
    pub(crate) wants_checkpoint: bool,
    /// Commits that went into the catalog's pages.
    pub(crate) checkpoints: u64,
    /// Extents that were added or removed since the last commit, approximately.
    pub(crate) changed_extents: usize,
    /// The blocks of the last request for which there were too few.
    pub(crate) refused_blocks: u64,
    /// Freed blocks of which the allocator does not know yet, because their regions may not be loaded.
    pub(crate) to_free: Vec<Run>,
    /// Freed blocks that are pending in the allocator; the commit that frees them is not durable.
    pub(crate) freed: Vec<Run>,
    /// Freed blocks whose commit is durable, each with the epoch until which reads of them may be in flight.
    pub(crate) retired: Vec<(Epoch, Vec<Run>)>,
    /// Discard freed blocks on the device.
    pub(crate) discards: bool,
    /// Damage found so far, one line each.
    pub(crate) warnings: Warnings,
}

/// Files whose lost writes are remembered. The volume's next sync reports those of any file.
const MAX_LOST_WRITES: usize = 4096;

impl VolumeShared {
    /// Notes that a file has lost writes: its next sync fails, and the volume's.
    pub(crate) fn note_lost_writes(&self, number: InodeNumber) {
        self.has_lost_writes.store(true, Ordering::Release);
        let lost = &mut *self.lost_writes.lock();
        if lost.len() >= MAX_LOST_WRITES {
            lost.pop_first();
        }
        lost.insert(number);
    }

    /// The end of the volume, to wait for.
    pub(crate) fn closed(&self) -> Closed {
        self.closed_guard.0.clone()
    }

    /// The number of file handles that are open. [`uringfs_file::File::direct`] and
    /// [`uringfs_file::File::buffered`] add none.
    pub(crate) fn open_handles(&self) -> usize {
        let state = self.state.lock();
        let handles = state.open.iter().map(|(number, file)| {
            let is_dirty = state.dirty.contains_key(number);
            file.strong_count().saturating_sub(is_dirty.into())
        });
        handles.sum()
    }

    /// Forgets an open file if it has neither a name, nor another handle, nor a reference to its inode, so that nothing
    /// can find it. True if so.
    pub(crate) fn retire_if_unlinked(&self, file: &Arc<OpenFile>) -> bool {
        let state = &mut *self.state.lock();
        let holders = 1 + usize::from(state.dirty.contains_key(&file.number));
        let is_alone = Arc::strong_count(file) == holders && !state.pins.contains(file.number);
        let is_orphan = state.orphans.iter().any(|orphan| orphan.0 == file.number);
        if is_alone && is_orphan {
            state.open.remove(&file.number);
        }
        is_alone && is_orphan
    }
}

impl OwnerLookup for VolumeShared {
    fn owner_of(&self, address: u64) -> BlockOwner {
        let block = address / BLOCK;
        let open = {
            let state = self.state.lock();
            let superblock @ Superblock { catalog, log, .. } = &state.superblock;
            if catalog.iter().chain([log]).any(|run| (run.start..run.end()).contains(&block)) {
                return BlockOwner::Catalog;
            }
            if superblock.system_runs().any(|run| (run.start..run.end()).contains(&block)) {
                return BlockOwner::Superblock;
            }
            let open = state.open.iter();
            open.filter_map(|(number, file)| Some((*number, file.upgrade()?))).collect::<Vec<_>>()
        };
        for (inode, file) in open {
            let snapshot = file.snapshot();
            let found = snapshot
                .extents
                .iter()
                .find(|extent| (extent.start..extent.start + extent.length).contains(&block));
            if let Some(extent) = found {
                let offset = (extent.offset + (block - extent.start)) * BLOCK + address % BLOCK;
                return BlockOwner::File { inode, offset };
            }
        }
        BlockOwner::Unknown
    }
}

impl VolumeState {
    pub(crate) fn transaction<'v>(&'v self, results: &'v ReadResults) -> Transaction<'v> {
        Transaction::new(
            &self.overlay,
            &self.open,
            &self.pins,
            results,
            self.first_uncommitted_inode,
            self.next_inode,
        )
    }

    /// Applies the changes of a transaction.
    pub(crate) fn apply(&mut self, effects: TransactionEffects) {
        self.overlay.apply(effects.changes);
        self.next_inode = effects.next_inode;
        self.orphans.extend(effects.orphans);
        if let Some(named) = effects.named {
            self.orphans.retain(|orphan| *orphan != named);
            self.pins.clear_linkable(named.0);
        }
        if let Some((open, inode, delta)) = effects.delta_applied {
            open.delta_applied(&inode, &delta);
        }
    }

    /// Replaces the superblock.
    pub(crate) fn set_superblock(&mut self, superblock: Superblock) {
        self.system_zone = Arc::new(SystemZone::from_superblock(&superblock));
        self.superblock = superblock;
    }

    /// The size of the records that the next commit takes from open files, approximately.
    pub(crate) fn uncollected_size(&self) -> BatchSize {
        BatchSize::for_files(self.dirty.len() as u64, self.changed_extents as u64)
    }
}

/// Parses the record of an extent.
///
/// # Errors
/// `Damaged` for an extent that no file can have, in a volume of this many blocks with this system zone.
pub(crate) fn validated_extent(
    (key, record): &Record,
    total_blocks: u64,
    zone: &SystemZone,
) -> Result<Extent, Error> {
    let damaged = |flaw: InvalidExtent| Error::damaged(flaw.to_string());
    let extent = ExtentRecord::parse(record, total_blocks).map_err(damaged)?;
    if key.get(8..) != Some(&extent.offset.to_be_bytes()) {
        return Err(Error::damaged("the record of an extent does not match its key"));
    }
    match zone.overlaps(extent.run()) {
        true => Err(damaged(InvalidExtent::System)),
        false => Ok(extent),
    }
}

#[doc(hidden)]
impl From<InvalidRegion> for Error {
    fn from(flaw: InvalidRegion) -> Error {
        Error::damaged(format!("the map of free blocks: {flaw}"))
    }
}

/// The record of a region: its summary, which is always in memory, then its free blocks.
pub(crate) fn encode_region(changed: &ChangedRegion) -> Vec<u8> {
    let RegionSummary { free, longest } = changed.summary;
    [&free.to_be_bytes()[..], &longest.to_be_bytes(), &changed.record].concat()
}

pub(crate) fn parse_region(record: &[u8]) -> Result<(RegionSummary, &[u8]), Error> {
    let word = |bytes: &[u8; 2]| u16::from_be_bytes(*bytes);
    let parsed = record.split_first_chunk::<2>().and_then(|(free, rest)| {
        let (longest, rest) = rest.split_first_chunk::<2>()?;
        Some((RegionSummary { free: word(free), longest: word(longest) }, rest))
    });
    parsed.ok_or_else(|| Error::damaged("a region's record is too short"))
}

/// A region's free blocks, as the next commit will have them.
pub(crate) fn read_region(overlay: &Overlay, region: u32) -> Result<Option<Vec<u8>>, Retry> {
    let key = Key::Region(region);
    let record = overlay.cached(key.table(), key.bytes())?;
    Ok(record.map(|record| parse_region(record).map(|(_, free)| free.to_vec())).transpose()?)
}

#[cfg(test)]
mod tests {
    use uringfs_device::backend::memory::Memory;

    use super::*;
    use crate::namespace::open_options::OpenOptions;
    use crate::volume::options::FormatOptions;
    use crate::volume::volume::Volume;

    #[test]
    fn closed_files_leave_the_table_of_open_files() {
        let device = Device::new(Memory::new(16 << 20).unwrap()).unwrap();
        Volume::format(&device, &FormatOptions::default()).unwrap();
        let volume = Volume::open_on(device).unwrap();
        let create =
            OpenOptions::new().read(true).write(true).create(true).mode(0o600).direct(true);
        let kept: Vec<_> = (0..100).map(|n| volume.open_with(format!("/{n}"), create)).collect();
        for number in 100..3000 {
            volume.open_with(format!("/{number}"), create).unwrap();
            let known = volume.shared.state.lock().open.len();
            assert!(known <= 500, "{known} after {number}");
        }
        assert!(kept.iter().all(Result::is_ok));
    }
}
