//! The two slots and the backup: which superblock is good, and writing all three.
//!
//! A superblock that [`Superblock::read`] returns can be trusted: every field was checked against
//! the others and against the device.

use std::cmp::Ordering;
use std::fmt;
use std::ops::Range;

use uringfs_buffer::Buffer;
use zerocopy::{FromBytes, IntoBytes};

use super::layout::{MAGIC, RawSlot, checksum_of};
use super::other_format::OtherFormat;
use super::superblock::{BACKUP_BLOCK, Features, RESERVED_BLOCKS, Superblock, VERSION, parse};
use crate::blocks::{BLOCK, BlockIo};
use crate::error::{Error, ErrorKind};

/// The advice about damage that a repair corrects.
pub(crate) const REPAIR_ADVICE: &str = "run uringfs check --repair";

/// The line of damage that a repair corrects.
pub(crate) fn with_repair_advice(line: String) -> String {
    format!("{line}; {REPAIR_ADVICE}")
}

/// Blocks of the slots. They are apart, so that one damaged spot rarely affects both.
pub(crate) const SLOTS: [u64; 2] = [0, 16];

/// Blocks read at once in the search for superblocks.
const SCAN_BLOCKS: usize = 256;

/// A superblock as it was read, with the state of its slots and of the backup.
#[derive(Clone, Debug)]
pub(crate) struct LoadedSuperblock {
    pub(crate) superblock: Superblock,
    /// Unusable slots, and the backup if it is unusable. Writing the superblock repairs them.
    pub(crate) bad_slots: Vec<BadSlot>,
    /// A format that was made over the volume. Nothing must be written then.
    pub(crate) other_format: Option<OtherFormat>,
}

impl LoadedSuperblock {
    /// Checks that no other format was made over the volume.
    ///
    /// # Errors
    /// `OtherFormat`.
    pub(crate) fn require_no_other_format(&self) -> Result<(), Error> {
        self.other_format.map_or(Ok(()), |format| Err(format.error()))
    }

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
    Unreadable(uringfs_device::Errno),
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

impl Superblock {
    /// Reads the newer of the valid slots.
    ///
    /// # Errors
    /// - `NotAVolume` when neither a slot nor a backup holds a superblock.
    /// - `OtherFormat` when another format was made over the volume, and no slot can be used.
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
        let (good, bad_slots) = read_slots(blocks)?;
        let other_format = other_format(blocks, &bad_slots);
        let loaded = Superblock::newest(blocks, good, bad_slots);
        match (loaded, other_format) {
            (Ok(loaded), _) => Ok(LoadedSuperblock { other_format, ..loaded }),
            (Err(error), Some(format)) => Err(match error.kind() {
                ErrorKind::Unsupported => error,
                ErrorKind::NotAVolume => format.not_a_volume(),
                _ => format.error(),
            }),
            (Err(error), None) => Err(error),
        }
    }

    /// The newest of the good superblocks, compared with the device and the backup.
    fn newest(
        blocks: &BlockIo,
        good: Vec<Superblock>,
        mut bad_slots: Vec<BadSlot>,
    ) -> Result<LoadedSuperblock, Error> {
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
        Ok(LoadedSuperblock { superblock, bad_slots, other_format: None })
    }

    /// The newer of the valid slots. None if no slot is valid, or another format was made over the volume. Does not
    /// compare the slots with the device.
    ///
    /// # Errors
    /// `Unsupported` as [`Self::read`]; `Io` when no slot is valid and one cannot be read.
    pub(crate) fn peek(blocks: &BlockIo) -> Result<Option<Superblock>, Error> {
        if blocks.count() <= RESERVED_BLOCKS {
            return Ok(None);
        }
        let (good, bad_slots) = read_slots(blocks)?;
        let unreadable = bad_slots.iter().find_map(|slot| match slot.defect {
            SlotDefect::Unreadable(errno) => Some(Error::io(slot.to_string(), errno)),
            _ => None,
        });
        match (good.into_iter().next(), unreadable) {
            (None, Some(error)) => Err(error),
            (newest, _) => Ok(newest.filter(|_| other_format(blocks, &bad_slots).is_none())),
        }
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
        let what = format!(
            "{error}; the superblocks in blocks 0 and 16 are of another volume than the backup \
             superblock {}",
            describe_backup(*block)
        );
        Some(Error::damaged(what).with_advice(REPAIR_ADVICE))
    }

    /// Finds all valid backups on the device, the newest first, each with its block. A small
    /// volume's backup lies in its last block, and only its superblock records which block is the
    /// last. So all blocks that may hold a backup are read.
    pub(crate) fn find_backups(blocks: &BlockIo) -> Vec<(u64, Superblock)> {
        let end = blocks.count().min(BACKUP_BLOCK + 1);
        let mut backups = Vec::new();
        for block in candidates(blocks, RESERVED_BLOCKS..end) {
            if let Ok(Ok(backup)) = read_slot(blocks, block)
                && backup.backup_block() == Some(block)
            {
                backups.push((block, backup));
            }
        }
        backups.sort_by_key(|(_, backup)| std::cmp::Reverse(backup.generation));
        backups
    }

