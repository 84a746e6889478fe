//! Direct I/O, the general way: any offset, length and memory. Each operation
//! is one `async fn`, read top to bottom; it owns its memory and its locks
//! until it has ended.

use std::ops::Range;

use rustix::io::Errno;
use uringfs_buffer::Buffer;
use uringfs_device::{Durability, Op, Payload};
use uringfs_reactor::{Counter, Operation, Order};

use crate::direct::write_guard::{Entry, enter, note_write};
use crate::io::transfer::transfer;
use crate::map::mapping::{Commit, Durable, Place, Preparation};
use crate::state::file::{File, Shared};
use crate::writeback::runs::save;

/// Where the longest file ends, as the kernel's `loff_t`.
pub(crate) const LONGEST: u64 = i64::MAX as u64;

/// The most memory one unaligned operation borrows, in bytes.
const BOUNCE: u64 = 1 << 20;

/// Reads from `offset` on into `payload`: fewer bytes at the end of the file.
pub(crate) async fn read(mut operation: Operation, file: File, payload: Payload, offset: u64) {
    let shared = &*file.shared;
    let whole = payload.length();
    if shared.lock.unsaved().is_any() {
        let end = offset.saturating_add(whole);
        // The map is to know of all bytes before the end, and so how long the file is, if that lies there.
        let end = if end > shared.map.size() { u64::MAX } else { end };
        if let Err(error) = Box::pin(save(&mut operation, shared, offset..end)).await {
            return operation.end(payload, Err(error));
        }
    }
    let length = whole.min(left(shared, offset));
    shared.map.note_read();
    if length == 0 {
        operation.end(payload, Ok(0));
    } else if length == whole && is_aligned(shared, &payload, offset) {
        let ended =
            transfer(&operation, shared, Op::Read, Durability::Volatile, payload, offset).await;
        match ended.result() {
            Ok(read) if read > left(shared, offset) => {
                operation.end(ended.payload, Ok(left(shared, offset)));
            }
            _ => operation.end_as(ended),
        }
    } else {
        operation.count(Counter::Bounced);
        let (payload, result) =
            Box::pin(read_bounced(&operation, shared, payload, offset, length)).await;
        operation.end(payload, result.map(|read| read.min(left(shared, offset))));
    }
}

/// Bytes of the file from an offset on. Asked again when they have been read: where the file was cut
/// off meanwhile its blocks were holes, and read as zeros that it never had.
fn left(shared: &Shared, offset: u64) -> u64 {
    shared.map.size().saturating_sub(offset)
}

async fn read_bounced(
    operation: &Operation,
    shared: &Shared,
    mut payload: Payload,
    offset: u64,
    length: u64,
) -> (Payload, Result<u64, Errno>) {
    let mut done = 0;
    while done < length {
        let at = offset + done;
        let blocks = around(shared.block_mask + 1, at..at + (length - done).min(BOUNCE));
        let skip = at - blocks.start;
        let bounce = match read_blocks(operation, shared, blocks).await {
            Ok(bounce) => bounce,
            Err(error) => return (payload, Err(error)),
        };
        let take = (length - done).min(BOUNCE);
        copy_in(&mut payload, done, &bounce[skip as usize..(skip + take) as usize]);
        done += take;
    }
    (payload, Ok(done))
}

/// Writes `payload` from `offset` on. At the end of a file that does not grow a
/// write is short, behind it ENOSPC.
pub(crate) async fn write(
    mut operation: Operation,
    file: File,
    payload: Payload,
    offset: u64,
    durability: Durability,
) {
    let shared = &*file.shared;
    let range = match admit(&mut operation, shared, &payload, offset).await {
        Ok(range) if range.is_empty() => return operation.end(payload, Ok(0)),
        Ok(range) => range,
        Err(error) => return operation.end(payload, Err(error)),
    };
    let (payload, result) =
        write_admitted(&mut operation, shared, payload, range, durability).await;
    operation.end(payload, result);
}

