//! [`Volume`]: a device that holds files under names.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use rustix::io::Errno;
use uringfs_device::Device;
use uringfs_file::{Commit, File, FileOptions};
use uringfs_reactor::{Epoch, quiescence};

use crate::allocator::{Allocator, ChangedRegion, InvalidRegion, RegionSummary, Want};
use crate::blocks::{BLOCK, Blocks, Run};
use crate::catalog::{Access, Batch, Catalog, CatalogOptions, Key, MIN_BLOCKS, Reserve, Table};
use crate::changes::{Known, Pending};
use crate::committer::{Board, Committer};
use crate::error::{Error, ErrorKind};
use crate::extent::{Extent, ExtentRecord, State};
use crate::extent_map::ExtentMap;
use crate::inode::{FileKind, Inode, InodeNumber, Time};
use crate::lock::{Lock, Others};
use crate::names::{DirectoryEntry, Orphan, Records, Rename, Scanned};
use crate::open_file::{OpenFile, VolumeMap};
use crate::path::Follow;
use crate::superblock::{Found, RESERVED_BLOCKS, Superblock};

/// Records that may wait for a commit before one is asked for.
const MOST_WAITING: usize = 8192;
/// The key of the next inode's number.
const NEXT_INODE: &[u8] = b"next inode";

/// A device, or an ordinary file, that holds files under names. Clones are the same volume; it can
/// be used from any thread.
///
/// Names and attributes are read from memory or, where they are not there, from the device by the
/// calling thread. What was changed is durable after [`Volume::sync`], or [`File::sync`] of the
/// file, or when the last clone is dropped.
#[derive(Clone)]
pub struct Volume {
    shared: Arc<Shared>,
    /// None where the volume is only read.
    committer: Option<Arc<Committer>>,
}

pub(crate) struct Shared {
    device: Device,
    blocks: Blocks,
    catalog: Catalog,
    state: Mutex<VolumeState>,
    board: Arc<Board>,
    label: String,
    uuid: [u8; 16],
    access: Access,
    flaws: Vec<String>,
    /// The last to go.
    _lock: Lock,
}

struct VolumeState {
    pending: Pending,
    allocator: Allocator,
    superblock: Superblock,
    next_inode: u64,
    open: HashMap<InodeNumber, Weak<OpenFile>>,
    /// Files whose extents or sizes are to be committed; they stay open until then.
    dirty: HashMap<InodeNumber, Arc<OpenFile>>,
    /// Orphans that were open when they lost their last name.
    orphans: Vec<Orphan>,
    /// Extents allocated since the last commit.
    allocated: usize,
    /// Blocks that no file has any more, once the changes that wait are committed.
    freed: Vec<Run>,
    /// Blocks that no file has in the catalog, and until when somebody may still be reading them.
    retired: Vec<(Epoch, Vec<Run>)>,
}

/// How a file is opened.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenOptions {
    /// Made when it is not there, with these permissions.
    pub create: Option<u16>,
    /// EEXIST when it is there.
    pub exclusive: bool,
    /// Emptied.
    pub truncate: bool,
    /// Switches of the file.
    pub file: FileOptions,
}

/// Space and files of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Statistics {
    /// Blocks of 4096 bytes.
    pub blocks: u64,
    /// Of these, free ones.
    pub free_blocks: u64,
    /// Freed, and free when that is committed and nobody reads them any more.
    pub pending_blocks: u64,
}

/// How a volume is made.
#[derive(Clone, Debug, Default)]
pub struct FormatOptions {
    /// A name for people, of 64 bytes at most.
    pub label: String,
    /// Blocks of 4096 bytes; all of the device, if none are given.
    pub blocks: Option<u64>,
}

/// Blocks kept for the catalog and for files to be removed when everything else is full: one in so
/// many, within bounds.
const RESERVE_SHARE: u64 = 128;