    /// Finds the blocks that begin as a superblock and are at the place of one, damaged or not, in ascending order. A
    /// file in the volume may contain superblocks, too, but hardly ever at such a place.
    ///
    /// # Errors
    /// The device's: an unreadable block may hold a superblock.
    pub(crate) fn find_all(blocks: &BlockIo) -> Result<Vec<u64>, Error> {
        let end = blocks.count().min(BACKUP_BLOCK + 1);
        let mut found = Vec::new();
        for block in candidates(blocks, 0..end) {
            let bytes = blocks
                .read(block, BLOCK as usize)
                .map_err(|errno| Error::io(format!("reading block {block}"), errno))?;
            let raw = RawSlot::ref_from_bytes(&bytes).expect("a slot is one block");
            let last = raw.total_blocks.get().saturating_sub(1);
            let is_at_its_place = SLOTS.contains(&block) || block == BACKUP_BLOCK.min(last);
            if raw.magic == MAGIC && is_at_its_place {
                found.push(block);
            }
        }
        Ok(found)
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
        LoadedSuperblock { superblock: self, bad_slots, other_format: None }
    }

    /// Refuses a device that is shorter than the volume.
    ///
    /// # Errors
    /// `Unsupported`.
    pub(crate) fn check_device(&self, blocks: &BlockIo) -> Result<(), Error> {
        let (needed, there) = (self.total_blocks, blocks.count());
        if there < needed {
            let needed = needed * BLOCK;
            let mut context = format!(
                "the volume has {needed} bytes, the device only {}: the device was truncated, or is not the \
                 one the volume was made on",
                there * BLOCK
            );
            if blocks.is_file() {
                context += &format!(
                    "; truncate -s {needed} lengthens the file, so that what is left can be read: what was \
                     lost becomes zeros"
                );
            }
            return Err(Error::new(ErrorKind::Unsupported, context));
        }
        Ok(())
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

    /// Rewrites, unchanged, the slot that this superblock was read from. It may be only in the
    /// device's cache, if the last writer was killed before the flush, or the flush failed.
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
        erase_blocks(blocks, SLOTS.into_iter().chain(backups).chain(self.backup_block()))
    }
}

/// Erases superblocks in the given order, each durable before the next.
///
/// # Errors
/// The device's.
pub(crate) fn erase_blocks(
    blocks: &BlockIo,
    mut erased: impl Iterator<Item = u64>,
) -> Result<(), Error> {
    erased.try_for_each(|block| {
        blocks
            .write(block, Buffer::zeroed(BLOCK as usize))
            .and_then(|()| blocks.flush())
            .map_err(|e| Error::io(format!("erasing the superblock in block {block}"), e))
    })
}

/// The blocks of a range that begin as a superblock, or could not be read together with their neighbours.
fn candidates(blocks: &BlockIo, range: Range<u64>) -> impl Iterator<Item = u64> {
    range.clone().step_by(SCAN_BLOCKS).flat_map(move |first| {
        let part = first..range.end.min(first + SCAN_BLOCKS as u64);
        let length = (part.end - part.start) as usize * BLOCK as usize;
        let read = blocks.read(first, length).ok();
        part.filter(move |block| {
            let at = ((block - first) * BLOCK) as usize;
            read.as_ref().is_none_or(|bytes| bytes[at..].starts_with(&MAGIC))
        })
    })
}

/// Reads both slots. Returns the valid ones, that of the volume on this device first, and the others.
///
/// # Errors
/// As [`read_slot`].
fn read_slots(blocks: &BlockIo) -> Result<(Vec<Superblock>, Vec<BadSlot>), Error> {
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
    Ok((good, bad_slots))
}

/// The format that was made over the volume, given the slots that have no good superblock.
fn other_format(blocks: &BlockIo, unusable: &[BadSlot]) -> Option<OtherFormat> {
    let unusable: Vec<u64> = unusable.iter().map(|slot| slot.block).collect();
    OtherFormat::find(blocks, &unusable)
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
    Ok(parse(raw).map_err(SlotDefect::Field))
}

/// The error when no slot is valid.
fn no_good_slot(blocks: &BlockIo, bad: &[BadSlot]) -> Error {
    let slots: Vec<String> = bad.iter().map(BadSlot::to_string).collect();
    let unreadable = bad.iter().find_map(|slot| match slot.defect {
        SlotDefect::Unreadable(errno) => Some(errno),
        _ => None,
    });
    let backup = Superblock::find_backups(blocks)
        .first()
        .map(|(block, _)| format!("the backup superblock {} is good", describe_backup(*block)));
    if let Some(errno) = unreadable {
        let what = format!("the superblock cannot be read: {}", slots.join("; "));
        let kind = ErrorKind::Io(errno);
        return match backup {
            Some(backup) => Error::new(kind, format!("{what}; {backup}"))
                .with_advice("run uringfs check --repair --accept-unreadable"),
            None => Error::new(kind, what),
        };
    }
    if let Some(backup) = backup {
        let what = format!("{}; {backup}", slots.join("; "));
        return Error::damaged(what).with_advice(REPAIR_ADVICE);
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
    let backup = describe_backup(backup);
    let what =
        format!("the superblocks in blocks 0 and 16 are older than the backup superblock {backup}");
    Error::damaged(what).with_advice(REPAIR_ADVICE)
}

/// The position of a backup, for messages.
pub(crate) fn describe_backup(backup: u64) -> String {
    match backup {
        BACKUP_BLOCK => "at 64 MiB".into(),
        _ => format!("in block {backup}"),
    }
}
