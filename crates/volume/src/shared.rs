//! What a volume's clones, its open files and the thread that commits share: the state of names and of
//! free blocks. How a commit takes it to the device stands in `commit`.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use rustix::io::Errno;
use uringfs_device::Device;
use uringfs_reactor::Epoch;

use crate::allocator::{Allocator, ChangedRegion, InvalidRegion, RegionSummary};
use crate::blocks::{Blocks, Run};
use crate::catalog::{Access, Catalog, Key, Table};
use crate::changes::{Known, Pending};
use crate::committer::Board;
use crate::error::Error;
use crate::extent::{Extent, ExtentRecord};
use crate::extent_map::ExtentMap;
use crate::inode::{Inode, InodeNumber};
use crate::lock::Lock;
use crate::names::{Orphan, Records, Scanned};
use crate::open_file::OpenFile;
use crate::superblock::Superblock;

/// Records that may wait for a commit before one is asked for.
pub(crate) const MOST_WAITING: usize = 8192;
/// The key of how many blocks the records of regions speak of.
pub(crate) const BLOCKS: &[u8] = b"blocks";
/// The key of the next inode's number.
pub(crate) const NEXT_INODE: &[u8] = b"next inode";

/// What is one for all clones of a volume.
pub(crate) struct Shared {
    pub(crate) device: Device,
    pub(crate) blocks: Blocks,
    pub(crate) catalog: Catalog,
    pub(crate) state: Mutex<VolumeState>,
    pub(crate) board: Arc<Board>,
    pub(crate) label: String,
    pub(crate) uuid: [u8; 16],
    pub(crate) access: Access,
    pub(crate) flaws: Vec<String>,
    /// The last to go.
    pub(crate) _lock: Lock,
}

/// What changes, under one lock.
pub(crate) struct VolumeState {
    pub(crate) pending: Pending,
    pub(crate) allocator: Allocator,
    pub(crate) superblock: Superblock,
    /// Blocks that the volume is to have.
    pub(crate) grows_to: Option<u64>,
    pub(crate) next_inode: u64,
    pub(crate) open: HashMap<InodeNumber, Weak<OpenFile>>,
    /// Files whose extents or sizes are to be committed; they stay open until then.
    pub(crate) dirty: HashMap<InodeNumber, Arc<OpenFile>>,
    /// Orphans that were open when they lost their last name.
    pub(crate) orphans: Vec<Orphan>,
    /// Extents allocated since the last commit.
    pub(crate) allocated: usize,
    /// Blocks that no file has any more, once the changes that wait are committed.
    pub(crate) freed: Vec<Run>,
    /// Blocks that no file has in the catalog, and until when somebody may still be reading them.
    pub(crate) retired: Vec<(Epoch, Vec<Run>)>,
}

impl Shared {
    /// An inode, with what an open file knows better.
    pub(crate) fn inode(&self, number: InodeNumber) -> Result<Inode, Error> {
        let state = &mut *self.state.lock();
        let mut inode = state.records(&self.catalog).inode(number)?;
        if let Some(open) = state.opened(number) {
            open.newer().lay_over(&mut inode);
        }
        Ok(inode)
    }

    pub(crate) fn open(&self, number: InodeNumber) -> Result<Arc<OpenFile>, Error> {
        let state = &mut *self.state.lock();
        if let Some(open) = state.opened(number) {
            return Ok(open);
        }
        let total = state.superblock.total_blocks;
        let records = state.records(&self.catalog);
        let inode = records.inode(number)?;
        let mut map = ExtentMap::new();
        let mut scanned = Some(records.scan(number, Key::Extent(number.0, 0))?);
        while let Some(batch) = scanned {
            for extent in extents_of(&batch, total).map_err(|error| error.of(inode_name(number)))? {
                map.push(extent)
                    .map_err(|flaw| Error::damaged(format!("{}: {flaw}", inode_name(number))))?;
            }
            scanned = records.scan_on(Table::Extents, number, &batch)?;
        }
        let open = Arc::new(OpenFile::new(number, map, &inode));
        state.open.insert(number, Arc::downgrade(&open));
        Ok(open)
    }
}

impl VolumeState {
    pub(crate) fn records<'v>(&'v mut self, catalog: &'v Catalog) -> Records<'v> {
        Records { catalog, pending: &mut self.pending }
    }

    /// A file that is open.
    pub(crate) fn opened(&self, number: InodeNumber) -> Option<Arc<OpenFile>> {
        self.open.get(&number).and_then(Weak::upgrade)
    }