/// What of a write has a place in the file; the map hears that it is about to come.
pub(crate) async fn admit(
    operation: &mut Operation,
    shared: &Shared,
    payload: &Payload,
    offset: u64,
) -> Result<Range<u64>, Errno> {
    let whole = payload.length();
    let end = offset.checked_add(whole).filter(|end| *end <= LONGEST).ok_or(Errno::FBIG)?;
    let length = shared.map.room(offset..end);
    if whole == 0 {
        return Ok(offset..offset);
    } else if shared.read_only {
        return Err(Errno::ROFS);
    } else if length == 0 {
        return Err(Errno::NOSPC);
    }
    note_write(operation, shared).await?;
    Ok(offset..offset + length)
}

/// The write itself.
#[inline]
pub(crate) async fn write_admitted(
    operation: &mut Operation,
    shared: &Shared,
    payload: Payload,
    range: Range<u64>,
    durability: Durability,
) -> (Payload, Result<u64, Errno>) {
    let mut preparation = Preparation::InPlace;
    let (payload, result) = match enter(operation, shared, range.clone()).await {
        Err(error) => (payload, Err(error)),
        Ok(entry) => {
            preparation = entry.preparation;
            let fua = fua(shared, durability, preparation);
            write_entered(operation, shared, payload, range, fua, entry).await
        }
    };
    let result = match result {
        Ok(written) => {
            let durable = made_durable(operation, shared, durability, preparation);
            durable.await.map(|()| written)
        }
        result => result,
    };
    (payload, result)
}

/// How the requests of a write are issued that is to be durable: what the map hears of has to be committed,
/// and a commit flushes.
fn fua(shared: &Shared, durability: Durability, preparation: Preparation) -> Durability {
    match (durability, preparation) {
        (Durability::Durable, Preparation::InPlace) if shared.device.geometry().fua => durability,
        _ => Durability::Volatile,
    }
}

/// Moves the bytes of a write that has been let in.
pub(crate) async fn write_entered(
    operation: &Operation,
    shared: &Shared,
    payload: Payload,
    range: Range<u64>,
    fua: Durability,
    mut entry: Entry,
) -> (Payload, Result<u64, Errno>) {
    let (offset, length) = (range.start, range.end - range.start);
    let is_whole_blocks = (offset | length) & (entry.block - 1) == 0;
    let is_all = length == payload.length();
    let (payload, result) = if is_all && is_whole_blocks && is_aligned(shared, &payload, offset) {
        let ended = transfer(operation, shared, Op::Write, fua, payload, offset).await;
        let result = ended.result();
        if let Ok(written) = result {
            let written = offset..offset + written;
            shared.map.wrote(entry.preparation, written, entry.begun);
        }
        (ended.payload, result)
    } else {
        operation.count(Counter::Bounced);
        let written = write_bounced(operation, shared, &payload, range, fua, &mut entry);
        let result = Box::pin(written).await;
        (payload, result)
    };
    match result {
        // It found no place any more: the file was emptied after it.
        Err(Errno::IO) if shared.map.generation() != entry.begun => (payload, Ok(length)),
        result => (payload, result),
    }
}

/// Makes a write durable that is to be and has completed.
pub(crate) async fn made_durable(
    operation: &mut Operation,
    shared: &Shared,
    durability: Durability,
    preparation: Preparation,
) -> Result<(), Errno> {
    if durability == Durability::Volatile {
        return Ok(());
    }
    let fua = fua(shared, durability, preparation);
    // What lies in place now may have been put there by a write that is not committed.
    match shared.map.commit(Durable::Data) {
        None if fua == Durability::Durable => Ok(()),
        // Another's commit has begun since the map heard of it.
        None if preparation == Preparation::Allocated => Ok(()),
        commit => {
            operation.count(Counter::DeferredFlush);
            make_durable(operation, shared, commit).await
        }
    }
}

