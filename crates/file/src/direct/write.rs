//! Direct writes on the slow path: any offset, length and memory. Each operation
//! is one `async fn`, read top to bottom; it owns its memory and its locks
//! until it has ended.

use std::ops::Range;

use rustix::io::Errno;
use uringfs_buffer::Buffer;
use uringfs_device::{Durability, Op, Payload};
use uringfs_reactor::{Counter, Operation};

use crate::direct::write_guard::{Entry, enter, note_write};
use crate::io::bounce::{BOUNCE, LONGEST, around, copy_out, is_aligned, merge_blocks};
use crate::io::transfer::transfer;
use crate::map::mapping::Preparation;
use crate::state::file::{File, Shared};
use crate::writeback::sync::{fua, made_durable};

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