impl Volume {
    /// Makes an empty volume of a device, and loses whatever it held.
    ///
    /// # Errors
    /// `Input` for a device that is too small (8.2 MiB are enough) or a label that is too long; EBUSY
    /// when another program has a volume on it open; the device's.
    pub fn format(device: &Device, options: &FormatOptions) -> Result<(), Error> {
        let blocks = Blocks::of(device);
        let _lock = Lock::take(device, Others::KeepOut)?;
        let total = options.blocks.unwrap_or(blocks.count());
        if total > blocks.count() || total < RESERVED_BLOCKS + 2 * MIN_BLOCKS {
            let (least, there) =
                ((RESERVED_BLOCKS + 2 * MIN_BLOCKS) * BLOCK, blocks.count() * BLOCK);
            let context = format!(
                "a volume of {} bytes: at least {least}, and the device has {there}",
                total.saturating_mul(BLOCK)
            );
            return Err(Error::new(ErrorKind::Input, context));
        }
        let catalog_blocks = (total / 256).clamp(MIN_BLOCKS, 16 * MIN_BLOCKS);
        let run = Run { start: RESERVED_BLOCKS, length: catalog_blocks };
        let mut superblock = Superblock::new(total, &options.label, vec![run])?;
        Superblock::erase(&blocks)?;
        let catalog = Catalog::create(&blocks, &[run], CatalogOptions::default())?;
        let mut root = Inode::new(FileKind::Directory, 0o755);
        root.parent = InodeNumber::ROOT;
        let mut batch = Batch::default();
        batch.put(Key::Inode(InodeNumber::ROOT.0), &root.to_record());
        let mut allocator = Allocator::open(total, reserve_of(total), [])?;
        let taken = Run { start: 0, length: run.end() };
        allocator.claim::<Error>(taken, |_| Ok(None))?;
        for changed in allocator.take_changed() {
            batch.put(Key::Region(changed.index), &region_record(&changed));
        }
        catalog.commit(&batch)?;
        catalog.close()?;
        superblock.write(&blocks)
    }

    /// Opens the volume of a device; for reading only where the device is.
    ///
    /// # Errors
    /// `NotAVolume`, `Damaged`, `Unsupported`; EBUSY when another program has it open for writing, or
    /// at all if this one wants to write; the device's.
    pub fn open_on(device: Device) -> Result<Volume, Error> {
        let blocks = Blocks::of(&device);
        let others = if device.geometry().read_only { Others::MayRead } else { Others::KeepOut };
        let lock = Lock::take(&device, others)?;
        let Found { superblock, bad_slots } = Superblock::read(&blocks)?;
        let mut flaws: Vec<String> = bad_slots.iter().map(ToString::to_string).collect();
        let access = match device.geometry().read_only || superblock.is_read_only() {
            true => Access::ReadOnly,
            false => Access::ReadWrite,
        };
        let options = CatalogOptions { access, ..CatalogOptions::default() };
        let catalog = Catalog::open(&blocks, &superblock.catalog, options)?;
        flaws.extend(catalog.flaws());
        if catalog.was_repaired() {
            flaws.push("the catalog had to be read as a whole".into());
        }
        let total = superblock.total_blocks;
        let allocator = Allocator::open(total, reserve_of(total), summaries(&catalog)?)?;
        let next_inode = match catalog.get(Key::State(NEXT_INODE))? {
            None => InodeNumber::ROOT.0 + 1,
            Some(value) => number_of(&value)?,
        };
        let orphans = orphans(&catalog)?;
        let state = VolumeState {
            pending: Pending::default(),
            allocator,
            next_inode,
            open: HashMap::new(),
            dirty: HashMap::new(),
            orphans,
            allocated: 0,
            freed: Vec::new(),
            retired: Vec::new(),
            superblock: superblock.clone(),
        };
        let shared = Arc::new(Shared {
            blocks,
            device,
            catalog,
            state: Mutex::new(state),
            board: Arc::default(),
            label: superblock.label.clone(),
            uuid: superblock.uuid,
            access,
            flaws,
            _lock: lock,
        });
        let committer = match access {
            Access::ReadOnly => None,
            Access::ReadWrite => {
                let its = shared.clone();
                let commit = move |board: &Board| its.commit(board).map_err(|error| error.errno());
                let started = Committer::start(shared.board.clone(), commit);
                let started = started.map_err(|error| {
                    Error::io("starting the thread that commits", Errno::AGAIN).because(error)
                })?;
                Some(Arc::new(started))
            }
        };
        Ok(Volume { shared, committer })
    }