/// Writes bytes that are not whole blocks, or whose memory is not aligned: the blocks at both ends are
/// read first. The entry keeps every other writer out of them.
async fn write_bounced(
    operation: &Operation,
    shared: &Shared,
    payload: &Payload,
    range: Range<u64>,
    durability: Durability,
    entry: &mut Entry,
) -> Result<u64, Errno> {
    let mut at = range.start;
    while at < range.end {
        operation.check()?;
        let end = range.end.min((at / BOUNCE + 1) * BOUNCE);
        let blocks = around(entry.block, at..end);
        let bytes = |bounce: &mut Buffer| {
            let start = (at - blocks.start) as usize;
            copy_out(payload, at - range.start, &mut bounce[start..start + (end - at) as usize]);
        };
        let tail = entry.take_tail(blocks.start).map(|tail| tail.bytes);
        let written =
            merge_blocks(operation, shared, entry.block, at..end, tail, durability, bytes).await?;
        if shared.map.grows() && !end.is_multiple_of(entry.block) {
            let last = blocks.end - entry.block;
            let is_one = last == blocks.start;
            let rest = || Buffer::copy_of(&written[(last - blocks.start) as usize..]);
            entry.leave_tail(last, if is_one { written } else { rest() });
        }
        // With the lock held, or the next would find the rest of a new block unwritten.
        shared.map.wrote(entry.preparation, at..end, entry.begun);
        at = end;
    }
    Ok(range.end - range.start)
}

/// Reads what of the blocks around `range` lies outside it, unless `first` is the first of them, has `fill`
/// put the rest in, writes all, and answers it. What lies behind the file's end is zeros then, whatever it
/// was.
async fn merge_blocks(
    operation: &Operation,
    shared: &Shared,
    block: u64,
    range: Range<u64>,
    first: Option<Buffer>,
    durability: Durability,
    fill: impl FnOnce(&mut Buffer),
) -> Result<Buffer, Errno> {
    let blocks = around(block, range.clone());
    let mut bounce = bounce(shared, blocks.end - blocks.start);
    let head = (blocks.start < range.start).then_some(blocks.start);
    let tail = (range.end < blocks.end).then_some(blocks.end - block);
    let mut first = first.filter(|first| first.len() as u64 == block);
    for start in head.into_iter().chain(tail.filter(|tail| Some(*tail) != head)) {
        let known = first.take_if(|_| start == blocks.start);
        let mut old = match known {
            Some(known) => known,
            None => read_blocks(operation, shared, start..start + block).await?,
        };
        let place = (start - blocks.start) as usize;
        let inside = shared.map.size().saturating_sub(start).min(block) as usize;
        old[inside..].fill(0);
        bounce[place..place + block as usize].copy_from_slice(&old);
    }
    fill(&mut bounce);
    let payload = Payload::Buffer(bounce);
    let ended = transfer(operation, shared, Op::Write, durability, payload, blocks.start).await;
    ended.result()?;
    Ok(the_one(ended.payload))
}

/// Writes zeros over a range, as [`merge_blocks`]. The caller keeps writers out, so that only who empties
/// the file takes its blocks away.
pub(crate) async fn merge_zeros(
    operation: &Operation,
    shared: &Shared,
    block: u64,
    range: Range<u64>,
) -> Result<(), Errno> {
    let start = (range.start % block) as usize;
    let end = start + (range.end - range.start) as usize;
    let zeros = |bounce: &mut Buffer| bounce[start..end].fill(0);
    let at = range.start;
    match merge_blocks(operation, shared, block, range, None, Durability::Volatile, zeros).await {
        // The file was emptied meanwhile: it reads as zeros already.
        Err(Errno::IO) if shared.map.map(at).place == Place::Hole => Ok(()),
        zeroed => zeroed.map(drop),
    }
}

/// Makes every write of a range that has completed durable.
pub(crate) async fn flush(mut operation: Operation, file: File, what: Durable, range: Range<u64>) {
    let shared = &*file.shared;
    let mut saved = Ok(());
    if shared.lock.unsaved().is_any() {
        saved = Box::pin(save(&mut operation, shared, range)).await;
    }
    // Each opening hears of it once, though it may have been saved since.
    if shared.take_failure() {
        saved = saved.and(Err(Errno::IO));
    }
    let flushed = make_durable(&mut operation, shared, shared.map.commit(what)).await;
    operation.end(Payload::Length(0), saved.and(flushed).map(|()| 0));
}

