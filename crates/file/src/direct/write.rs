//! Direct writes on the slow path: any offset, length and memory. A write is one `async fn`, read top to
//! bottom; it owns its memory and its locks until it has ended.

use std::ops::Range;

use uringfs_buffer::Buffer;
use uringfs_device::{Durability, Errno, Op, Payload};
use uringfs_reactor::{Counter, Operation};

use crate::direct::write_guard::{WriteGuard, begin_write, prepare_write};
use crate::io::bounce::{MAX_BOUNCE_BYTES, MAX_FILE_SIZE, blocks_around, is_aligned, merge_blocks};
use crate::io::transfer::{part_durability, transfer};
use crate::map::change_gate::ChangeGuard;
use crate::map::mapping::WriteKind;
use crate::state::file::{File, FileHandle};
use crate::writeback::sync::ensure_durable;

/// Writes `payload` at `offset`. At the end of a file of fixed size a write is short; beyond it, ENOSPC.
pub(crate) async fn write(
    mut operation: Operation,
    file: File,
    payload: Payload,
    offset: u64,
    durability: Durability,
) {
    let handle = &*file.handle;
    let (payload, result) = match writable_range(&mut operation, handle, &payload, offset).await {
        Ok((range, _)) if range.is_empty() => (payload, Ok(0)),
        Ok((range, _change)) => {
            write_range(&mut operation, handle, payload, range, durability).await
        }
        Err(error) => (payload, Err(error)),
    };
    operation.end_releasing(file, payload, result);
}

/// The range of a write that fits in the file. Begins the change ([`prepare_write`]).
pub(crate) async fn writable_range<'h>(
    operation: &mut Operation,
    handle: &'h FileHandle,
    payload: &Payload,
    offset: u64,
) -> Result<(Range<u64>, Option<ChangeGuard<'h>>), Errno> {
    let whole = payload.length();
    let end = offset.checked_add(whole).filter(|end| *end <= MAX_FILE_SIZE).ok_or(Errno::FBIG)?;
    let length = handle.map.writable_length(offset..end);
    if whole == 0 {
        return Ok((offset..offset, None));
    } else if let Some(errno) = handle.write_refusal {
        return Err(errno);
    } else if length == 0 {
        return Err(Errno::NOSPC);
    }
    let change = prepare_write(operation, handle).await?;
    Ok((offset..offset + length, change))
}

/// Locks, writes, and makes the range durable if requested.
#[inline]
pub(crate) async fn write_range(
    operation: &mut Operation,
    handle: &FileHandle,
    payload: Payload,
    range: Range<u64>,
    durability: Durability,
) -> (Payload, Result<u64, Errno>) {
    let guard = match begin_write(operation, handle, range.clone()).await {
        Ok(guard) => guard,
        Err(error) => return (payload, Err(error)),
    };
    let kind = guard.kind;
    let of_request = request_durability(handle, durability, kind);
    let Written { payload, result, issued } =
        write_locked(operation, handle, payload, range, of_request, guard).await;
    let result = match result {
        Ok(written) => {
            let durable = ensure_durable(operation, handle, durability, issued, kind);
            durable.await.map(|()| written)
        }
        result => result,
    };
    (payload, result)
}

/// The durability of a write that is one request. Durable only for overwrites in place: a changed map needs a commit,
/// which flushes anyway.
fn request_durability(handle: &FileHandle, durability: Durability, kind: WriteKind) -> Durability {
    match (durability, kind) {
        (Durability::Durable, WriteKind::InPlace) if handle.device.geometry().durable_writes => {
            Durability::Durable
        }
        _ => Durability::Volatile,
    }
}

/// The end of a write.
pub(crate) struct Written {
    pub(crate) payload: Payload,
    pub(crate) result: Result<u64, Errno>,
    /// The durability of its requests.
    pub(crate) issued: Durability,
}

/// Moves the bytes of a write that has its guard. `durability` is that of one request, if one suffices.
pub(crate) async fn write_locked(
    operation: &Operation,
    handle: &FileHandle,
    payload: Payload,
    range: Range<u64>,
    durability: Durability,
    mut guard: WriteGuard,
) -> Written {
    let (offset, length) = (range.start, range.end - range.start);
    let is_whole_blocks = (offset | length) & (guard.block - 1) == 0;
    let is_all = length == payload.length();
    let mut issued = part_durability(handle, durability);
    let (payload, result) = if is_all && is_whole_blocks && is_aligned(handle, &payload, offset) {
        let ended = transfer(operation, handle, Op::Write, durability, payload, offset).await;
        let result = ended.result();
        // A request that was a write and a flush. Of the flush, others have lost writes, too.
        if ended.durability != issued
            && let Err(error) = result
            && may_be_of_a_flush(error)
            && !operation.is_cancellation(error)
        {
            handle.map.note_flush_failure();
        }
        issued = ended.durability;
        if let Ok(written) = result {
            guard.mark_written(handle, offset..offset + written);
        }
        (ended.payload, result)
    } else {
        operation.count(Counter::Bounced);
        let written = write_bounced(operation, handle, &payload, range, issued, &mut guard);
        let result = Box::pin(written).await;
        (payload, result)
    };
    let result = match result {
        // It found no blocks any more: the file was truncated to 0 after the write began.
        Err(Errno::IO)
            if handle.map.generation() != guard.generation && !handle.map.has_flush_failed() =>
        {
            Ok(length)
        }
        result => result,
    };
    Written { payload, result, issued }
}

/// False for the errors that only writing has: the file has no room or no blocks there, or the request is not accepted.
pub(crate) fn may_be_of_a_flush(error: Errno) -> bool {
    !matches!(error, Errno::NOSPC | Errno::DQUOT | Errno::FBIG | Errno::INVAL | Errno::PERM)
}

/// Writes bytes that are not whole blocks, or whose memory is not aligned: reads the blocks at both ends first.
/// The guard excludes every other writer of them.
async fn write_bounced(
    operation: &Operation,
    handle: &FileHandle,
    payload: &Payload,
    range: Range<u64>,
    durability: Durability,
    guard: &mut WriteGuard,
) -> Result<u64, Errno> {
    let mut at = range.start;
    while at < range.end {
        operation.check_cancelled()?;
        let end = range.end.min((at / MAX_BOUNCE_BYTES + 1) * MAX_BOUNCE_BYTES);
        let blocks = blocks_around(guard.block, at..end);
        let bytes = |bounce: &mut Buffer| {
            let start = (at - blocks.start) as usize;
            payload.copy_to(at - range.start, &mut bounce[start..start + (end - at) as usize]);
        };
        let tail = guard.take_partial_block(blocks.start).map(|tail| tail.bytes);
        let written =
            merge_blocks(operation, handle, guard.block, at..end, tail, durability, bytes).await?;
        if handle.map.resizable().is_some() && !end.is_multiple_of(guard.block) {
            let last = blocks.end - guard.block;
            let is_one = last == blocks.start;
            let rest = || Buffer::copy_of(&written[(last - blocks.start) as usize..]);
            guard.leave_partial_block(last, if is_one { written } else { rest() });
        }
        at = end;
    }
    // Under the lock: otherwise the next writer would find the rest of a new block unwritten. All at once: an append that
    // fails leaves no part of itself.
    guard.mark_written(handle, range.clone());
    Ok(range.end - range.start)
}