    /// Sixteen bytes that no other volume has.
    pub fn uuid(&self) -> [u8; 16] {
        self.shared.uuid
    }

    /// The name it was given.
    pub fn label(&self) -> &str {
        &self.shared.label
    }

    /// What was found damaged when it was opened though nothing is lost, and why it has stopped, if
    /// it has: a line each.
    pub fn flaws(&self) -> Vec<String> {
        let failure = self.shared.catalog.failure().map(|error| error.to_string());
        self.shared.flaws.iter().cloned().chain(failure).collect()
    }

    /// The device it lies on.
    pub fn device(&self) -> &Device {
        &self.shared.device
    }

    /// Space.
    pub fn statistics(&self) -> Statistics {
        let space = self.shared.state.lock().allocator.space();
        Statistics {
            blocks: space.total,
            free_blocks: space.free - space.reserved,
            pending_blocks: space.pending,
        }
    }

    /// Opens a file, which a symbolic link at the path's end may lead to.
    ///
    /// # Errors
    /// ENOENT, EEXIST, EISDIR and what else paths meet; what the catalog says.
    pub fn open(&self, path: impl AsRef<[u8]>, options: OpenOptions) -> Result<File, Error> {
        let number = match (self.inode(&path, Follow::Yes), options.create) {
            (Ok(_), Some(_)) if options.exclusive => {
                return Err(Error::refused(Errno::EXIST, "it is there already"));
            }
            (Err(error), Some(permissions)) if error.errno() == Errno::NOENT => {
                self.make(path, Inode::new(FileKind::File, permissions))?
            }
            (found, _) => found?.0,
        };
        let inode = self.shared.inode(number)?;
        match inode.kind {
            FileKind::File => {}
            FileKind::Directory => {
                return Err(Error::refused(Errno::ISDIR, "it is a directory"));
            }
            _ => return Err(Error::refused(Errno::NXIO, "it holds no bytes")),
        }
        let open = self.shared.open(number)?;
        if options.truncate && open.snapshot().size > 0 {
            self.shared.set_size(&open, 0)?;
        }
        let map = VolumeMap { file: open, volume: self.clone() };
        Ok(File::with_map(self.shared.device.clone(), map, options.file))
    }

    /// Makes a file of any kind, a directory or a symbolic link among them.
    ///
    /// # Errors
    /// EEXIST, ENOENT and what else paths meet; what the catalog says.
    pub fn make(&self, path: impl AsRef<[u8]>, inode: Inode) -> Result<InodeNumber, Error> {
        self.change(|state, shared| state.create_at(&shared.catalog, path.as_ref(), inode))
    }

    /// Makes a directory.
    ///
    /// # Errors
    /// As [`Self::make`].
    pub fn make_directory(&self, path: impl AsRef<[u8]>, permissions: u16) -> Result<(), Error> {
        self.make(path, Inode::new(FileKind::Directory, permissions)).map(drop)
    }

    /// Makes a symbolic link.
    ///
    /// # Errors
    /// As [`Self::make`]; EINVAL for an empty target.
    pub fn make_symlink(&self, target: &[u8], path: impl AsRef<[u8]>) -> Result<(), Error> {
        if target.is_empty() || target.contains(&0) {
            return Err(Error::refused(Errno::INVAL, "a symbolic link has to lead somewhere"));
        }
        let mut inode = Inode::new(FileKind::Symlink, 0o777);
        (inode.size, inode.target) = (target.len() as u64, target.into());
        self.make(path, inode).map(drop)
    }

    /// Gives a file one more name.
    ///
    /// # Errors
    /// EEXIST, EPERM for a directory, and what else paths meet.
    pub fn link(&self, path: impl AsRef<[u8]>, new: impl AsRef<[u8]>) -> Result<(), Error> {
        self.change(|state, shared| {
            let records = &mut state.records(&shared.catalog);
            let number = records.resolve(path.as_ref(), Follow::No)?;
            let parent = records.parent(new.as_ref())?;
            records.link(number, parent.directory, &parent.name)
        })
    }

