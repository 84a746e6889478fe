//! The superblock: what a volume is, and where its catalog lies. Kept in two slots, so that one of
//! them is whole at every moment, and in a copy far from both, which only a repair reads;
//! `docs/format.md` has it byte by byte.
//!
//! What [`Superblock::read`] answers can be trusted: every field was checked against the others
//! and against the device.

use std::cmp::Ordering;
use std::fmt;
use std::mem::size_of;
use std::time::{SystemTime, UNIX_EPOCH};

use crc_fast::{CrcAlgorithm, checksum};
use rustix::rand::{GetRandomFlags, getrandom};
use uringfs_buffer::Buffer;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::blocks::{BLOCK, Blocks, Run};
use crate::error::{Error, ErrorKind};

/// Blocks at the device's beginning that never hold anything else: so many at least, and all that volumes
/// of older versions have.
pub(crate) const RESERVED_BLOCKS: u64 = 32;
/// And so many in a new volume that is not small: 4 MiB, so that the catalog outlives what is written over
/// the beginning of a device by mistake.
const MOST_RESERVED: u64 = (4 << 20) / BLOCK;
/// A small volume reserves one in so many blocks.
const RESERVED_SHARE: u64 = 8;
/// Where the slots lie: apart, so that one damaged spot rarely takes both.
pub(crate) const SLOTS: [u64; 2] = [0, 16];
/// Where the copy lies; in a smaller volume in its last block.
const COPY: u64 = (64 << 20) / BLOCK;
/// The most runs of blocks that the catalog may lie in.
pub(crate) const MAX_CATALOG_RUNS: usize = 240;
/// The most blocks of the catalog's log, both halves together.
pub(crate) const MAX_LOG_BLOCKS: u64 = 512;
/// The most bytes of a label.
pub(crate) const MAX_LABEL: usize = 64;
/// Blocks of the largest volume: 64 TiB.
pub(crate) const MAX_BLOCKS: u64 = (64 << 40) / BLOCK;

const MAGIC: [u8; 8] = *b"uringfs\x1a";
/// The version of the format that this code reads and writes.
const VERSION: u32 = 2;
/// A copy of the superblock lies where [`Superblock::copy`] says, and whoever writes the slots writes it.
const HAS_COPY: u64 = 1;
/// Records of inodes may be of version 3.
const WIDE_TIMES: u64 = 1;

/// One bit for each thing a volume may use that earlier code did not know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Features {
    /// Whoever does not know one may read and write all the same.
    pub(crate) compatible: u64,
    /// Whoever does not know one may only read.
    pub(crate) read_only_compatible: u64,
    /// Whoever does not know one must keep away.
    pub(crate) incompatible: u64,
}

impl Features {
    /// What new volumes have, which is all that this code knows.
    pub(crate) const NOW: Features =
        Features { compatible: 0, read_only_compatible: HAS_COPY, incompatible: WIDE_TIMES };
}

/// What a volume is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Superblock {
    pub(crate) features: Features,
    /// Counts the writes of a superblock; the higher of two slots holds.
    pub(crate) generation: u64,
    /// Sixteen random bytes that no other volume has.
    pub(crate) uuid: [u8; 16],
    pub(crate) label: String,
    /// Blocks of the volume; the device may have more.
    pub(crate) total_blocks: u64,
    /// Nanoseconds since 1970.
    pub(crate) created_ns: u64,
    /// Where the catalog lies, in the catalog's order.
    pub(crate) catalog: Vec<Run>,
    /// Where its log lies; of no blocks, if it has none.
    pub(crate) log: Run,
    /// Blocks at the beginning that hold nothing but superblocks.
    reserved: u64,
    /// Which of [`SLOTS`] this was read from or is the older; the other is written first.
    slot: usize,
    /// Bytes that compatible features may use, kept as they were found.
    spare: [u8; SPARE],
}

/// A superblock, and how it was found.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) superblock: Superblock,
    /// The slots that are not to be used; writing the superblock makes them good again.
    pub(crate) bad_slots: Vec<BadSlot>,
}

impl Found {
    /// Takes into account how many blocks the catalog knows of. Where the power was cut while the volume grew,
    /// the copy was still to be written at its new place: whatever lies there is older.
    pub(crate) fn settle(&mut self, known: u64) {
        if self.superblock.left_by_copy(known).is_some() {
            let copy = self.superblock.copy();
            let its = self.bad_slots.iter_mut().filter(|slot| Some(slot.block) == copy);
            its.for_each(|slot| slot.flaw = Flaw::Older);
        }
    }
}

