//! What a volume's clones, its open files and the thread that commits share: the state of names and of
//! free blocks. How a commit takes it to the device stands in `commit`.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use uringfs_cache::Cache;
use uringfs_device::Device;
use uringfs_reactor::Epoch;

use crate::blocks::{BLOCK, Blocks, Run};
use crate::catalog::{Access, Catalog, CatalogRoom, Key, Record, Size};
use crate::core::catalog_blocks::Preallocated;
use crate::core::device_lock::DeviceLock;
use crate::core::events::{OwnerLookup, Publisher, Subject, Warnings};
use crate::core::group_commit::GroupCommit;
use crate::error::Error;
use crate::namespace::transaction::{Orphan, ReadResults, Retry, Transaction, TransactionEffects};
use crate::open_file::open_file::OpenFile;
use crate::records::catalog_thread::Reader;
use crate::records::inode::InodeNumber;
use crate::records::overlay::Pending;
use crate::space::allocator::{Allocator, ChangedRegion, InvalidRegion, RegionSummary};
use crate::space::extent::{Extent, ExtentRecord, InvalidExtent};
use crate::space::system_zone::SystemZone;
use crate::superblock::Superblock;

/// Records that may wait for a commit before one is asked for.
pub(crate) const COMMIT_THRESHOLD_RECORDS: u64 = 1 << 16;
/// Records that may wait: operations wait for a commit then.
pub(crate) const MAX_UNCOMMITTED_RECORDS: u64 = 2 * COMMIT_THRESHOLD_RECORDS;
/// The key of how many blocks the records of regions speak of.
pub(crate) const BLOCKS_KEY: &[u8] = b"blocks";
/// The key of [`Superblock::note`]: of the superblock that first named what the catalog lies in now.
pub(crate) const SUPERBLOCK_KEY: &[u8] = b"superblock";
/// The key of the next inode's number.
pub(crate) const NEXT_INODE_KEY: &[u8] = b"next inode";

/// What is one for all clones of a volume.
pub(crate) struct Shared {
    pub(crate) device: Device,
    pub(crate) blocks: Blocks,
    pub(crate) catalog: Catalog,
    pub(crate) state: Mutex<VolumeState>,
    pub(crate) group_commit: Arc<GroupCommit>,
    pub(crate) catalog_thread: Reader,
    pub(crate) publisher: Arc<Publisher>,
    /// Since somebody synced the volume a file that nobody has open any more has lost bytes.
    pub(crate) has_lost_writes: AtomicBool,
    /// Which did, of those whose next opening was not told yet.
    pub(crate) lost_writes: Mutex<BTreeSet<InodeNumber>>,
    pub(crate) label: String,
    pub(crate) uuid: [u8; 16],
    pub(crate) access: Access,
    /// The last to go.
    /// That of files that are opened without another; none has that of the process.
    pub(crate) page_cache: Option<Cache>,
    pub(crate) _lock: DeviceLock,
}

/// What changes, under one lock.
pub(crate) struct VolumeState {
    pub(crate) overlay: Pending,
    pub(crate) allocator: Allocator,
    pub(crate) superblock: Superblock,
    /// Of that superblock.
    pub(crate) system_zone: Arc<SystemZone>,
    /// What the catalog has for the next commits.
    pub(crate) catalog_room: CatalogRoom,
    /// What it is going to have besides.
    pub(crate) preallocated: Preallocated,
    /// Blocks that the volume is to have.
    pub(crate) grow_target: Option<u64>,
    pub(crate) next_inode: u64,
    /// [`Self::next_inode`] when the last commit began: the catalog knows of none from there on.
    pub(crate) first_new: u64,
    pub(crate) open: HashMap<InodeNumber, Weak<OpenFile>>,
    /// Files whose extents or sizes are to be committed; they stay open until then.
    pub(crate) dirty: HashMap<InodeNumber, Arc<OpenFile>>,
    /// What has lost its last name and is still there: open, or waiting for the next commit.
    pub(crate) orphans: Vec<Orphan>,
    /// Blocks that are kept for writes, and pending meanwhile: whenever the power is cut they are free.
    pub(crate) out_of_place: u64,
    /// Whether a commit is destroying some that are not among [`Self::orphans`] meanwhile.
    pub(crate) is_reclaiming: bool,
    /// The next commit goes into the catalog's pages, with what is in its log: for room, or since it is the
    /// last.
    pub(crate) wants_checkpoint: bool,
    /// Commits that went there.
    pub(crate) checkpoints: u64,
    /// Extents that have come or gone since the last commit, about.
    pub(crate) changed_extents: usize,
    /// Blocks that no file has any more, once the changes that wait are committed.
    pub(crate) freed: Vec<Run>,
    /// Those of them that the allocator has not heard of, since their regions may not be loaded.
    pub(crate) to_free: Vec<Run>,
    /// Whether the device is told of blocks that become free.
    pub(crate) discards: bool,
    /// What was found damaged, a line each.
    pub(crate) warnings: Warnings,
    /// Blocks that no file has in the catalog, and until when somebody may still be reading them.
    pub(crate) retired: Vec<(Epoch, Vec<Run>)>,
}