    /// Takes a file's name away, and the file with its last one; who has it open keeps it so long.
    ///
    /// # Errors
    /// ENOENT, EISDIR, and what else paths meet.
    pub fn remove(&self, path: impl AsRef<[u8]>) -> Result<(), Error> {
        self.change(|state, shared| {
            let records = &mut state.records(&shared.catalog);
            let parent = records.parent(path.as_ref())?;
            let orphan = records.unlink(parent.directory, &parent.name)?;
            state.bury(shared, orphan)
        })
    }

    /// Removes a directory that holds nothing.
    ///
    /// # Errors
    /// ENOENT, ENOTDIR, ENOTEMPTY, and what else paths meet.
    pub fn remove_directory(&self, path: impl AsRef<[u8]>) -> Result<(), Error> {
        self.change(|state, shared| {
            let records = &mut state.records(&shared.catalog);
            let parent = records.parent(path.as_ref())?;
            let orphan = records.remove_directory(parent.directory, &parent.name)?;
            state.bury(shared, orphan)
        })
    }

    /// Moves a name, and what it names.
    ///
    /// # Errors
    /// As [`Self::make`] and [`Self::remove_directory`]; EINVAL for a directory into itself.
    pub fn rename(
        &self,
        path: impl AsRef<[u8]>,
        new: impl AsRef<[u8]>,
        how: Rename,
    ) -> Result<(), Error> {
        self.change(|state, shared| {
            let records = &mut state.records(&shared.catalog);
            let source = records.parent(path.as_ref())?;
            let target = records.parent(new.as_ref())?;
            let orphan = records.rename(
                (source.directory, &source.name),
                (target.directory, &target.name),
                how,
            )?;
            state.bury(shared, orphan)
        })
    }

    /// What is known of a file.
    ///
    /// # Errors
    /// ENOENT and what else paths meet.
    pub fn inode(
        &self,
        path: impl AsRef<[u8]>,
        follow: Follow,
    ) -> Result<(InodeNumber, Inode), Error> {
        let number = {
            let mut state = self.shared.state.lock();
            state.records(&self.shared.catalog).resolve(path.as_ref(), follow)?
        };
        Ok((number, self.shared.inode(number)?))
    }

    /// Changes what is known of a file: permissions, owners, times. Kind, size, links and target
    /// stay what they are.
    ///
    /// # Errors
    /// ENOENT and what else paths meet.
    pub fn set_attributes(
        &self,
        path: impl AsRef<[u8]>,
        follow: Follow,
        set: impl FnOnce(&mut Inode),
    ) -> Result<(), Error> {
        self.change(|state, shared| {
            let records = &mut state.records(&shared.catalog);
            let number = records.resolve(path.as_ref(), follow)?;
            let was = records.inode(number)?;
            let mut inode = was.clone();
            if let Some(modified) = state.opened(number).and_then(|open| open.take_modified()) {
                // It was before this, and must not come after it.
                inode.modified = modified;
            }
            inode.changed = Time::now();
            set(&mut inode);
            (inode.kind, inode.size, inode.links) = (was.kind, was.size, was.links);
            (inode.target, inode.parent) = (was.target, was.parent);
            inode.permissions &= 0o7777;
            state.records(&shared.catalog).put_inode(number, &inode);
            Ok(())
        })
    }

    /// Names in a directory behind `after`, in order of their bytes: some of them, or none when
    /// there are no more.
    ///
    /// # Errors
    /// ENOENT, ENOTDIR, and what else paths meet.
    pub fn entries(
        &self,
        path: impl AsRef<[u8]>,
        after: &[u8],
    ) -> Result<Vec<DirectoryEntry>, Error> {
        let state = &mut *self.shared.state.lock();
        let records = state.records(&self.shared.catalog);
        let number = records.resolve(path.as_ref(), Follow::Yes)?;
        if records.inode(number)?.kind != FileKind::Directory {
            return Err(Error::refused(Errno::NOTDIR, "it is no directory"));
        }
        records.entries(number, after)
    }

    /// Makes everything that was changed and written durable.
    ///
    /// # Errors
    /// EIO when the device or the catalog failed, now or before.
    pub fn sync(&self) -> Result<(), Error> {
        if self.committer.is_none() {
            return Ok(());
        }
        let failed = |errno| Error::io("making the volume's changes durable", errno);
        self.shared.board.wait(self.shared.board.next()).map_err(failed)
    }