/// A slot that is not to be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BadSlot {
    pub(crate) block: u64,
    pub(crate) flaw: Flaw,
}

/// What is wrong with a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    Unreadable(rustix::io::Errno),
    NoMagic,
    Checksum,
    /// The sum is right, what it covers is not.
    Field(&'static str),
    /// It is good, and was written before the other: what came after it is not in it.
    Older,
    /// It is good, and another volume's.
    Foreign,
}

impl fmt::Display for Flaw {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Flaw::Unreadable(errno) => write!(out, "unreadable ({errno})"),
            Flaw::NoMagic => write!(out, "no superblock"),
            Flaw::Checksum => write!(out, "wrong checksum"),
            Flaw::Field(which) => write!(out, "wrong {which}"),
            Flaw::Older => write!(out, "older than the other"),
            Flaw::Foreign => write!(out, "of another volume"),
        }
    }
}

impl fmt::Display for BadSlot {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "superblock in block {}: {}", self.block, self.flaw)
    }
}

const SPARE: usize = 80;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct RawRun {
    start: U64,
    length: U64,
}

/// A slot as it lies on the device. Magic, sum and version stay where they are in every version.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Slot {
    magic: [u8; 8],
    /// CRC32C of every byte of the slot after this field.
    sum: U32,
    version: U32,
    compatible: U64,
    read_only_compatible: U64,
    incompatible: U64,
    generation: U64,
    uuid: [u8; 16],
    /// UTF-8, then zeros.
    label: [u8; MAX_LABEL],
    block_size: U32,
    catalog_runs: U32,
    total_blocks: U64,
    created_ns: U64,
    log: RawRun,
    /// 0 in volumes that have [`RESERVED_BLOCKS`].
    reserved: U64,
    spare: [u8; SPARE],
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

const _: () = assert!(size_of::<Slot>() == BLOCK as usize);
/// Where the sum's cover begins.
const COVERED: usize = 12;
/// Blocks that are read at once where copies are looked for.
const PART: usize = 256;

impl Superblock {
    /// Of a new volume of `total_blocks` whose catalog lies in `catalog`, and its log in `log`; not yet
    /// written. What is before both stays reserved.
    ///
    /// # Errors
    /// For a label over [`MAX_LABEL`] bytes or with a zero byte, too many blocks, and a catalog
    /// that does not lie inside.
    pub(crate) fn new(
        total_blocks: u64,
        label: &str,
        catalog: Vec<Run>,
        log: Run,
    ) -> Result<Superblock, Error> {
        if label.len() > MAX_LABEL || label.contains('\0') {
            let context = format!("label {label:?}: at most {MAX_LABEL} bytes, none of them zero");
            return Err(Error::new(ErrorKind::Input, context));
        }
        let mut uuid = [0; 16];
        getrandom(&mut uuid, GetRandomFlags::empty())
            .map_err(|errno| Error::io("drawing the volume's UUID", errno))?;
        let age = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let reserved = catalog.iter().chain([&log]).map(|run| run.start).min().unwrap_or(0);
        let superblock = Superblock {
            features: Features::NOW,
            generation: 0,
            uuid,
            label: label.into(),
            total_blocks,
            created_ns: u64::try_from(age.as_nanos()).unwrap_or(u64::MAX),
            catalog,
            log,
            reserved,
            slot: 0,
            spare: [0; SPARE],
        };
        superblock.check().map_err(|which| {
            Error::new(ErrorKind::Input, format!("a volume of {total_blocks} blocks: {which}"))
        })?;
        Ok(superblock)
    }

    /// Blocks that a new volume of `total_blocks` keeps for superblocks.
    pub(crate) fn reserved_in_new(total_blocks: u64) -> u64 {
        (total_blocks / RESERVED_SHARE).clamp(RESERVED_BLOCKS, MOST_RESERVED)
    }

    /// Blocks at the beginning that hold nothing but superblocks.
    pub(crate) fn reserved(&self) -> u64 {
        self.reserved
    }

    /// The block of the copy in a volume of `total_blocks` that has one.
    pub(crate) fn copy_in(total_blocks: u64) -> u64 {
        COPY.min(total_blocks - 1)
    }

