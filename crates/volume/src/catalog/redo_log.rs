//! The redo log: commits that redb does not have yet. A commit to the log is one record, and costs
//! one flush (or none besides its writes, where these are durable by FUA) and no page. At a
//! checkpoint redb takes all records together.
//!
//! The log has two copies, in the two halves of its run. Records follow each other from the
//! beginning of a half, each in whole blocks, at the same position in both halves. They are
//! numbered. The header that commits a checkpoint names the last record that the checkpoint
//! contains. Records up to that number are old, and the next record goes to the beginning again.
//!
//! # After a crash
//! A record is present if one of its copies is good. Both copies are durable before the commit is
//! acknowledged, so one flipped bit, or one torn or lost sector, never loses a record. The first
//! number without a good copy ends the log: that record was never acknowledged. But if a later
//! record is good, the missing one is damaged.
//!
//! The last record found may be in the device's cache only: its writer was killed before the flush,
//! or the flush failed. Before anything depends on it, it must be written again
//! ([`LogTail::rewrite_last`]) and flushed. A flush alone does not suffice, since Linux marks pages
//! clean after a failed write-back. A record after it whose write failed cannot be read now. It
//! must not appear later either ([`LogTail::clear_next_record`]).

use std::collections::BTreeMap;
use std::ops::Bound;

use crc_fast::{CrcAlgorithm, checksum as crc_checksum};
use uringfs_buffer::Buffer;
use uringfs_device::{Durability, Errno};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::batch::Batch;
use super::page_budget::BatchSize;
use super::record::Table;
use crate::blocks::{BLOCK, BlockIo, Run};
use crate::error::Error;

/// Magic bytes at the beginning of a record's first block, and of its other blocks. Because of them,
/// a user's bytes that look like a record never stand where a record could begin.
const FIRST_BLOCK_MAGIC: [u8; MAGIC_BYTES] = *b"urlogrec";
const NEXT_BLOCK_MAGIC: [u8; MAGIC_BYTES] = *b"urlogmor";
const MAGIC_BYTES: usize = 8;
/// Bytes of a record in one block, after the magic.
const BLOCK_PAYLOAD: usize = BLOCK as usize - MAGIC_BYTES;

/// The header of a record. Its changes follow.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RecordHeader {
    /// CRC32C of the rest of the header and the changes.
    checksum: U32,
    /// Bytes of the changes.
    length: U32,
    number: U64,
}

const RECORD_HEADER_BYTES: usize = size_of::<RecordHeader>();
/// The first byte that the checksum covers.
const CHECKSUM_START: usize = 4;

/// The header of a change. Key and value follow.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct ChangeHeader {
    table: u8,
    /// 1 sets the record, 0 deletes it.
    is_put: u8,
    /// The lengths of the key and of the value.
    key_bytes: U16,
    value_bytes: U32,
}

/// The position at which the next record is written.
#[derive(Debug)]
pub(super) struct RedoLog {
    run: Run,
    /// Position of the next record in a half, in blocks.
    next_block: u64,
    /// Number of the last record.
    last_number: u64,
}

/// The content of a log at open.
pub(super) struct Replay {
    pub(super) log: RedoLog,
    pub(super) changes: LoggedEntries,
    pub(super) tail: LogTail,
    /// Damage that lost nothing, one line each.
    pub(super) warnings: Vec<String>,
    /// The first lost record, if a record is lost.
    pub(super) lost_record: Option<LostRecord>,
}

/// A record that is missing although a later one exists.
pub(super) struct LostRecord {
    what: String,
    number: u64,
    /// A block that cannot be read and may hold a copy of the record.
    unread: Option<(u64, Errno)>,
}

impl LostRecord {
    /// Whether a later attempt may still read it. Repair must not go on without it then.
    pub(super) fn may_reappear(&self) -> bool {
        self.unread.is_some()
    }

