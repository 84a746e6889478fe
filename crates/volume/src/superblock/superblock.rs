//! The fields of a superblock, which are checked against each other.

use std::time::{SystemTime, UNIX_EPOCH};

use rustix::rand::{GetRandomFlags, getrandom};

use super::layout::{
    MAGIC, MAX_CATALOG_RUNS, MAX_LABEL_BYTES, RawRun, RawSlot, SPARE_BYTES, checksum_of,
};
use crate::blocks::{BLOCK, Run};
use crate::error::{Error, ErrorKind};

/// Blocks at the beginning of the device that hold nothing but superblocks: the minimum, and the
/// number in volumes of older versions.
pub(crate) const RESERVED_BLOCKS: u64 = 32;

/// Their number in a new volume that is not small: 4 MiB, so that the catalog survives when
/// something overwrites the beginning of the device.
const MAX_RESERVED_BLOCKS: u64 = (4 << 20) / BLOCK;

/// A small volume reserves one block in this many.
const BLOCKS_PER_RESERVED: u64 = 8;

/// Block of the backup superblock. In a smaller volume it is the last block.
pub(super) const BACKUP_BLOCK: u64 = (64 << 20) / BLOCK;

/// The most blocks of the catalog's log, both halves together.
pub(crate) const MAX_LOG_BLOCKS: u64 = 512;

/// Blocks of the largest volume: 64 TiB.
pub(crate) const MAX_BLOCKS: u64 = (64 << 40) / BLOCK;

/// The format version that this code reads and writes.
pub(crate) const VERSION: u32 = 2;

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
    pub(super) reserved: u64,
    /// Index in [`SLOTS`] of the slot that this was read from. The other slot is written first.
    pub(super) slot: usize,
    /// Bytes for compatible features, kept as they were read.
    pub(super) spare: [u8; SPARE_BYTES],
}

/// Checks that a superblock has room for a label.
fn check_label(label: &str) -> Result<(), Error> {
    if label.len() > MAX_LABEL_BYTES || label.contains('\0') {
        let context =
            format!("label {label:?}: at most {MAX_LABEL_BYTES} bytes, none of them zero");
        return Err(Error::new(ErrorKind::Input, context));
    }
    Ok(())
}

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
        check_label(label)?;
        let mut uuid = [0; 16];
        getrandom(&mut uuid, GetRandomFlags::empty())
            .map_err(|errno| Error::io("generating the volume's UUID", errno))?;
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

    /// Changes the label. Does not write the superblock.
    ///
    /// # Errors
    /// As [`Self::new`] for the label.
    pub(crate) fn set_label(&mut self, label: &str) -> Result<(), Error> {
        check_label(label)?;
        self.label = label.into();
        Ok(())
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

    /// Checks all fields.
    ///
    /// # Errors
    /// The name of an invalid field.
    pub(super) fn check(&self) -> Result<(), &'static str> {
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

    pub(super) fn to_raw(&self) -> RawSlot {
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

/// Parses the fields of a slot.
///
/// # Errors
/// The name of an invalid field.
pub(super) fn parse(raw: &RawSlot) -> Result<Superblock, &'static str> {
    if u64::from(raw.block_size.get()) != BLOCK {
        return Err("block size");
    }
    let label = raw.label.split(|byte| *byte == 0).next().unwrap_or_default();
    let runs = raw.catalog_runs.get() as usize;
    let Some(runs) = raw.catalog.get(..runs) else {
        return Err("number of catalog runs");
    };
    let superblock = Superblock {
        features: Features {
            compatible: raw.compatible.get(),
            read_only_compatible: raw.read_only_compatible.get(),
            incompatible: raw.incompatible.get(),
        },
        generation: raw.generation.get(),
        uuid: raw.uuid,
        label: str::from_utf8(label).map_err(|_| "label")?.into(),
        total_blocks: raw.total_blocks.get(),
        created_ns: raw.created_ns.get(),
        catalog: runs.iter().map(|run| Run::from(*run)).collect(),
        log: raw.log.into(),
        reserved: if raw.reserved == 0 { RESERVED_BLOCKS } else { raw.reserved.get() },
        slot: 0,
        spare: raw.spare,
    };
    superblock.check()?;
    Ok(superblock)
}
