//! The superblock: identity and size of a volume, and the blocks of its catalog. It lies in two
//! slots, so that one of them is whole at every moment. A backup superblock lies far from both. Only a
//! repair uses it; opening compares it with the slots. `docs/format.md` has the bytes.
//!
//! A superblock that [`Superblock::read`] returns can be trusted: every field was checked against
//! the others and against the device.

use std::cmp::Ordering;
use std::fmt;
use std::mem::size_of;
use std::time::{SystemTime, UNIX_EPOCH};

use crc_fast::{CrcAlgorithm, checksum as crc_checksum};
use rustix::rand::{GetRandomFlags, getrandom};
use uringfs_buffer::Buffer;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::blocks::{BLOCK, BlockIo, Run};
use crate::error::{Error, ErrorKind};

/// Blocks at the beginning of the device that hold nothing but superblocks: the minimum, and the
/// number in volumes of older versions.
pub(crate) const RESERVED_BLOCKS: u64 = 32;
/// Their number in a new volume that is not small: 4 MiB, so that the catalog survives when
/// something overwrites the beginning of the device.
const MAX_RESERVED_BLOCKS: u64 = (4 << 20) / BLOCK;
/// A small volume reserves one block in this many.
const BLOCKS_PER_RESERVED: u64 = 8;
/// Blocks of the slots. They are apart, so that one damaged spot rarely affects both.
pub(crate) const SLOTS: [u64; 2] = [0, 16];
/// Block of the backup superblock. In a smaller volume it is the last block.
const BACKUP_BLOCK: u64 = (64 << 20) / BLOCK;
/// The most runs of blocks of the catalog.
pub(crate) const MAX_CATALOG_RUNS: usize = 240;
/// The most blocks of the catalog's log, both halves together.
pub(crate) const MAX_LOG_BLOCKS: u64 = 512;
/// The most bytes of a label.
pub(crate) const MAX_LABEL_BYTES: usize = 64;
/// Blocks of the largest volume: 64 TiB.
pub(crate) const MAX_BLOCKS: u64 = (64 << 40) / BLOCK;

const MAGIC: [u8; 8] = *b"uringfs\x1a";
/// The format version that this code reads and writes.
const VERSION: u32 = 2;
/// A backup superblock lies in block [`Superblock::backup_block`]. Each write of the slots must write it,
/// too.
const HAS_COPY: u64 = 1;
/// Inode records may have version 3.
const WIDE_TIMES: u64 = 1;

/// One bit for each thing a volume may use that earlier code did not know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Features {
    /// Code that does not know one of these may read and write.
    pub(crate) compatible: u64,
    /// Code that does not know one of these may only read.
    pub(crate) read_only_compatible: u64,
    /// Code that does not know one of these must not open the volume.
    pub(crate) incompatible: u64,
}

impl Features {
    /// The features of new volumes, which are all that this code knows.
    pub(crate) const CURRENT: Features =
        Features { compatible: 0, read_only_compatible: HAS_COPY, incompatible: WIDE_TIMES };
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Superblock {
    pub(crate) features: Features,
    /// Number of superblocks written. The slot with the higher number is used.
    pub(crate) generation: u64,
    /// Sixteen random bytes that identify the volume.
    pub(crate) uuid: [u8; 16],
    pub(crate) label: String,
    /// Blocks of the volume. The device may have more.
    pub(crate) total_blocks: u64,
    /// Nanoseconds since 1970.
    pub(crate) created_ns: u64,
    /// The runs of the catalog, in its order.
    pub(crate) catalog: Vec<Run>,
    /// The run of the catalog's log. Its length is 0 if there is none.
    pub(crate) log: Run,
    /// Blocks at the beginning that hold nothing but superblocks.
    reserved: u64,
    /// Index in [`SLOTS`] of the slot that this was read from. The other slot is written first.
    slot: usize,
    /// Bytes for compatible features, kept as they were read.
    spare: [u8; SPARE_BYTES],
}

/// A superblock as it was read, with the state of its slots and of the backup.
#[derive(Debug)]
pub(crate) struct LoadedSuperblock {
    pub(crate) superblock: Superblock,
    /// Unusable slots, and the backup if it is unusable. Writing the superblock repairs them.
    pub(crate) bad_slots: Vec<BadSlot>,
}

impl LoadedSuperblock {
    /// Whether the backup belongs to the same volume as the slots. False without a backup.
    pub(crate) fn has_own_backup(&self) -> bool {
        let backup = self.superblock.backup_block();
        let is_other =
            |slot: &BadSlot| Some(slot.block) == backup && slot.defect != SlotDefect::Older;
        backup.is_some() && !self.bad_slots.iter().any(is_other)
    }