    /// The block of the copy, if the volume has one.
    pub(crate) fn copy(&self) -> Option<u64> {
        let has_copy = self.features.read_only_compatible & HAS_COPY != 0;
        has_copy.then(|| Superblock::copy_in(self.total_blocks))
    }

    /// The block that the copy has left, if the volume has grown since it had `known` blocks.
    pub(crate) fn left_by_copy(&self, known: u64) -> Option<Run> {
        let left = Superblock::copy_in(known);
        (self.copy()? != left).then_some(Run { start: left, length: 1 })
    }

    /// The runs that belong neither to files nor to the catalog.
    pub(crate) fn takes(&self) -> impl Iterator<Item = Run> + use<> {
        let reserved = Run { start: 0, length: self.reserved };
        [reserved].into_iter().chain(self.copy().map(|start| Run { start, length: 1 }))
    }

    /// The newer of the good slots.
    ///
    /// # Errors
    /// `NotAVolume` when neither slot and no copy has a superblock; `Damaged` when no slot can be used, or
    /// the copy is newer than both; `Unsupported` for a newer format, for features that must be known, and
    /// for a device shorter than the volume.
    pub(crate) fn read(blocks: &Blocks) -> Result<Found, Error> {
        if blocks.count() <= RESERVED_BLOCKS {
            let what = "not a uringfs volume: it is too short to hold one";
            return Err(Error::new(ErrorKind::NotAVolume, what));
        }
        let mut best: Option<Superblock> = None;
        let mut bad_slots = Vec::new();
        for (slot, &block) in SLOTS.iter().enumerate() {
            match read_slot(blocks, block)? {
                Ok(found) => match best.as_ref().map(|best| best.generation.cmp(&found.generation))
                {
                    None => best = Some(Superblock { slot, ..found }),
                    Some(Ordering::Equal) => {}
                    Some(Ordering::Greater) => bad_slots.push(BadSlot { block, flaw: Flaw::Older }),
                    Some(Ordering::Less) => {
                        bad_slots.push(BadSlot { block: SLOTS[0], flaw: Flaw::Older });
                        best = Some(Superblock { slot, ..found });
                    }
                },
                Err(flaw) => bad_slots.push(BadSlot { block, flaw }),
            }
        }
        let Some(superblock) = best else {
            return Err(none_good(blocks, &bad_slots));
        };
        superblock.check_device(blocks)?;
        if let Some(block) = superblock.copy() {
            let flaw = match read_slot(blocks, block) {
                Ok(Ok(copy)) if copy.uuid != superblock.uuid => Some(Flaw::Foreign),
                Ok(Ok(copy)) => match copy.generation.cmp(&superblock.generation) {
                    Ordering::Equal => None,
                    Ordering::Less => Some(Flaw::Older),
                    Ordering::Greater => return Err(stale_slots(block)),
                },
                Ok(Err(flaw)) => Some(flaw),
                // Only slots say of which version the volume is.
                Err(_) => Some(Flaw::Field("version")),
            };
            bad_slots.extend(flaw.map(|flaw| BadSlot { block, flaw }));
        }
        Ok(Found { superblock, bad_slots })
    }

    /// The good copies that the device has, the newest first, each with its block. Of a small volume only its
    /// superblock says where the last block is: so all that may be it are looked at.
    pub(crate) fn copies(blocks: &Blocks) -> Vec<(u64, Superblock)> {
        let end = blocks.count().min(COPY + 1);
        let mut copies = Vec::new();
        for first in (RESERVED_BLOCKS..end).step_by(PART) {
            let part = PART.min((end - first) as usize);
            let looks_like_one = |bytes: &[u8]| bytes.starts_with(&MAGIC);
            let candidates: Vec<u64> = match blocks.read(first, part * BLOCK as usize) {
                Ok(bytes) => {
                    let parts = (first..).zip(bytes.chunks_exact(BLOCK as usize));
                    parts.filter(|(_, bytes)| looks_like_one(bytes)).map(|(at, _)| at).collect()
                }
                // Some of it may be readable.
                Err(_) => (first..first + part as u64).collect(),
            };
            for block in candidates {
                if let Ok(Ok(copy)) = read_slot(blocks, block)
                    && copy.copy() == Some(block)
                {
                    copies.push((block, copy));
                }
            }
        }
        copies.sort_by_key(|(_, copy)| std::cmp::Reverse(copy.generation));
        copies
    }

