//! Making a volume, and opening it: what is read of the catalog before the first file is.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::io::Errno;
use uringfs_device::Device;

use crate::allocator::{Allocator, RegionSummary};
use crate::blocks::{BLOCK, Blocks, Run};
use crate::catalog::{Access, Batch, Catalog, CatalogOptions, Key, MIN_BLOCKS};
use crate::changes::Pending;
use crate::committer::{Board, Committer};
use crate::error::{Error, ErrorKind};
use crate::inode::{FileKind, Inode, InodeNumber};
use crate::lock::{Lock, Others};
use crate::names::Orphan;
use crate::shared::{NEXT_INODE, Shared, VolumeState, region_of, region_record, summary_of};
use crate::superblock::{Found, RESERVED_BLOCKS, Superblock};
use crate::volume::Volume;

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
    /// when a volume on it is open, here or in another program; the device's.
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
    /// `NotAVolume`, `Damaged`, `Unsupported`; EBUSY when it is open for writing, here or in another
    /// program, or at all if it is to be written; the device's.
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
        let mut allocator = Allocator::open(total, reserve_of(total), summaries(&catalog)?)?;
        for run in &superblock.catalog {
            // After a crash between the two the regions do not know of them yet. A region that cannot
            // be read is not allocated from, either.
            let taken = allocator
                .take_free(*run, |region| region_of(&catalog, &Pending::default(), region));
            flaws.extend(taken.err().map(|error: Error| error.to_string()));
        }
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
                let commit = move |board: &Board| its.commit(board);
                let started = Committer::start(shared.board.clone(), commit);
                let started = started.map_err(|error| {
                    Error::io("starting the thread that commits", Errno::AGAIN).because(error)
                })?;
                Some(Arc::new(started))
            }
        };
        Ok(Volume { shared, committer })
    }
}

fn reserve_of(blocks: u64) -> u64 {
    (blocks / RESERVE_SHARE).clamp(64, 65_536)
}

fn number_of(value: &[u8]) -> Result<u64, Error> {
    let bytes = value.try_into().map_err(|_| Error::damaged("a counter is not of its length"))?;
    Ok(u64::from_be_bytes(bytes))
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