    pub(super) fn into_error(self) -> Error {
        match self.unread {
            Some((block, errno)) => {
                Error::io(format!("{}, and block {block} cannot be read", self.what), errno)
            }
            None => {
                let (what, number) = (self.what, self.number);
                Error::damaged(format!(
                    "{what}; uringfs check --repair keeps the records before record {number}"
                ))
            }
        }
    }
}

impl RedoLog {
    /// A log whose next record has the number after `number`.
    pub(super) fn starting_after(run: Run, number: u64) -> RedoLog {
        RedoLog { run, next_block: 0, last_number: number }
    }

    /// Overwrites all records.
    ///
    /// # Errors
    /// The device's.
    pub(super) fn clear(blocks: &BlockIo, run: Run) -> Result<(), Error> {
        let zeros = Buffer::zeroed((run.length * BLOCK) as usize);
        let cleared = blocks.write(run.start, zeros).and_then(|()| blocks.flush());
        cleared.map_err(|errno| Error::io("clearing the catalog's log", errno))
    }

    /// The blocks of the log.
    pub(super) fn run(&self) -> Run {
        self.run
    }

    /// Number of the last record.
    pub(super) fn last_number(&self) -> u64 {
        self.last_number
    }

    /// Position of the next record in a half, in blocks.
    #[cfg(test)]
    pub(super) fn next_block(&self) -> u64 {
        self.next_block
    }

    fn half(&self) -> u64 {
        self.run.length / 2
    }

    /// First blocks of the two halves.
    fn halves(&self) -> [u64; 2] {
        [self.run.start, self.run.start + self.half()]
    }

    /// Writes a batch as the next record. Durable when it returns. Returns false if the log has no
    /// room.
    ///
    /// # Errors
    /// The device's. The record may or may not be written then.
    pub(super) fn append(&mut self, blocks: &BlockIo, batch: &Batch) -> Result<bool, Error> {
        let room = (self.half() - self.next_block) * BLOCK;
        let Some(number) = self.last_number.checked_add(1) else { return Ok(false) };
        let Some(record) = encode_record(batch, number, room as usize) else { return Ok(false) };
        let length = record.len() as u64 / BLOCK;
        let durability = blocks.fua();
        let copies = self.halves().map(|half| (half + self.next_block, Buffer::copy_of(&record)));
        blocks.write_each(copies.into(), durability).map_err(|(block, errno)| {
            Error::io(format!("writing the catalog's log, block {block}"), errno)
        })?;
        if durability == Durability::Volatile {
            blocks.flush().map_err(|errno| Error::io("flushing the catalog's log", errno))?;
        }
        self.next_block += length;
        self.last_number = number;
        Ok(true)
    }

    /// Starts again at the beginning: redb has all records.
    pub(super) fn reset(&mut self) {
        self.next_block = 0;
    }