    /// What is wrong with the slots beside a copy that is to be used instead.
    pub(crate) fn instead_of_slots(self, blocks: &Blocks) -> Found {
        let flaw = |block: u64| match read_slot(blocks, block) {
            Ok(Err(flaw)) => flaw,
            Ok(Ok(other)) if other.uuid != self.uuid => Flaw::Foreign,
            Ok(Ok(_)) => Flaw::Older,
            Err(_) => Flaw::Field("version"),
        };
        let bad_slots = SLOTS.map(|block| BadSlot { block, flaw: flaw(block) }).to_vec();
        Found { superblock: self, bad_slots }
    }

    /// Refuses a device that is shorter than the volume.
    ///
    /// # Errors
    /// `Unsupported`.
    pub(crate) fn check_device(&self, blocks: &Blocks) -> Result<(), Error> {
        let (needed, there) = (self.total_blocks, blocks.count());
        if there < needed {
            let context = format!(
                "the volume has {} bytes, the device only {}: it was cut short, or is not the one \
                 the volume was made on",
                needed * BLOCK,
                there * BLOCK
            );
            return Err(Error::new(ErrorKind::Unsupported, context));
        }
        Ok(())
    }

    /// Whether the volume lacks what new ones have: this code only reads it, and upgrades it.
    pub(crate) fn is_of_older_version(&self) -> bool {
        let (has, now) = (self.features, Features::NOW);
        has.read_only_compatible & now.read_only_compatible != now.read_only_compatible
            || has.incompatible & now.incompatible != now.incompatible
    }

    /// Gives the volume what new ones have; not yet written.
    pub(crate) fn upgrade(&mut self) {
        self.features.read_only_compatible |= Features::NOW.read_only_compatible;
        self.features.incompatible |= Features::NOW.incompatible;
    }

    /// What the catalog notes of the superblock that names it, or is about to: its generation, and which volume it is of.
    pub(crate) fn note(&self, generation: u64) -> Vec<u8> {
        [&generation.to_be_bytes()[..], &self.uuid].concat()
    }

    /// Whether the volume uses something that allows this code only to read.
    pub(crate) fn is_read_only(&self) -> bool {
        self.features.read_only_compatible & !Features::NOW.read_only_compatible != 0
    }

    /// Writes a new generation into both slots and then the copy, each durable before the next is touched. What
    /// it points to must be durable before.
    ///
    /// # Errors
    /// `Io`; one slot then still holds this or the generation before. `Input`, with nothing
    /// written, when a field does not fit the others.
    pub(crate) fn write(&mut self, blocks: &Blocks) -> Result<(), Error> {
        self.check().map_err(|which| {
            Error::new(ErrorKind::Input, format!("superblock not written: wrong {which}"))
        })?;
        self.generation += 1;
        // The slot that was not read may be the torn one: it goes first.
        let slots = [1 - self.slot, self.slot].map(|slot| SLOTS[slot]);
        for block in slots.into_iter().chain(self.copy()) {
            blocks
                .write(block, Buffer::copy_of(self.to_slot().as_bytes()))
                .and_then(|()| blocks.flush())
                .map_err(|e| Error::io(format!("writing the superblock in block {block}"), e))?;
        }
        Ok(())
    }

    /// Writes the slot again that this was read from, as it was: it may be in the device's cache only, where the last
    /// writer was killed before the flush, or that failed. Else the first of [`Self::write`] could take the one slot
    /// that is durable. A power cut meanwhile leaves it as it was.
    ///
    /// # Errors
    /// The device's.
    pub(crate) fn write_again(&self, blocks: &Blocks) -> Result<(), Error> {
        let block = SLOTS[self.slot];
        blocks
            .write(block, Buffer::copy_of(self.to_slot().as_bytes()))
            .and_then(|()| blocks.flush())
            .map_err(|e| Error::io(format!("writing the superblock in block {block} again"), e))
    }

    /// Makes both slots hold none, and all that can be the copy of a volume that was there, or of this one:
    /// what becomes of the rest is nobody's volume.
    ///
    /// # Errors
    /// The device's.
    pub(crate) fn erase(&self, blocks: &Blocks) -> Result<(), Error> {
        let before = SLOTS.iter().filter_map(|slot| read_slot(blocks, *slot).ok()?.ok());
        let sizes = before.map(|before| before.total_blocks).chain([blocks.count()]);
        let mut copies: Vec<u64> = sizes.map(Superblock::copy_in).collect();
        copies.retain(|block| match blocks.read(*block, BLOCK as usize) {
            Ok(bytes) => bytes.starts_with(&MAGIC),
            Err(_) => false,
        });
        let erased = SLOTS.into_iter().chain(copies).chain(self.copy()).try_for_each(|block| {
            blocks.write(block, Buffer::zeroed(BLOCK as usize)).and_then(|()| blocks.flush())
        });
        erased.map_err(|errno| Error::io("erasing the superblocks", errno))
    }