    /// Call it with the number of blocks that the catalog records. If the power was cut while the
    /// volume grew, the backup may not be written at its new place yet: the block there counts as
    /// older, and not as damaged.
    pub(crate) fn reclassify_backup(&mut self, known: u64) {
        if self.superblock.previous_backup(known).is_some() {
            let backup = self.superblock.backup_block();
            let found = self.bad_slots.iter_mut().filter(|slot| Some(slot.block) == backup);
            found.for_each(|slot| slot.defect = SlotDefect::Older);
        }
    }
}

/// An unusable slot or backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BadSlot {
    pub(crate) block: u64,
    pub(crate) defect: SlotDefect,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SlotDefect {
    Unreadable(rustix::io::Errno),
    NoMagic,
    Checksum,
    /// The checksum is right, but a field is invalid.
    Field(&'static str),
    /// Valid, but written before the newest.
    Older,
    /// Valid, but of another volume.
    Foreign,
}

impl fmt::Display for SlotDefect {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SlotDefect::Unreadable(errno) => write!(out, "unreadable ({errno})"),
            SlotDefect::NoMagic => write!(out, "no superblock"),
            SlotDefect::Checksum => write!(out, "wrong checksum"),
            SlotDefect::Field(which) => write!(out, "wrong {which}"),
            SlotDefect::Older => write!(out, "older than the newest"),
            SlotDefect::Foreign => write!(out, "of another volume"),
        }
    }
}

impl fmt::Display for BadSlot {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "superblock in block {}: {}", self.block, self.defect)
    }
}

const SPARE_BYTES: usize = 80;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct RawRun {
    start: U64,
    length: U64,
}

/// A slot on the device. Magic, checksum and version have the same position in every version.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawSlot {
    magic: [u8; 8],
    /// CRC32C of every byte of the slot after this field.
    checksum: U32,
    version: U32,
    compatible: U64,
    read_only_compatible: U64,
    incompatible: U64,
    generation: U64,
    uuid: [u8; 16],
    /// UTF-8, padded with zeros.
    label: [u8; MAX_LABEL_BYTES],
    block_size: U32,
    catalog_runs: U32,
    total_blocks: U64,
    created_ns: U64,
    log: RawRun,
    /// 0 in volumes that have [`RESERVED_BLOCKS`].
    reserved: U64,
    spare: [u8; SPARE_BYTES],
    catalog: [RawRun; MAX_CATALOG_RUNS],
}

impl From<Run> for RawRun {
    fn from(run: Run) -> RawRun {
        RawRun { start: run.start.into(), length: run.length.into() }
    }
}

impl From<RawRun> for Run {
    fn from(raw: RawRun) -> Run {
        Run { start: raw.start.get(), length: raw.length.get() }
    }
}

const _: () = assert!(size_of::<RawSlot>() == BLOCK as usize);
/// The first byte that the checksum covers.
const CHECKSUM_START: usize = 12;
/// Blocks read at once in the search for backup superblocks.
const SCAN_BLOCKS: usize = 256;