    /// Reads the records after `number`, which is the last one that redb has.
    ///
    /// # Errors
    /// The device's, if both halves have unreadable blocks after the last record found.
    pub(super) fn replay(blocks: &BlockIo, run: Run, number: u64) -> Result<Replay, Error> {
        let mut log = RedoLog::starting_after(run, number);
        let mut replayed = Replay {
            log: RedoLog::starting_after(run, number),
            changes: LoggedEntries::default(),
            tail: LogTail::default(),
            warnings: Vec::new(),
            lost_record: None,
        };
        if run.length == 0 {
            return Ok(replayed);
        }
        let halves = log.halves().map(|start| LogHalf::read(blocks, start, log.half()));
        let mut pending_warning = None;
        while log.next_block < log.half() {
            let number = log.last_number.checked_add(1);
            let copies =
                halves.each_ref().map(|half| parse_record(half.bytes_from(log.next_block)));
            let copies = copies.map(|copy| copy.filter(|record| Some(record.number) == number));
            let bad_half = copies.iter().position(Option::is_none);
            let good_half = copies.iter().position(Option::is_some);
            let Some((good_half, record)) = good_half.zip(copies.into_iter().flatten().next())
            else {
                break;
            };
            // The last record may be torn, which is no damage: warn about earlier records only.
            replayed.warnings.extend(pending_warning.take());
            pending_warning = bad_half.map(|half| {
                let block = halves[half].start + log.next_block;
                format!(
                    "catalog log, block {block}: this copy of record {} is missing or damaged",
                    record.number
                )
            });
            let bytes =
                &halves[good_half].bytes_from(log.next_block)[..(record.blocks * BLOCK) as usize];
            replayed.tail.last = Some((log.next_block, Buffer::copy_of(bytes)));
            record.changes.into_iter().for_each(|change| replayed.changes.set(change));
            log.next_block += record.blocks;
            log.last_number = record.number;
        }
        (replayed.tail.halves, replayed.tail.end) = (log.halves(), log.next_block);
        let unread = halves
            .each_ref()
            .map(|half| half.unread.iter().rfind(|it| it.0 >= log.next_block).copied());
        if let [Some((block, errno)), Some(_)] = unread {
            let block = halves[0].start + block;
            return Err(Error::io(format!("reading the catalog's log, block {block}"), errno));
        }
        let blocks = halves.iter().flat_map(|half| (0..log.half()).map(move |block| (half, block)));
        let later = blocks.filter_map(|(half, block)| {
            Some((block, parse_record(half.bytes_from(block))?.number))
        });
        let later: Vec<(u64, u64)> =
            later.filter(|(_, number)| *number > log.last_number).collect();
        if let Some((first, last)) =
            later.iter().map(|it| it.0).min().zip(later.iter().map(|it| it.1).max())
        {
            let block = log.run.start + log.next_block;
            let number = log.last_number + 1;
            let what = format!(
                "catalog log, block {block}: record {number} is damaged, and record {last} was written after it"
            );
            let is_before = |block: u64| (log.next_block..first).contains(&block);
            let unread = halves.iter().find_map(|half| {
                let (block, errno) = half.unread.iter().find(|it| is_before(it.0))?;
                Some((half.start + block, *errno))
            });
            replayed.warnings.push(what.clone());
            replayed.lost_record = Some(LostRecord { what, number, unread });
            // Number on after the damaged part, so that its records are never replayed.
            log.last_number = last;
        }
        if log.next_block > 0 || replayed.lost_record.is_some() {
            // The last record may have one copy only: append nothing after it. A full log forces a
            // checkpoint.
            log.next_block = log.half();
        }
        replayed.log = log;
        Ok(replayed)
    }
}

/// The end of the records found.
#[derive(Default)]
pub(super) struct LogTail {
    halves: [u64; 2],
    /// The last record, and its position in a half.
    last: Option<(u64, Buffer)>,
    /// Position of the next record in a half.
    end: u64,
}

impl LogTail {
    pub(super) fn has_record(&self) -> bool {
        self.last.is_some()
    }

    /// Writes both copies of the last record. Durable after the next flush. A power cut meanwhile
    /// leaves one copy intact.
    ///
    /// # Errors
    /// The device's.
    pub(super) fn rewrite_last(&self, blocks: &BlockIo) -> Result<(), Error> {
        self.last.as_ref().map_or(Ok(()), |(at, bytes)| self.write(blocks, *at, bytes))
    }

    /// Overwrites the block after the last record, so that no record begins there. Durable when it
    /// returns. Call it when the header is durable: until then, old log records here may still be
    /// needed.
    ///
    /// # Errors
    /// The device's.
    pub(super) fn clear_next_record(&self, blocks: &BlockIo) -> Result<(), Error> {
        if self.end < self.halves[1] - self.halves[0] {
            self.write(blocks, self.end, &Buffer::zeroed(BLOCK as usize))?;
        }
        blocks.flush().map_err(|errno| Error::io("flushing the catalog's log", errno))
    }