impl Shared {
    /// Whether an open file has neither a name nor another opening: nobody finds it any more then.
    pub(crate) fn abandon(&self, file: &Arc<OpenFile>) -> bool {
        let state = &mut *self.state.lock();
        let holders = 1 + usize::from(state.dirty.contains_key(&file.number));
        let is_alone = Arc::strong_count(file) == holders;
        let is_orphan = state.orphans.iter().any(|orphan| orphan.0 == file.number);
        if is_alone && is_orphan {
            state.open.remove(&file.number);
        }
        is_alone && is_orphan
    }
}

impl OwnerLookup for Shared {
    fn owner_of(&self, address: u64) -> Subject {
        let block = address / BLOCK;
        let open = {
            let state = self.state.lock();
            let superblock @ Superblock { catalog, log, .. } = &state.superblock;
            if catalog.iter().chain([log]).any(|run| (run.start..run.end()).contains(&block)) {
                return Subject::Catalog;
            }
            if superblock.takes().any(|run| (run.start..run.end()).contains(&block)) {
                return Subject::Superblock;
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
                return Subject::File { inode, offset };
            }
        }
        Subject::Unknown
    }
}

impl VolumeState {
    pub(crate) fn transaction<'v>(&'v self, results: &'v ReadResults) -> Transaction<'v> {
        Transaction::new(&self.overlay, &self.open, results, self.first_new, self.next_inode)
    }

    /// Does what an operation has decided.
    pub(crate) fn apply(&mut self, effects: TransactionEffects) {
        self.overlay.apply(effects.changes);
        self.next_inode = effects.next_inode;
        self.orphans.extend(effects.orphans);
        if let Some((open, inode, delta)) = effects.delta_applied {
            open.delta_applied(&inode, &delta);
        }
    }

    /// Takes another superblock in the place of this one.
    pub(crate) fn set_superblock(&mut self, superblock: Superblock) {
        self.system_zone = Arc::new(SystemZone::of(&superblock));
        self.superblock = superblock;
    }

    /// What is going to be collected of open files, about.
    pub(crate) fn uncollected_size(&self) -> Size {
        Size::of_files(self.dirty.len() as u64, self.changed_extents as u64)
    }
}

/// The extent that a record tells.
///
/// # Errors
/// `Damaged` for one that no file of a volume of so many blocks with this zone can have.
pub(crate) fn validated_extent(
    (key, record): &Record,
    total_blocks: u64,
    zone: &SystemZone,
) -> Result<Extent, Error> {
    let damaged = |flaw: InvalidExtent| Error::damaged(flaw.to_string());
    let extent = ExtentRecord::parse(record, total_blocks).map_err(damaged)?;
    if key.get(8..) != Some(&extent.offset.to_be_bytes()) {
        return Err(Error::damaged("an extent is not where its key says"));
    }
    match zone.overlaps(extent.run()) {
        true => Err(damaged(InvalidExtent::System)),
        false => Ok(extent),
    }
}

impl From<InvalidRegion> for Error {
    fn from(flaw: InvalidRegion) -> Error {
        Error::damaged(format!("the map of free blocks: {flaw}"))
    }
}

/// A region in the catalog: what is always in memory of it, then its free blocks.
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

/// A region's free blocks as the last commit that takes its changes has them.
pub(crate) fn read_region(overlay: &Pending, region: u32) -> Result<Option<Vec<u8>>, Retry> {
    let key = Key::Region(region);
    let record = overlay.cached(key.table(), key.bytes())?;
    Ok(record.map(|record| parse_region(&record).map(|(_, free)| free.to_vec())).transpose()?)
}

#[cfg(test)]
mod tests {
    use uringfs_device::backend::memory::Memory;

    use super::*;
    use crate::namespace::open_options::OpenOptions;
    use crate::volume::format::FormatOptions;
    use crate::volume::volume::Volume;

    #[test]
    fn files_that_were_closed_are_forgotten() {
        let device = Device::new(Memory::new(16 << 20).unwrap()).unwrap();
        Volume::format(&device, &FormatOptions::default()).unwrap();
        let volume = Volume::open_on(device).unwrap();
        let create = OpenOptions { create: Some(0o600), ..OpenOptions::direct() };
        let kept: Vec<_> = (0..100).map(|n| volume.open(format!("/{n}"), create)).collect();
        for number in 100..3000 {
            volume.open(format!("/{number}"), create).unwrap();
            let known = volume.shared.state.lock().open.len();
            assert!(known <= 500, "{known} after {number}");
        }
        assert!(kept.iter().all(Result::is_ok));
    }
}