impl Superblock {
    /// Creates the superblock of a new volume of `total_blocks`, with its catalog in `catalog` and
    /// the log in `log`. Does not write it. The blocks before both are reserved.
    ///
    /// # Errors
    /// `Input` for a label over [`MAX_LABEL_BYTES`] bytes or with a zero byte, too many blocks, and
    /// a catalog outside the volume.
    pub(crate) fn new(
        total_blocks: u64,
        label: &str,
        catalog: Vec<Run>,
        log: Run,
    ) -> Result<Superblock, Error> {
        if label.len() > MAX_LABEL_BYTES || label.contains('\0') {
            let context =
                format!("label {label:?}: at most {MAX_LABEL_BYTES} bytes, none of them zero");
            return Err(Error::new(ErrorKind::Input, context));
        }
        let mut uuid = [0; 16];
        getrandom(&mut uuid, GetRandomFlags::empty())
            .map_err(|errno| Error::io("drawing the volume's UUID", errno))?;
        let age = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let reserved = catalog.iter().chain([&log]).map(|run| run.start).min().unwrap_or(0);
        let superblock = Superblock {
            features: Features::CURRENT,
            generation: 0,
            uuid,
            label: label.into(),
            total_blocks,
            created_ns: u64::try_from(age.as_nanos()).unwrap_or(u64::MAX),
            catalog,
            log,
            reserved,
            slot: 0,
            spare: [0; SPARE_BYTES],
        };
        superblock.check().map_err(|which| {
            Error::new(
                ErrorKind::Input,
                format!("cannot make a volume of {total_blocks} blocks: invalid {which}"),
            )
        })?;
        Ok(superblock)
    }

    /// Blocks that a new volume of `total_blocks` reserves for superblocks.
    pub(crate) fn reserved_for(total_blocks: u64) -> u64 {
        (total_blocks / BLOCKS_PER_RESERVED).clamp(RESERVED_BLOCKS, MAX_RESERVED_BLOCKS)
    }

    /// Blocks at the beginning that hold nothing but superblocks.
    pub(crate) fn reserved(&self) -> u64 {
        self.reserved
    }

    /// The block of the backup in a volume of `total_blocks` that has one.
    pub(crate) fn backup_block_in(total_blocks: u64) -> u64 {
        BACKUP_BLOCK.min(total_blocks - 1)
    }

    /// The block of the backup, if the volume has one.
    pub(crate) fn backup_block(&self) -> Option<u64> {
        let has_backup = self.features.read_only_compatible & HAS_COPY != 0;
        has_backup.then(|| Superblock::backup_block_in(self.total_blocks))
    }

    /// The former block of the backup, if the volume has grown since it had `known` blocks.
    pub(crate) fn previous_backup(&self, known: u64) -> Option<Run> {
        let left = Superblock::backup_block_in(known);
        (self.backup_block()? != left).then_some(Run { start: left, length: 1 })
    }

    /// The runs of the reserved blocks and the backup.
    pub(crate) fn system_runs(&self) -> impl Iterator<Item = Run> + use<> {
        let reserved = Run { start: 0, length: self.reserved };
        [reserved].into_iter().chain(self.backup_block().map(|start| Run { start, length: 1 }))
    }

    /// Reads the newer of the valid slots.
    ///
    /// # Errors
    /// - `NotAVolume` when neither a slot nor a backup holds a superblock.
    /// - `Damaged` when no slot is valid, when the backup is newer than both, and when the device is
    ///   shorter than the volume but has the backup of another one.
    /// - `Unsupported` for another format version, for unknown incompatible features, and for a
    ///   device shorter than the volume.
    /// - `Io` when no slot is valid and one cannot be read.
    pub(crate) fn read(blocks: &BlockIo) -> Result<LoadedSuperblock, Error> {
        if blocks.count() <= RESERVED_BLOCKS {
            let what = "not a uringfs volume: the device is too short to hold one";
            return Err(Error::new(ErrorKind::NotAVolume, what));
        }
        let (mut good, mut bad_slots) = (Vec::new(), Vec::new());
        for (slot, &block) in SLOTS.iter().enumerate() {
            match read_slot(blocks, block)? {
                Ok(found) => good.push(Superblock { slot, ..found }),
                Err(defect) => bad_slots.push(BadSlot { block, defect }),
            }
        }
        good.sort_by_key(|superblock| std::cmp::Reverse(superblock.generation));
        if let [newer, older] = &good[..]
            && newer.uuid != older.uuid
            && older.is_of_its_backup(blocks)
        {
            good.swap(0, 1);
        }
        let mut good = good.into_iter();
        let Some(superblock) = good.next() else {
            return Err(no_good_slot(blocks, &bad_slots));
        };
        if let Some(other) = good.next() {
            let defect = match other.generation < superblock.generation {
                _ if other.uuid != superblock.uuid => Some(SlotDefect::Foreign),
                true => Some(SlotDefect::Older),
                false => None,
            };
            let block = SLOTS[other.slot];
            bad_slots.extend(defect.map(|defect| BadSlot { block, defect }));
        }
        if let Err(error) = superblock.check_device(blocks) {
            return Err(superblock.error_with_other_backup(blocks, &error).unwrap_or(error));
        }
        if let Some(block) = superblock.backup_block() {
            let defect = match read_slot(blocks, block) {
                Ok(Ok(backup)) if backup.uuid != superblock.uuid => Some(SlotDefect::Foreign),
                Ok(Ok(backup)) => match backup.generation.cmp(&superblock.generation) {
                    Ordering::Equal => None,
                    Ordering::Less => Some(SlotDefect::Older),
                    Ordering::Greater => return Err(stale_slots(block)),
                },
                Ok(Err(defect)) => Some(defect),
                // Only the slots decide the version of the volume.
                Err(_) => Some(SlotDefect::Field("version")),
            };
            bad_slots.extend(defect.map(|defect| BadSlot { block, defect }));
        }
        Ok(LoadedSuperblock { superblock, bad_slots })
    }