    fn write(&self, blocks: &BlockIo, at: u64, bytes: &Buffer) -> Result<(), Error> {
        self.halves.iter().try_for_each(|start| {
            let block = start + at;
            blocks.write(block, Buffer::copy_of(bytes)).map_err(|errno| {
                Error::io(format!("writing the catalog's log again, block {block}"), errno)
            })
        })
    }
}

/// The readable part of a half.
struct LogHalf {
    start: u64,
    /// Zeros where the half cannot be read.
    bytes: Buffer,
    /// Blocks that cannot be read, counted from the beginning.
    unread: Vec<(u64, Errno)>,
}

impl LogHalf {
    /// Reads a half. If that fails it reads block by block, so that one bad sector does not lose
    /// the others.
    fn read(blocks: &BlockIo, start: u64, length: u64) -> LogHalf {
        if let Ok(bytes) = blocks.read(start, (length * BLOCK) as usize) {
            return LogHalf { start, bytes, unread: Vec::new() };
        }
        let bytes = Buffer::zeroed((length * BLOCK) as usize);
        let mut half = LogHalf { start, bytes, unread: Vec::new() };
        for (block, bytes) in (0..length).zip(half.bytes.chunks_exact_mut(BLOCK as usize)) {
            match blocks.read(start + block, BLOCK as usize) {
                Ok(found) => bytes.copy_from_slice(&found),
                Err(errno) => half.unread.push((block, errno)),
            }
        }
        half
    }

    fn bytes_from(&self, block: u64) -> &[u8] {
        &self.bytes[(block * BLOCK) as usize..]
    }
}

/// Encodes a batch as a record in whole blocks. `None` if it exceeds `room` bytes.
fn encode_record(batch: &Batch, number: u64, room: usize) -> Option<Vec<u8>> {
    let size = batch.size();
    let length = size.bytes as usize + size.changes as usize * size_of::<ChangeHeader>();
    let bytes = (RECORD_HEADER_BYTES + length).div_ceil(BLOCK_PAYLOAD) * BLOCK as usize;
    if bytes > room {
        return None;
    }
    let mut content = Vec::with_capacity(RECORD_HEADER_BYTES + length);
    let header = RecordHeader {
        checksum: 0.into(),
        length: u32::try_from(length).ok()?.into(),
        number: number.into(),
    };
    content.extend_from_slice(header.as_bytes());
    for (table, key, stored) in batch.iter() {
        let change = ChangeHeader {
            table: table as u8,
            is_put: stored.is_some().into(),
            key_bytes: u16::try_from(key.len()).ok()?.into(),
            value_bytes: u32::try_from(stored.map_or(0, <[u8]>::len)).ok()?.into(),
        };
        content.extend_from_slice(change.as_bytes());
        content.extend_from_slice(key);
        content.extend_from_slice(stored.unwrap_or_default());
    }
    let checksum = crc_checksum(CrcAlgorithm::Crc32Iscsi, &content[CHECKSUM_START..]) as u32;
    content[..CHECKSUM_START].copy_from_slice(&checksum.to_le_bytes());
    let mut record = Vec::with_capacity(bytes);
    for (index, part) in content.chunks(BLOCK_PAYLOAD).enumerate() {
        record.extend_from_slice(&block_magic(index));
        record.extend_from_slice(part);
    }
    record.resize(bytes, 0);
    Some(record)
}

fn block_magic(index: usize) -> [u8; MAGIC_BYTES] {
    if index == 0 { FIRST_BLOCK_MAGIC } else { NEXT_BLOCK_MAGIC }
}

/// A record as it was read.
struct ParsedRecord {
    number: u64,
    blocks: u64,
    changes: Vec<(Table, Vec<u8>, StoredValue)>,
}