    pub(crate) fn create_at(
        &mut self,
        catalog: &Catalog,
        path: &[u8],
        inode: Inode,
    ) -> Result<InodeNumber, Error> {
        let number = InodeNumber(self.next_inode);
        let mut records = self.records(catalog);
        let parent = records.parent(path)?;
        if parent.name.is_empty() {
            return Err(Error::refused(Errno::EXIST, "it is there already"));
        }
        records.create(parent.directory, &parent.name, number, inode)?;
        self.next_inode += 1;
        Ok(number)
    }

    /// Destroys what has lost its last name, when nobody has it open; else whoever closes it last.
    pub(crate) fn bury(&mut self, shared: &Shared, orphan: Option<Orphan>) -> Result<(), Error> {
        let Some(orphan) = orphan else { return Ok(()) };
        if self.open.get(&orphan.0).is_some_and(|open| open.strong_count() > 0) {
            self.orphans.push(orphan);
            return Ok(());
        }
        self.destroy(&shared.catalog, orphan)
    }

    /// Takes an orphan's extents and all else that belongs to it.
    fn destroy(&mut self, catalog: &Catalog, orphan: Orphan) -> Result<(), Error> {
        let number = orphan.0;
        let total = self.superblock.total_blocks;
        let mut scanned = Some(self.records(catalog).scan(number, Key::Extent(number.0, 0))?);
        while let Some(batch) = scanned {
            for extent in extents_of(&batch, total)? {
                self.free(catalog, extent.run())?;
                self.records(catalog).delete(Key::Extent(number.0, extent.offset));
            }
            scanned = self.records(catalog).scan_on(Table::Extents, number, &batch)?;
        }
        self.open.remove(&number);
        self.records(catalog).destroy(orphan)
    }

    /// Destroys the orphans that nobody has open any more.
    pub(crate) fn bury_closed(&mut self, catalog: &Catalog) -> Result<(), Error> {
        let is_open =
            |orphan: &Orphan| self.open.get(&orphan.0).is_some_and(|open| open.strong_count() > 0);
        let (open, closed): (Vec<_>, Vec<_>) = self.orphans.drain(..).partition(is_open);
        self.orphans = open;
        closed.into_iter().try_for_each(|orphan| self.destroy(catalog, orphan))
    }
}

/// The extents that some records tell.
fn extents_of(scanned: &Scanned, total_blocks: u64) -> Result<Vec<Extent>, Error> {
    let parse = |(key, record): &(Vec<u8>, Vec<u8>)| {
        let extent = ExtentRecord::parse(record, total_blocks)
            .map_err(|flaw| Error::damaged(flaw.to_string()))?;
        match key.get(8..) == Some(&extent.offset.to_be_bytes()) {
            true => Ok(extent),
            false => Err(Error::damaged("an extent is not where its key says")),
        }
    };
    scanned.records.iter().map(parse).collect()
}

impl From<InvalidRegion> for Error {
    fn from(flaw: InvalidRegion) -> Error {
        Error::damaged(format!("the map of free blocks: {flaw}"))
    }
}

/// A region in the catalog: what is always in memory of it, then its free blocks.
pub(crate) fn region_record(changed: &ChangedRegion) -> Vec<u8> {
    let RegionSummary { free, longest } = changed.summary;
    [&free.to_be_bytes()[..], &longest.to_be_bytes(), &changed.record].concat()
}

pub(crate) fn summary_of(record: &[u8]) -> Result<(RegionSummary, &[u8]), Error> {
    let word = |bytes: &[u8; 2]| u16::from_be_bytes(*bytes);
    let parsed = record.split_first_chunk::<2>().and_then(|(free, rest)| {
        let (longest, rest) = rest.split_first_chunk::<2>()?;
        Some((RegionSummary { free: word(free), longest: word(longest) }, rest))
    });
    parsed.ok_or_else(|| Error::damaged("a region's record is too short"))
}

/// A region's free blocks as the last commit that takes its changes has them.
pub(crate) fn region_of(
    catalog: &Catalog,
    pending: &Pending,
    region: u32,
) -> Result<Option<Vec<u8>>, Error> {
    let record = match pending.get(Key::Region(region)) {
        Known::Value(record) => Some(record.to_vec()),
        Known::Gone => None,
        Known::Nothing => catalog.get(Key::Region(region))?,
    };
    record.map(|record| Ok(summary_of(&record)?.1.to_vec())).transpose()
}

fn inode_name(number: InodeNumber) -> String {
    format!("inode {}", number.0)
}