    /// Whether the block of its backup holds a superblock of the same volume.
    fn is_of_its_backup(&self, blocks: &BlockIo) -> bool {
        let backup = self.backup_block().map(|block| read_slot(blocks, block));
        matches!(backup, Some(Ok(Ok(backup))) if backup.uuid == self.uuid)
    }

    /// The error of a superblock that does not match its device or its catalog, if the device has a backup
    /// superblock of another volume: something may have overwritten the slots. Names the backup.
    pub(crate) fn error_with_other_backup(&self, blocks: &BlockIo, error: &Error) -> Option<Error> {
        let is_other =
            |backup: &Superblock| backup.uuid != self.uuid && backup.check_device(blocks).is_ok();
        let backups = Superblock::find_backups(blocks);
        let (block, _) = backups.iter().find(|(_, backup)| is_other(backup))?;
        Some(Error::damaged(format!(
            "{error}; the superblocks in blocks 0 and 16 are of another volume than the backup \
             superblock {}: run uringfs check --repair",
            describe_backup(*block)
        )))
    }

    /// Finds all valid backups on the device, the newest first, each with its block. A small
    /// volume's backup lies in its last block, and only its superblock records which block is the
    /// last. So all blocks that may hold a backup are read.
    pub(crate) fn find_backups(blocks: &BlockIo) -> Vec<(u64, Superblock)> {
        let end = blocks.count().min(BACKUP_BLOCK + 1);
        let mut backups = Vec::new();
        for first in (RESERVED_BLOCKS..end).step_by(SCAN_BLOCKS) {
            let part = SCAN_BLOCKS.min((end - first) as usize);
            let looks_like_one = |bytes: &[u8]| bytes.starts_with(&MAGIC);
            let candidates: Vec<u64> = match blocks.read(first, part * BLOCK as usize) {
                Ok(bytes) => {
                    let parts = (first..).zip(bytes.chunks_exact(BLOCK as usize));
                    parts.filter(|(_, bytes)| looks_like_one(bytes)).map(|(at, _)| at).collect()
                }
                // Single blocks may be readable.
                Err(_) => (first..first + part as u64).collect(),
            };
            for block in candidates {
                if let Ok(Ok(backup)) = read_slot(blocks, block)
                    && backup.backup_block() == Some(block)
                {
                    backups.push((block, backup));
                }
            }
        }
        backups.sort_by_key(|(_, backup)| std::cmp::Reverse(backup.generation));
        backups
    }