/// The record at the beginning of these bytes, if there is one.
fn parse_record(bytes: &[u8]) -> Option<ParsedRecord> {
    let (header, _) =
        RecordHeader::ref_from_prefix(bytes.strip_prefix(&FIRST_BLOCK_MAGIC)?).ok()?;
    let length = RECORD_HEADER_BYTES + header.length.get() as usize;
    let count = length.div_ceil(BLOCK_PAYLOAD);
    let mut content = Vec::new();
    for (index, block) in bytes.get(..count * BLOCK as usize)?.chunks(BLOCK as usize).enumerate() {
        content.extend_from_slice(block.strip_prefix(&block_magic(index))?);
    }
    content.truncate(length);
    if header.checksum.get()
        != crc_checksum(CrcAlgorithm::Crc32Iscsi, &content[CHECKSUM_START..]) as u32
    {
        return None;
    }
    let mut left = &content[RECORD_HEADER_BYTES..];
    let mut changes = Vec::new();
    while !left.is_empty() {
        let (change, rest) = ChangeHeader::ref_from_prefix(left).ok()?;
        let table = Table::ALL.into_iter().find(|table| *table as u8 == change.table)?;
        let (key, rest) = rest.split_at_checked(usize::from(change.key_bytes.get()))?;
        let (value, rest) = rest.split_at_checked(change.value_bytes.get() as usize)?;
        let stored = (change.is_put == 1).then(|| value.to_vec());
        changes.push((table, key.to_vec(), stored));
        left = rest;
    }
    Some(ParsedRecord { number: header.number.get(), blocks: count as u64, changes })
}

/// A value with its checksum, as redb will store it. `None` deletes the record.
pub(super) type StoredValue = Option<Vec<u8>>;

/// The last change of each catalog record that the log has. Reads merge them over redb.
#[derive(Debug, Default)]
pub(super) struct LoggedEntries {
    tables: [BTreeMap<Vec<u8>, StoredValue>; Table::ALL.len()],
    size: BatchSize,
}

impl LoggedEntries {
    fn set(&mut self, (table, key, stored): (Table, Vec<u8>, StoredValue)) {
        let bytes = |stored: &StoredValue| stored.as_ref().map_or(0, |stored| stored.len() as u64);
        let key_bytes = key.len() as u64;
        self.size.bytes += bytes(&stored);
        match self.tables[table.index()].insert(key, stored) {
            Some(old) => self.size.bytes -= bytes(&old),
            None => {
                self.size.changes += 1;
                self.size.bytes += key_bytes;
            }
        }
    }

    /// Adds the changes of a batch that has been written.
    pub(super) fn extend(&mut self, batch: &Batch) {
        for (table, key, stored) in batch.iter() {
            self.set((table, key.to_vec(), stored.map(<[u8]>::to_vec)));
        }
    }

    pub(super) fn size(&self) -> BatchSize {
        self.size
    }

    /// The last change of a record, if the log has one.
    pub(super) fn get(&self, table: Table, key: &[u8]) -> Option<StoredValue> {
        self.tables[table.index()].get(key).cloned()
    }

    /// All changes of keys from `from` on that begin with `prefix`, in the order of keys.
    pub(super) fn range_with_prefix(
        &self,
        table: Table,
        from: &[u8],
        prefix: &[u8],
    ) -> Vec<(Vec<u8>, StoredValue)> {
        let records = self.tables[table.index()]
            .range::<[u8], _>((Bound::Included(from), Bound::Unbounded))
            .take_while(|(key, _)| key.starts_with(prefix));
        records.map(|(key, stored)| (key.clone(), stored.clone())).collect()
    }

    /// The last key of a table that the log changes.
    pub(super) fn last_key(&self, table: Table) -> Option<Vec<u8>> {
        self.tables[table.index()].last_key_value().map(|(key, _)| key.clone())
    }

    /// A batch of all entries in the log, followed by `batch`.
    pub(super) fn checkpoint_batch(&self, batch: &Batch) -> Batch {
        let mut all = Batch::default();
        for (table, records) in Table::ALL.iter().zip(&self.tables) {
            records.iter().for_each(|(key, stored)| all.set_stored(*table, key, stored.clone()));
        }
        all.append(batch);
        all
    }
}