    /// Does something to names; asks for a commit when much waits.
    fn change<T>(
        &self,
        how: impl FnOnce(&mut VolumeState, &Shared) -> Result<T, Error>,
    ) -> Result<T, Error> {
        if self.shared.access == Access::ReadOnly {
            return Err(Error::refused(Errno::ROFS, "the volume is open for reading only"));
        }
        if self.shared.board.has_failed() {
            let what = "a commit has failed and the volume has stopped; open it anew";
            return Err(Error::new(ErrorKind::Io(Errno::IO), what));
        }
        let state = &mut *self.shared.state.lock();
        let done = how(state, &self.shared)?;
        if state.pending.waiting() > MOST_WAITING {
            self.shared.board.ask(self.shared.board.next());
        }
        Ok(done)
    }
}

impl VolumeState {
    fn records<'v>(&'v mut self, catalog: &'v Catalog) -> Records<'v> {
        Records { catalog, pending: &mut self.pending }
    }

    /// A file that is open.
    fn opened(&self, number: InodeNumber) -> Option<Arc<OpenFile>> {
        self.open.get(&number).and_then(Weak::upgrade)
    }

    fn create_at(
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
    fn bury(&mut self, shared: &Shared, orphan: Option<Orphan>) -> Result<(), Error> {
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

    /// Has blocks be free once that is committed and nobody reads them any more.
    fn free(&mut self, catalog: &Catalog, run: Run) -> Result<(), Error> {
        let Self { allocator, pending, freed, .. } = self;
        allocator.free(run, |region| region_of(catalog, pending, region))?;
        freed.push(run);
        Ok(())
    }

    /// Makes free what was freed, committed, and is read by nobody any more.
    fn release_quiet(&mut self, device: &Device) {
        let domain = quiescence(device.index());
        let (quiet, busy): (Vec<_>, Vec<_>) =
            self.retired.drain(..).partition(|(epoch, _)| domain.passed(*epoch));
        self.retired = busy;
        for run in quiet.into_iter().flat_map(|(_, runs)| runs) {
            self.allocator.release(run);
        }
    }

    /// Blocks that the catalog is going to need.
    fn allocate_for_catalog(&mut self, catalog: &Catalog) -> Result<Vec<Run>, Error> {
        let mut left = catalog.wanted_blocks();
        let mut runs = Vec::new();
        let Self { allocator, pending, .. } = self;
        while left > 0 {
            let goal = runs.last().map(|run: &Run| run.end());
            let want = Want { blocks: left, least: left.min(64), goal, caller: 0 };
            let load = |region| region_of(catalog, pending, region);
            // Without them commits go on as long as the catalog has room.
            let Some(run) = allocator.allocate_reserved::<Error>(want, load)? else { break };
            left -= run.length;
            runs.push(run);
        }
        Ok(runs)
    }

    /// Destroys the orphans that nobody has open any more.
    fn bury_closed(&mut self, catalog: &Catalog) -> Result<(), Error> {
        let is_open =
            |orphan: &Orphan| self.open.get(&orphan.0).is_some_and(|open| open.strong_count() > 0);
        let (open, closed): (Vec<_>, Vec<_>) = self.orphans.drain(..).partition(is_open);
        self.orphans = open;
        closed.into_iter().try_for_each(|orphan| self.destroy(catalog, orphan))
    }
}

fn reserve_of(blocks: u64) -> u64 {
    (blocks / RESERVE_SHARE).clamp(64, 65_536)
}

fn number_of(value: &[u8]) -> Result<u64, Error> {
    let bytes = value.try_into().map_err(|_| Error::damaged("a counter is not of its length"))?;
    Ok(u64::from_be_bytes(bytes))
}

/// A region in the catalog: what is always in memory of it, then its free blocks.
fn region_record(changed: &ChangedRegion) -> Vec<u8> {
    let RegionSummary { free, longest } = changed.summary;
    [&free.to_be_bytes()[..], &longest.to_be_bytes(), &changed.record].concat()
}

fn summary_of(record: &[u8]) -> Result<(RegionSummary, &[u8]), Error> {
    let word = |bytes: &[u8; 2]| u16::from_be_bytes(*bytes);
    let parsed = record.split_first_chunk::<2>().and_then(|(free, rest)| {
        let (longest, rest) = rest.split_first_chunk::<2>()?;
        Some((RegionSummary { free: word(free), longest: word(longest) }, rest))
    });
    parsed.ok_or_else(|| Error::damaged("a region's record is too short"))
}

/// A region's free blocks as the last commit that takes its changes has them.
fn region_of(catalog: &Catalog, pending: &Pending, region: u32) -> Result<Option<Vec<u8>>, Error> {
    let record = match pending.get(Key::Region(region)) {
        Known::Value(record) => Some(record.to_vec()),
        Known::Gone => None,
        Known::Nothing => catalog.get(Key::Region(region))?,
    };
    record.map(|record| Ok(summary_of(&record)?.1.to_vec())).transpose()
}

fn summaries(catalog: &Catalog) -> Result<Vec<(u32, RegionSummary)>, Error> {
    let mut summaries = Vec::new();
    loop {
        let next = summaries.last().map_or(0, |(region, _): &(u32, _)| region + 1);
        let batch = catalog.regions(next, usize::MAX)?;
        if batch.is_empty() {
            return Ok(summaries);
        }
        for (region, record) in batch {
            summaries.push((region, summary_of(&record)?.0));
        }
    }
}

fn orphans(catalog: &Catalog) -> Result<Vec<Orphan>, Error> {
    let mut orphans: Vec<Orphan> = Vec::new();
    loop {
        let next = orphans.last().map_or(0, |orphan| orphan.0.0 + 1);
        let batch = catalog.orphans(next, usize::MAX)?;
        if batch.is_empty() {
            return Ok(orphans);
        }
        orphans.extend(batch.into_iter().map(|(number, _)| Orphan(InodeNumber(number))));
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

impl Shared {
    /// An inode, with the size that an open file has.
    fn inode(&self, number: InodeNumber) -> Result<Inode, Error> {
        let state = &mut *self.state.lock();
        let mut inode = state.records(&self.catalog).inode(number)?;
        if let Some(open) = state.opened(number) {
            inode.size = open.snapshot().size;
            if let Some(modified) = open.modified() {
                (inode.modified, inode.changed) = (modified, inode.changed.max(modified));
            }
        }
        Ok(inode)
    }

    fn open(&self, number: InodeNumber) -> Result<Arc<OpenFile>, Error> {
        let state = &mut *self.state.lock();
        if let Some(open) = state.opened(number) {
            return Ok(open);
        }
        let total = state.superblock.total_blocks;
        let records = state.records(&self.catalog);
        let size = records.inode(number)?.size;
        let mut map = ExtentMap::new();
        let mut scanned = Some(records.scan(number, Key::Extent(number.0, 0))?);
        while let Some(batch) = scanned {
            for extent in extents_of(&batch, total).map_err(|error| error.of(inode_name(number)))? {
                map.push(extent)
                    .map_err(|flaw| Error::damaged(format!("{}: {flaw}", inode_name(number))))?;
            }
            scanned = records.scan_on(Table::Extents, number, &batch)?;
        }
        let open = Arc::new(OpenFile::new(number, map, size));
        state.open.insert(number, Arc::downgrade(&open));
        Ok(open)
    }

    /// Has every block of a range lie somewhere.
    pub(crate) fn allocate(&self, file: &Arc<OpenFile>, blocks: Range<u64>) -> Result<(), Errno> {
        let state = &mut *self.state.lock();
        let wanted = blocks.end - blocks.start;
        if state.allocator.space().free < wanted && !state.retired.is_empty() {
            state.release_quiet(&self.device);
        }
        let VolumeState { allocator, pending, dirty, allocated, .. } = state;
        let mut load = |region| region_of(&self.catalog, pending, region);
        let mut made: Vec<Extent> = Vec::new();
        for hole in file.holes(blocks) {
            let mut at = hole.start;
            while at < hole.end {
                let goal = match made.last() {
                    Some(extent) if extent.end() == at => Some(extent.start + extent.length),
                    _ => file.goal(at),
                };
                let caller = file.number.0 as usize;
                let want = Want { blocks: hole.end - at, least: 1, goal, caller };
                let Run { start, length } = match allocator.allocate(want, &mut load) {
                    Ok(Some(run)) => run,
                    other => {
                        for extent in &made {
                            // It was allocated a moment ago, and nobody has heard of it.
                            let freed = allocator.free(extent.run(), &mut load);
                            freed.map_err(|error| error.errno())?;
                            allocator.release(extent.run());
                        }
                        return Err(other.map_or_else(|error| error.errno(), |_| Errno::NOSPC));
                    }
                };
                made.push(Extent { offset: at, start, length, state: State::Unwritten });
                at += length;
            }
        }
        file.insert(&made);
        dirty.insert(file.number, file.clone());
        *allocated += made.len();
        if *allocated > MOST_WAITING {
            self.board.ask(self.board.next());
        }
        Ok(())
    }

    fn set_size(&self, file: &Arc<OpenFile>, bytes: u64) -> Result<(), Error> {
        let state = &mut *self.state.lock();
        for run in file.set_size(bytes) {
            state.free(&self.catalog, run)?;
        }
        state.dirty.insert(file.number, file.clone());
        Ok(())
    }

    /// One commit: what was written becomes durable before what says where it is.
    fn commit(&self, board: &Board) -> Result<(), Error> {
        let (changes, freed, for_catalog) = {
            let state = &mut *self.state.lock();
            let commit = board.begin();
            state.allocated = 0;
            let for_catalog = state.allocate_for_catalog(&self.catalog)?;
            for (number, file) in std::mem::take(&mut state.dirty) {
                let edited = file.collect(state.pending.current(), commit);
                if let Some((size, modified)) = edited {
                    let mut records = state.records(&self.catalog);
                    let mut inode = records.inode(number)?;
                    inode.size = size;
                    if let Some(modified) = modified {
                        (inode.modified, inode.changed) = (modified, inode.changed.max(modified));
                    }
                    records.put_inode(number, &inode);
                }
            }
            // What was only open because it was dirty is not any more.
            state.bury_closed(&self.catalog)?;
            for changed in state.allocator.take_changed() {
                state.pending.current().put(Key::Region(changed.index), region_record(&changed));
            }
            let next = state.next_inode.to_be_bytes().to_vec();
            state.pending.current().put(Key::State(NEXT_INODE), next);
            (state.pending.begin_commit(), std::mem::take(&mut state.freed), for_catalog)
        };
        self.blocks.flush().map_err(|errno| Error::io("flushing what was written", errno))?;
        let mut batch = changes.to_batch();
        if !freed.is_empty() {
            batch.reserve(Reserve::Use);
        }
        self.catalog.commit(&batch)?;
        if !for_catalog.is_empty() {
            // They are taken in the catalog before they belong to it: a crash in between loses a
            // few blocks, and never gives one to two.
            let mut superblock = self.state.lock().superblock.clone();
            self.catalog.extend(&mut superblock, &for_catalog)?;
            self.state.lock().superblock = superblock;
        }
        let epoch = quiescence(self.device.index()).retire();
        let state = &mut *self.state.lock();
        state.pending.end_commit();
        state.retired.push((epoch, freed));
        state.release_quiet(&self.device);
        Ok(())
    }
}

fn inode_name(number: InodeNumber) -> String {
    format!("inode {}", number.0)
}

impl Volume {
    pub(crate) fn allocate(&self, file: &Arc<OpenFile>, blocks: Range<u64>) -> Result<(), Errno> {
        match self.shared.access {
            Access::ReadWrite => self.shared.allocate(file, blocks),
            Access::ReadOnly => Err(Errno::ROFS),
        }
    }

    /// Notes that a file is to be committed.
    pub(crate) fn note_dirty(&self, file: &Arc<OpenFile>) {
        self.shared.state.lock().dirty.insert(file.number, file.clone());
    }

    /// What makes a file's size and extents durable, if they are not.
    pub(crate) fn commit_of(&self, file: &OpenFile) -> Option<Commit> {
        let number = file.durable_with(self.shared.board.next());
        let board = &self.shared.board;
        board.is_pending(number).then(|| board.clone().wait_in_task(number))
    }
}