    /// Reads the defects of the slots, for a backup that is used instead of them.
    pub(crate) fn replacing_slots(self, blocks: &BlockIo) -> LoadedSuperblock {
        let defect = |block: u64| match read_slot(blocks, block) {
            Ok(Err(defect)) => defect,
            Ok(Ok(other)) if other.uuid != self.uuid => SlotDefect::Foreign,
            Ok(Ok(_)) => SlotDefect::Older,
            Err(_) => SlotDefect::Field("version"),
        };
        let bad_slots = SLOTS.map(|block| BadSlot { block, defect: defect(block) }).to_vec();
        LoadedSuperblock { superblock: self, bad_slots }
    }

    /// Refuses a device that is shorter than the volume.
    ///
    /// # Errors
    /// `Unsupported`.
    pub(crate) fn check_device(&self, blocks: &BlockIo) -> Result<(), Error> {
        let (needed, there) = (self.total_blocks, blocks.count());
        if there < needed {
            let context = format!(
                "the volume has {} bytes, the device only {}: it was truncated, or is not the one \
                 the volume was made on",
                needed * BLOCK,
                there * BLOCK
            );
            return Err(Error::new(ErrorKind::Unsupported, context));
        }
        Ok(())
    }

    /// Whether the volume lacks features of new volumes. This code then only reads it, or upgrades
    /// it.
    pub(crate) fn needs_upgrade(&self) -> bool {
        let (has, now) = (self.features, Features::CURRENT);
        has.read_only_compatible & now.read_only_compatible != now.read_only_compatible
            || has.incompatible & now.incompatible != now.incompatible
    }

    /// Adds the features of new volumes. Does not write the superblock.
    pub(crate) fn upgrade(&mut self) {
        self.features.read_only_compatible |= Features::CURRENT.read_only_compatible;
        self.features.incompatible |= Features::CURRENT.incompatible;
    }

    /// The catalog's record of the superblock that names it, or will name it: generation and UUID.
    pub(crate) fn identity(&self, generation: u64) -> Vec<u8> {
        [&generation.to_be_bytes()[..], &self.uuid].concat()
    }

    /// Whether the volume uses a feature with which this code may only read.
    pub(crate) fn is_read_only(&self) -> bool {
        self.features.read_only_compatible & !Features::CURRENT.read_only_compatible != 0
    }

    /// Writes a new generation into both slots and then the backup, each durable before the next is
    /// written. The catalog and log that the superblock names must be durable before.
    ///
    /// # Errors
    /// `Io`; one slot then still holds this or the previous generation. `Input`, with nothing
    /// written, when a field is invalid.
    pub(crate) fn write(&mut self, blocks: &BlockIo) -> Result<(), Error> {
        self.check().map_err(|which| {
            Error::new(ErrorKind::Input, format!("superblock not written: wrong {which}"))
        })?;
        self.generation += 1;
        // The slot that was not read may be the torn one, so it is written first.
        let slots = [1 - self.slot, self.slot].map(|slot| SLOTS[slot]);
        for block in slots.into_iter().chain(self.backup_block()) {
            blocks
                .write(block, Buffer::copy_of(self.to_raw().as_bytes()))
                .and_then(|()| blocks.flush())
                .map_err(|e| Error::io(format!("writing the superblock in block {block}"), e))?;
        }
        Ok(())
    }

    /// Writes the slot that this superblock was read from again, unchanged. It may be in the
    /// device's cache only, if the last writer was killed before the flush, or the flush failed.
    /// Otherwise the first write of [`Self::write`] could destroy the only durable slot. A power
    /// cut meanwhile leaves the slot unchanged.
    ///
    /// # Errors
    /// The device's.
    pub(crate) fn rewrite_slot(&self, blocks: &BlockIo) -> Result<(), Error> {
        let block = SLOTS[self.slot];
        blocks
            .write(block, Buffer::copy_of(self.to_raw().as_bytes()))
            .and_then(|()| blocks.flush())
            .map_err(|e| Error::io(format!("writing the superblock in block {block} again"), e))
    }