    /// What is wrong, if anything.
    fn check(&self) -> Result<(), &'static str> {
        if self.total_blocks <= RESERVED_BLOCKS || self.total_blocks > MAX_BLOCKS {
            return Err("number of blocks");
        }
        // The next one to be written has one more.
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
        sorted.extend(self.copy().map(|start| Run { start, length: 1 }));
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

    fn to_slot(&self) -> Slot {
        let mut label = [0; MAX_LABEL];
        label[..self.label.len()].copy_from_slice(self.label.as_bytes());
        let mut catalog = [RawRun::from(Run { start: 0, length: 0 }); MAX_CATALOG_RUNS];
        for (raw, run) in catalog.iter_mut().zip(&self.catalog) {
            *raw = (*run).into();
        }
        let mut slot = Slot {
            magic: MAGIC,
            sum: 0.into(),
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
        slot.sum = sum_of(&slot).into();
        slot
    }
}

fn sum_of(slot: &Slot) -> u32 {
    checksum(CrcAlgorithm::Crc32Iscsi, &slot.as_bytes()[COVERED..]) as u32
}

/// The superblock in a block, or what is wrong with it.
///
/// # Errors
/// `Unsupported`: whatever the other slot holds, newer code wrote this volume.
fn read_slot(blocks: &Blocks, block: u64) -> Result<Result<Superblock, Flaw>, Error> {
    let bytes = match blocks.read(block, BLOCK as usize) {
        Ok(bytes) => bytes,
        Err(errno) => return Ok(Err(Flaw::Unreadable(errno))),
    };
    let raw = Slot::ref_from_bytes(&bytes).expect("a slot is one block");
    if raw.magic != MAGIC {
        return Ok(Err(Flaw::NoMagic));
    }
    if raw.sum.get() != sum_of(raw) {
        return Ok(Err(Flaw::Checksum));
    }
    let unsupported = |what: String| {
        let context = format!("{what}; this uringfs knows none of it: use a newer one");
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
    let unknown = raw.incompatible.get() & !Features::NOW.incompatible;
    if unknown != 0 {
        return unsupported(format!("the volume uses incompatible features {unknown:#x}"));
    }
    Ok(parse(raw))
}

fn parse(raw: &Slot) -> Result<Superblock, Flaw> {
    if u64::from(raw.block_size.get()) != BLOCK {
        return Err(Flaw::Field("block size"));
    }
    let label = raw.label.split(|byte| *byte == 0).next().unwrap_or_default();
    let runs = raw.catalog_runs.get() as usize;
    let Some(runs) = raw.catalog.get(..runs) else {
        return Err(Flaw::Field("number of catalog runs"));
    };
    let superblock = Superblock {
        features: Features {
            compatible: raw.compatible.get(),
            read_only_compatible: raw.read_only_compatible.get(),
            incompatible: raw.incompatible.get(),
        },
        generation: raw.generation.get(),
        uuid: raw.uuid,
        label: str::from_utf8(label).map_err(|_| Flaw::Field("label"))?.into(),
        total_blocks: raw.total_blocks.get(),
        created_ns: raw.created_ns.get(),
        catalog: runs.iter().map(|run| Run::from(*run)).collect(),
        log: raw.log.into(),
        reserved: if raw.reserved == 0 { RESERVED_BLOCKS } else { raw.reserved.get() },
        slot: 0,
        spare: raw.spare,
    };
    superblock.check().map_err(Flaw::Field)?;
    Ok(superblock)
}

/// Why no slot could be used.
fn none_good(blocks: &Blocks, bad: &[BadSlot]) -> Error {
    let slots: Vec<String> = bad.iter().map(BadSlot::to_string).collect();
    let unreadable = bad.iter().find_map(|slot| match slot.flaw {
        Flaw::Unreadable(errno) => Some(errno),
        _ => None,
    });
    if let Some(errno) = unreadable {
        let context = format!("the superblock cannot be read: {}", slots.join("; "));
        return Error::new(ErrorKind::Io(errno), context);
    }
    if let Some((block, _)) = Superblock::copies(blocks).first() {
        let what = format!("the superblock copy {} is good", place_of(*block));
        return Error::damaged(format!("{}; {what}: run uringfs check --repair", slots.join("; ")));
    }
    if bad.iter().all(|slot| slot.flaw == Flaw::NoMagic) {
        let context = "this is not a uringfs volume: no superblock in block 0 or 16, and no copy";
        return Error::new(ErrorKind::NotAVolume, context);
    }
    let what = "and no copy of it is good";
    Error::damaged(format!("the volume cannot be opened: {}; {what}", slots.join("; ")))
}

/// What is wrong where the copy was written after both slots.
fn stale_slots(copy: u64) -> Error {
    Error::damaged(format!(
        "the superblocks in blocks 0 and 16 are older than the copy {}: run uringfs check --repair",
        place_of(copy)
    ))
}

/// Where a copy lies, for people.
pub(crate) fn place_of(copy: u64) -> String {
    match copy {
        COPY => "at 64 MiB".into(),
        _ => format!("in block {copy}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uringfs_device::Device;
    use uringfs_device::backend::sim::{CrashPlan, Sim, SimOptions};

    const TOTAL: u64 = 1024;
    const LOG: Run = Run { start: 160, length: 8 };

    fn blocks_of(sim: &Sim) -> Blocks {
        Blocks::of(&Device::new(sim.clone()).unwrap())
    }

    fn new_sim() -> Sim {
        Sim::new(SimOptions::new(TOTAL * BLOCK))
    }

    fn runs(of: &[(u64, u64)]) -> Vec<Run> {
        of.iter().map(|&(start, length)| Run { start, length }).collect()
    }

    fn volume() -> (Sim, Superblock) {
        let sim = new_sim();
        let catalog = runs(&[(100, 50), (40, 10)]);
        let mut superblock = Superblock::new(TOTAL, "données", catalog, LOG).unwrap();
        superblock.write(&blocks_of(&sim)).unwrap();
        (sim, superblock)
    }

    fn kind_of(result: Result<Found, Error>) -> ErrorKind {
        result.expect_err("it cannot be read").kind()
    }

    #[test]
    fn what_was_written_is_read() {
        let (sim, mut superblock) = volume();
        let found = Superblock::read(&blocks_of(&sim)).unwrap();
        assert_eq!(found.superblock, superblock);
        assert!(found.bad_slots.is_empty());
        superblock.label = "x".repeat(MAX_LABEL);
        superblock.write(&blocks_of(&sim)).unwrap();
        let again = Superblock::read(&blocks_of(&sim)).unwrap().superblock;
        assert_eq!((again.label, again.generation), (superblock.label, 2));
    }

    #[test]
    fn a_foreign_device_is_told_from_a_damaged_volume() {
        assert_eq!(kind_of(Superblock::read(&blocks_of(&new_sim()))), ErrorKind::NotAVolume);
        let (sim, _) = volume();
        for slot in SLOTS {
            sim.rot(slot * BLOCK + 2000, 1);
        }
        let error = Superblock::read(&blocks_of(&sim)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Damaged);
        assert!(error.to_string().contains("block 16: wrong checksum"), "{error}");
    }

    #[test]
    fn a_crash_at_any_moment_leaves_the_old_or_the_new_superblock() {
        let (sim, old) = volume();
        sim.restart_record();
        let mut new = old.clone();
        new.catalog.push(Run { start: 500, length: 7 });
        new.write(&blocks_of(&sim)).unwrap();
        let plan = CrashPlan { exhaustive_up_to: 4, samples: 64, seed: 11 };
        let (mut olds, mut news) = (0, 0);
        for image in sim.crash_images(plan) {
            let found = Superblock::read(&blocks_of(&image.sim));
            let Found { mut superblock, .. } = found.unwrap_or_else(|error| {
                panic!("seed 11, cut {}, {:?}: {error}", image.cut, image.crash)
            });
            superblock.slot = old.slot;
            match superblock.generation {
                1 => olds += usize::from(superblock == old),
                _ => news += usize::from(superblock == new),
            }
            // What recovers from it leaves two good slots.
            superblock.write(&blocks_of(&image.sim)).unwrap();
            assert!(Superblock::read(&blocks_of(&image.sim)).unwrap().bad_slots.is_empty());
        }
        assert!(olds > 10 && news > 10, "{olds} old, {news} new");
    }

    #[test]
    fn a_slot_torn_at_any_sector_falls_back_to_the_other() {
        let (sim, old) = volume();
        let mut new = old.clone();
        new.label = "another".into();
        new.catalog.extend((0..200).map(|n| Run { start: 200 + 2 * n, length: 1 }));
        new.write(&blocks_of(&sim)).unwrap();
        let mut written = vec![0; BLOCK as usize];
        sim.peek(0, &mut written);
        for torn in SLOTS {
            for cut in 0..8 {
                for keep_head in [true, false] {
                    let mut bytes = old.to_slot().as_bytes().to_vec();
                    let range = if keep_head { 0..cut * 512 } else { cut * 512..BLOCK as usize };
                    bytes[range.clone()].copy_from_slice(&written[range]);
                    let whole = bytes == written;
                    let blocks = blocks_of(&sim);
                    blocks.write(torn, Buffer::copy_of(&bytes)).unwrap();
                    let found = Superblock::read(&blocks).unwrap();
                    assert_eq!(found.superblock.label, "another", "{torn} at {cut}");
                    assert_eq!(found.bad_slots.len(), usize::from(!whole), "{torn} at {cut}");
                    blocks.write(torn, Buffer::copy_of(&written)).unwrap();
                }
            }
        }
    }

    #[test]
    fn a_slot_with_the_last_of_all_generations_is_bad() {
        let (sim, mut forged) = volume();
        forged.generation = u64::MAX;
        let blocks = blocks_of(&sim);
        for slot in SLOTS {
            blocks.write(slot, Buffer::copy_of(forged.to_slot().as_bytes())).unwrap();
        }
        assert_eq!(Superblock::read(&blocks).unwrap_err().kind(), ErrorKind::Damaged);
    }

    #[test]
    fn a_good_slot_that_is_older_is_told_of() {
        let (sim, old) = volume();
        let blocks = blocks_of(&sim);
        let mut new = old.clone();
        new.write(&blocks).unwrap();
        for slot in SLOTS {
            blocks.write(slot, Buffer::copy_of(old.to_slot().as_bytes())).unwrap();
            let mut found = Superblock::read(&blocks).unwrap();
            assert_eq!(found.bad_slots, [BadSlot { block: slot, flaw: Flaw::Older }]);
            assert_eq!(found.superblock.generation, new.generation);
            found.superblock.write(&blocks).unwrap();
            assert!(Superblock::read(&blocks).unwrap().bad_slots.is_empty());
            new = found.superblock;
        }
    }

    #[test]
    fn one_flipped_bit_anywhere_is_seen_and_harmless() {
        let (sim, superblock) = volume();
        let blocks = blocks_of(&sim);
        for (slot, &block) in SLOTS.iter().enumerate() {
            for byte in 0..BLOCK {
                let address = block * BLOCK + byte;
                let bit = (byte * 7 % 8) as u32;
                sim.rot(address, bit);
                let found = Superblock::read(&blocks).unwrap();
                assert_eq!(found.bad_slots.len(), 1, "slot {slot}, byte {byte}");
                assert_eq!(found.bad_slots[0].block, block);
                assert_eq!(found.superblock.to_slot().as_bytes(), superblock.to_slot().as_bytes());
                sim.rot(address, bit);
            }
        }
    }

    /// A volume whose slots were changed by someone who knows the format.
    fn forged(change: impl Fn(&mut Slot)) -> Blocks {
        let (sim, superblock) = volume();
        let blocks = blocks_of(&sim);
        for block in SLOTS {
            let mut slot = superblock.to_slot();
            change(&mut slot);
            slot.sum = sum_of(&slot).into();
            blocks.write(block, Buffer::copy_of(slot.as_bytes())).unwrap();
        }
        blocks
    }

    #[test]
    fn fields_that_do_not_fit_are_refused() {
        type Change = fn(&mut Slot);
        let changes: [Change; 16] = [
            |slot| slot.reserved = 31.into(),
            |slot| slot.reserved = 41.into(),
            |slot| slot.catalog[1] = RawRun { start: (TOTAL - 1).into(), length: 1.into() },
            |slot| slot.log.length = 7.into(),
            |slot| slot.log.start = 45.into(),
            |slot| slot.log.length = 514.into(),
            |slot| slot.block_size = 512.into(),
            |slot| slot.label[3] = 0xff,
            |slot| slot.total_blocks = 0.into(),
            |slot| slot.total_blocks = (MAX_BLOCKS + 1).into(),
            |slot| slot.catalog_runs = 0.into(),
            |slot| slot.catalog_runs = 241.into(),
            |slot| slot.catalog[0].start = 31.into(),
            |slot| slot.catalog[0].length = u64::MAX.into(),
            |slot| slot.catalog[0].length = (TOTAL - 99).into(),
            |slot| slot.catalog[1] = RawRun { start: 149.into(), length: 1.into() },
        ];
        for (which, change) in changes.into_iter().enumerate() {
            let kind = kind_of(Superblock::read(&forged(change)));
            assert_eq!(kind, ErrorKind::Damaged, "change {which}");
        }
    }

    #[test]
    fn newer_and_older_volumes_are_refused_or_only_read() {
        let newer = Superblock::read(&forged(|slot| slot.version = (VERSION + 1).into()));
        assert_eq!(kind_of(newer), ErrorKind::Unsupported);
        let older = Superblock::read(&forged(|slot| slot.version = 1.into())).unwrap_err();
        assert_eq!(older.kind(), ErrorKind::Unsupported);
        assert!(older.to_string().contains("older uringfs"), "{older}");
        let unknown = Superblock::read(&forged(|slot| slot.incompatible = 4.into()));
        assert_eq!(kind_of(unknown), ErrorKind::Unsupported);
        let found = Superblock::read(&forged(|slot| slot.read_only_compatible = 2.into()));
        assert!(found.unwrap().superblock.is_read_only());
        let found = Superblock::read(&forged(|slot| slot.compatible = 1.into())).unwrap();
        assert!(!found.superblock.is_read_only());
    }

    #[test]
    fn a_device_that_became_shorter_is_refused_with_both_sizes() {
        let (sim, superblock) = volume();
        let short = Sim::new(SimOptions::new((TOTAL - 1) * BLOCK));
        let blocks = blocks_of(&short);
        blocks.write(SLOTS[0], Buffer::copy_of(superblock.to_slot().as_bytes())).unwrap();
        let error = Superblock::read(&blocks).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        for size in [TOTAL * BLOCK, (TOTAL - 1) * BLOCK] {
            assert!(error.to_string().contains(&size.to_string()), "{error}");
        }
        drop(sim);
    }

    #[test]
    fn an_erased_superblock_does_not_outlive_a_new_one() {
        let (sim, mut old) = volume();
        let blocks = blocks_of(&sim);
        for _ in 0..5 {
            old.write(&blocks).unwrap();
        }
        sim.restart_record();
        let mut new = Superblock::new(TOTAL, "new", runs(&[(40, 10)]), LOG).unwrap();
        new.erase(&blocks).unwrap();
        let erased = sim.forgotten() + sim.record().len() as u64;
        new.write(&blocks).unwrap();
        for image in sim.crash_images(CrashPlan { exhaustive_up_to: 4, samples: 8, seed: 12 }) {
            match Superblock::read(&blocks_of(&image.sim)) {
                Ok(found) if image.cut >= erased => assert_eq!(found.superblock.label, "new"),
                Ok(found) => assert_eq!(found.superblock.uuid, old.uuid),
                Err(error) => assert!(error.kind() != ErrorKind::Unsupported, "{error}"),
            }
        }
        assert_eq!(Superblock::read(&blocks).unwrap().superblock.label, "new");
    }

    #[test]
    fn what_cannot_be_is_not_made() {
        for (total, label, catalog) in [
            (TOTAL, "x".repeat(65).as_str(), runs(&[(40, 10)])),
            (TOTAL, "a\0b", runs(&[(40, 10)])),
            (TOTAL, "", runs(&[(10, 10)])),
            (TOTAL, "", runs(&[])),
            (MAX_BLOCKS + 1, "", runs(&[(40, 10)])),
        ] {
            let error = Superblock::new(total, label, catalog, LOG).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Input, "{error}");
        }
    }

    #[test]
    fn what_is_too_short_is_no_volume() {
        for size in [512, 4096, RESERVED_BLOCKS * BLOCK] {
            let error = Superblock::read(&blocks_of(&Sim::new(SimOptions::new(size)))).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NotAVolume, "{error}");
        }
    }
}