/// By a commit where the map has something to commit, else by a flush.
async fn make_durable(
    operation: &mut Operation,
    shared: &Shared,
    commit: Option<Commit>,
) -> Result<(), Errno> {
    match commit {
        Some(commit) => operation.wait_uncounted(commit).await?,
        None => match request_flush(operation, shared).await {
            // Another that was under way beside it has lost what both were to save.
            Ok(_) if shared.map.has_flush_failed() => Err(Errno::IO),
            Ok(_) => Ok(()),
            Err(error) => {
                if !operation.is_stopped_with(error) {
                    shared.map.flush_failed();
                }
                Err(error)
            }
        },
    }
}

async fn request_flush(operation: &Operation, shared: &Shared) -> Result<u64, Errno> {
    let order = Order { op: Op::Flush, durability: Durability::Volatile, address: 0 };
    operation.request(&shared.core, order, Payload::Length(0)).await.result()
}

pub(crate) async fn read_blocks(
    operation: &Operation,
    shared: &Shared,
    blocks: Range<u64>,
) -> Result<Buffer, Errno> {
    let payload = Payload::Buffer(bounce(shared, blocks.end - blocks.start));
    let ended =
        transfer(operation, shared, Op::Read, Durability::Volatile, payload, blocks.start).await;
    ended.result()?;
    Ok(the_one(ended.payload))
}

/// The memory of a request that went out with one buffer.
pub(crate) fn the_one(payload: Payload) -> Buffer {
    match payload {
        Payload::Buffer(buffer) => buffer,
        Payload::Buffers(_) | Payload::Length(_) => unreachable!("one buffer went in"),
    }
}

pub(crate) fn bounce(shared: &Shared, length: u64) -> Buffer {
    Buffer::aligned(length as usize, uringfs_buffer::ALIGNMENT.max(shared.memory_mask as usize + 1))
}

/// The whole blocks around a range.
pub(crate) fn around(block: u64, range: Range<u64>) -> Range<u64> {
    range.start / block * block..range.end.next_multiple_of(block)
}

pub(crate) fn is_aligned(shared: &Shared, payload: &Payload, offset: u64) -> bool {
    let fits = |buffer: &Buffer| {
        buffer.len() as u64 & shared.block_mask == 0
            && buffer.pointer().as_ptr() as u64 & shared.memory_mask == 0
    };
    offset & shared.block_mask == 0
        && match payload {
            Payload::Buffer(buffer) => fits(buffer),
            Payload::Buffers(buffers) => buffers.iter().all(fits),
            Payload::Length(_) => true,
        }
}

/// Copies `bytes` into the payload, `skip` bytes after its beginning.
pub(crate) fn copy_in(payload: &mut Payload, skip: u64, bytes: &[u8]) {
    let mut skip = skip as usize;
    let mut bytes = bytes;
    let buffers = match payload {
        Payload::Buffer(buffer) => std::slice::from_mut(buffer),
        Payload::Buffers(buffers) => &mut buffers[..],
        Payload::Length(_) => return,
    };
    for buffer in buffers {
        let room = buffer.len().saturating_sub(skip);
        let take = room.min(bytes.len());
        if take > 0 {
            buffer[skip..skip + take].copy_from_slice(&bytes[..take]);
            bytes = &bytes[take..];
        }
        skip = skip.saturating_sub(buffer.len());
    }
}

/// Copies bytes of the payload out, from `skip` bytes after its beginning on.
pub(crate) fn copy_out(payload: &Payload, skip: u64, into: &mut [u8]) {
    let mut skip = skip as usize;
    let mut into = into;
    let buffers = match payload {
        Payload::Buffer(buffer) => std::slice::from_ref(buffer),
        Payload::Buffers(buffers) => buffers,
        Payload::Length(_) => return,
    };
    for buffer in buffers {
        let take = buffer.len().saturating_sub(skip).min(into.len());
        if take > 0 {
            into[..take].copy_from_slice(&buffer[skip..skip + take]);
            into = &mut into[take..];
        }
        skip = skip.saturating_sub(buffer.len());
    }
}