    /// Erases both slots, and each block that may hold the backup of the previous volume or of this
    /// one. No volume is left on the device.
    ///
    /// # Errors
    /// The device's.
    pub(crate) fn erase(&self, blocks: &BlockIo) -> Result<(), Error> {
        let before = SLOTS.iter().filter_map(|slot| read_slot(blocks, *slot).ok()?.ok());
        let sizes = before.map(|before| before.total_blocks).chain([blocks.count()]);
        let mut backups: Vec<u64> = sizes.map(Superblock::backup_block_in).collect();
        backups.retain(|block| match blocks.read(*block, BLOCK as usize) {
            Ok(bytes) => bytes.starts_with(&MAGIC),
            Err(_) => false,
        });
        let erased =
            SLOTS.into_iter().chain(backups).chain(self.backup_block()).try_for_each(|block| {
                blocks.write(block, Buffer::zeroed(BLOCK as usize)).and_then(|()| blocks.flush())
            });
        erased.map_err(|errno| Error::io("erasing the superblocks", errno))
    }

    /// Checks all fields.
    ///
    /// # Errors
    /// The name of an invalid field.
    fn check(&self) -> Result<(), &'static str> {
        if self.total_blocks <= RESERVED_BLOCKS || self.total_blocks > MAX_BLOCKS {
            return Err("number of blocks");
        }
        // The next superblock written has the next generation.
        if self.generation == u64::MAX {
            return Err("generation");
        }
        if self.catalog.is_empty() || self.catalog.len() > MAX_CATALOG_RUNS {
            return Err("number of catalog runs");
        }
        if !self.log.length.is_multiple_of(2) || self.log.length > MAX_LOG_BLOCKS {
            return Err("length of the log");
        }
        if self.reserved < RESERVED_BLOCKS || self.reserved >= self.total_blocks {
            return Err("number of reserved blocks");
        }
        let mut sorted = self.catalog.clone();
        sorted.extend((self.log.length > 0).then_some(self.log));
        sorted.extend(self.backup_block().map(|start| Run { start, length: 1 }));
        sorted.sort_unstable();
        let mut free_from = self.reserved;
        for run in sorted {
            let end = run.start.checked_add(run.length).ok_or("run of the catalog or its log")?;
            if run.length == 0 || run.start < free_from || end > self.total_blocks {
                return Err("run of the catalog or its log");
            }
            free_from = end;
        }
        Ok(())
    }

    fn to_raw(&self) -> RawSlot {
        let mut label = [0; MAX_LABEL_BYTES];
        label[..self.label.len()].copy_from_slice(self.label.as_bytes());
        let mut catalog = [RawRun::from(Run { start: 0, length: 0 }); MAX_CATALOG_RUNS];
        for (raw, run) in catalog.iter_mut().zip(&self.catalog) {
            *raw = (*run).into();
        }
        let mut slot = RawSlot {
            magic: MAGIC,
            checksum: 0.into(),
            version: VERSION.into(),
            compatible: self.features.compatible.into(),
            read_only_compatible: self.features.read_only_compatible.into(),
            incompatible: self.features.incompatible.into(),
            generation: self.generation.into(),
            uuid: self.uuid,
            label,
            block_size: (BLOCK as u32).into(),
            catalog_runs: (self.catalog.len() as u32).into(),
            total_blocks: self.total_blocks.into(),
            created_ns: self.created_ns.into(),
            log: self.log.into(),
            reserved: self.reserved.into(),
            spare: self.spare,
            catalog,
        };
        slot.checksum = checksum_of(&slot).into();
        slot
    }
}

fn checksum_of(slot: &RawSlot) -> u32 {
    crc_checksum(CrcAlgorithm::Crc32Iscsi, &slot.as_bytes()[CHECKSUM_START..]) as u32
}

/// Reads the superblock in a block, or why it is unusable.
///
/// # Errors
/// `Unsupported`: code of another format version, or with unknown incompatible features, wrote this
/// volume, whatever the other slot holds.
fn read_slot(blocks: &BlockIo, block: u64) -> Result<Result<Superblock, SlotDefect>, Error> {
    let bytes = match blocks.read(block, BLOCK as usize) {
        Ok(bytes) => bytes,
        Err(errno) => return Ok(Err(SlotDefect::Unreadable(errno))),
    };
    let raw = RawSlot::ref_from_bytes(&bytes).expect("a slot is one block");
    if raw.magic != MAGIC {
        return Ok(Err(SlotDefect::NoMagic));
    }
    if raw.checksum.get() != checksum_of(raw) {
        return Ok(Err(SlotDefect::Checksum));
    }
    let unsupported = |what: String| {
        let context = format!("{what}, which this uringfs does not support: use a newer one");
        Err(Error::new(ErrorKind::Unsupported, context))
    };
    let version = raw.version.get();
    if version > VERSION {
        return unsupported(format!("the volume has format version {version}"));
    }
    if version != VERSION {
        let context = format!(
            "the volume has format version {version}, of an older uringfs, and this one has {VERSION}: get \
             the files out with the older one, and put them into a new volume"
        );
        return Err(Error::new(ErrorKind::Unsupported, context));
    }
    let unknown = raw.incompatible.get() & !Features::CURRENT.incompatible;
    if unknown != 0 {
        return unsupported(format!("the volume uses incompatible features {unknown:#x}"));
    }
    Ok(parse(raw))
}

fn parse(raw: &RawSlot) -> Result<Superblock, SlotDefect> {
    if u64::from(raw.block_size.get()) != BLOCK {
        return Err(SlotDefect::Field("block size"));
    }
    let label = raw.label.split(|byte| *byte == 0).next().unwrap_or_default();
    let runs = raw.catalog_runs.get() as usize;
    let Some(runs) = raw.catalog.get(..runs) else {
        return Err(SlotDefect::Field("number of catalog runs"));
    };
    let superblock = Superblock {
        features: Features {
            compatible: raw.compatible.get(),
            read_only_compatible: raw.read_only_compatible.get(),
            incompatible: raw.incompatible.get(),
        },
        generation: raw.generation.get(),
        uuid: raw.uuid,
        label: str::from_utf8(label).map_err(|_| SlotDefect::Field("label"))?.into(),
        total_blocks: raw.total_blocks.get(),
        created_ns: raw.created_ns.get(),
        catalog: runs.iter().map(|run| Run::from(*run)).collect(),
        log: raw.log.into(),
        reserved: if raw.reserved == 0 { RESERVED_BLOCKS } else { raw.reserved.get() },
        slot: 0,
        spare: raw.spare,
    };
    superblock.check().map_err(SlotDefect::Field)?;
    Ok(superblock)
}

/// The error when no slot is valid.
fn no_good_slot(blocks: &BlockIo, bad: &[BadSlot]) -> Error {
    let slots: Vec<String> = bad.iter().map(BadSlot::to_string).collect();
    let unreadable = bad.iter().find_map(|slot| match slot.defect {
        SlotDefect::Unreadable(errno) => Some(errno),
        _ => None,
    });
    let backup = Superblock::find_backups(blocks).first().map(|(block, _)| {
        format!(
            "the backup superblock {} is good: run uringfs check --repair",
            describe_backup(*block)
        )
    });
    if let Some(errno) = unreadable {
        let advice = match backup {
            Some(backup) => format!("; {backup} --accept-unreadable"),
            None => String::new(),
        };
        let context = format!("the superblock cannot be read: {}{advice}", slots.join("; "));
        return Error::new(ErrorKind::Io(errno), context);
    }
    if let Some(backup) = backup {
        return Error::damaged(format!("{}; {backup}", slots.join("; ")));
    }
    if bad.iter().all(|slot| slot.defect == SlotDefect::NoMagic) {
        let context = "this is not a uringfs volume: no superblock in block 0 or 16, and no backup";
        return Error::new(ErrorKind::NotAVolume, context);
    }
    let what = "and no backup superblock is good";
    Error::damaged(format!("the volume cannot be opened: {}; {what}", slots.join("; ")))
}

/// The error when the backup is newer than both slots.
fn stale_slots(backup: u64) -> Error {
    Error::damaged(format!(
        "the superblocks in blocks 0 and 16 are older than the backup superblock {}: run uringfs check \
         --repair",
        describe_backup(backup)
    ))
}

/// The position of a backup, for messages.
pub(crate) fn describe_backup(backup: u64) -> String {
    match backup {
        BACKUP_BLOCK => "at 64 MiB".into(),
        _ => format!("in block {backup}"),
    }
}

#[cfg(test)]
mod tests;
