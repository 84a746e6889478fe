//! Atomic writes: after a crash the file has all of the bytes or none.
//!
//! 1. The range lock orders the write against writes of partial blocks. Writers of whole blocks take none, and
//!    come before or after.
//! 2. The map allocates blocks that no file maps. The allocator counts them as pending, like freed blocks, so
//!    that a commit meanwhile records them as free.
//! 3. The bytes are written there. Then the map swaps them for the old blocks, in one step under the volume's
//!    lock.
//! 4. A commit makes the swap durable.

use std::ops::Range;

use uringfs_buffer::Buffer;
use uringfs_device::{Durability, Errno, Op, Payload};
use uringfs_reactor::{Counter, Operation};

use crate::direct::write_guard::{lock_range, prepare_write};
use crate::io::bounce::{MAX_FILE_SIZE, block_size_of, bounce, is_aligned};
use crate::io::space_wait::retry_for_space;
use crate::io::transfer::transfer_buffer;
use crate::map::mapping::{Mapping, MappingState, OutOfPlaceExtents, ResizableMap, SyncScope};
use crate::state::file::{File, FileHandle};

/// Bytes of one atomic write at most.
pub const MAX_ATOMIC_WRITE_BYTES: u64 = 1 << 20;

/// Writes whole blocks, atomically and durably.
pub(crate) async fn write(mut operation: Operation, file: File, payload: Payload, offset: u64) {
    let handle = &*file.handle;
    let ended = match (check(handle, &payload, offset), payload) {
        (Ok(map), Payload::Buffer(buffer)) if !buffer.is_empty() => {
            operation.count(Counter::WriteAtomic);
            let (buffer, result) =
                write_and_swap(&mut operation, handle, map, buffer, offset).await;
            (Payload::Buffer(buffer), result)
        }
        (Ok(_), payload) => (payload, Ok(0)),
        (Err(error), payload) => (payload, Err(error)),
    };
    operation.end_releasing(file, ended.0, ended.1);
}

fn check<'s>(
    handle: &'s FileHandle,
    payload: &Payload,
    offset: u64,
) -> Result<&'s dyn ResizableMap, Errno> {
    let map = handle.map.require_resizable()?;
    let length = payload.length();
    let is_whole = (offset | length) & (block_size_of(handle) - 1) == 0;
    if let Some(errno) = handle.write_refusal {
        Err(errno)
    } else if !is_whole || length > MAX_ATOMIC_WRITE_BYTES {
        Err(Errno::INVAL)
    } else if offset.checked_add(length).is_none_or(|end| end > MAX_FILE_SIZE) {
        Err(Errno::FBIG)
    } else {
        Ok(map)
    }
}

async fn write_and_swap(
    operation: &mut Operation,
    handle: &FileHandle,
    map: &dyn ResizableMap,
    buffer: Buffer,
    offset: u64,
) -> (Buffer, Result<u64, Errno>) {
    let range = offset..offset + buffer.len() as u64;
    let _change = match prepare_write(operation, handle).await {
        Ok(change) => change,
        Err(error) => return (buffer, Err(error)),
    };
    // Orders this write against partial-block writes and changes of the file's space.
    let held = match lock_range(operation, handle, range.clone()).await {
        Ok(held) => held,
        Err(error) => return (buffer, Err(error)),
    };
    let generation = map.generation();
    let reserved = retry_for_space(operation, || map.allocate_out_of_place(range.clone())).await;
    let mut reserved = match reserved {
        Ok(reserved) => Some(reserved),
        Err(error) => return (buffer, Err(error)),
    };
    let (buffer, written) = write_out_of_place(operation, handle, &reserved, buffer, offset).await;
    if let Err(error) = written {
        return (buffer, Err(error));
    }
    let mut swap = || map.swap_extents(range.clone(), &mut reserved, generation);
    let replaced = retry_for_space(operation, || held.publish(handle, range.end, &mut swap)).await;
    drop(held);
    let length = range.end - range.start;
    let result = match replaced {
        Ok(()) => match map.commit(SyncScope::Data) {
            Some(commit) => operation.wait_outside_epoch(commit).await.flatten(),
            None => Ok(()),
        },
        Err(error) => Err(error),
    };
    (buffer, result.map(|()| length))
}

/// Writes all bytes to the reserved extents, which no file maps.
async fn write_out_of_place(
    operation: &Operation,
    handle: &FileHandle,
    reserved: &Option<OutOfPlaceExtents>,
    buffer: Buffer,
    offset: u64,
) -> (Buffer, Result<(), Errno>) {
    let pieces = reserved.as_ref().map_or(&[][..], OutOfPlaceExtents::extents);
    let map_at = |at: u64| {
        let in_piece = |range: &Range<u64>| range.contains(&at);
        let piece = pieces.iter().find(|piece| in_piece(&piece.range()));
        piece.map_or(Mapping { length: 0, state: MappingState::Hole }, |piece| Mapping {
            length: piece.range().end - at,
            state: MappingState::Unwritten(piece.address + (at - piece.offset)),
        })
    };
    let length = buffer.len() as u64;
    let payload = Payload::Buffer(buffer);
    let is_aligned = is_aligned(handle, &payload, offset);
    let Payload::Buffer(buffer) = payload else { unreachable!("one buffer went in") };
    let (buffer, written) = if is_aligned {
        let write = transfer_buffer(
            operation,
            handle,
            Op::Write,
            Durability::Volatile,
            buffer,
            offset,
            map_at,
        );
        Box::pin(write).await
    } else {
        operation.count(Counter::Bounced);
        let mut copy = bounce(handle, length);
        buffer.copy_to(0, &mut copy);
        let write = transfer_buffer(
            operation,
            handle,
            Op::Write,
            Durability::Volatile,
            copy,
            offset,
            map_at,
        );
        (buffer, Box::pin(write).await.1)
    };
    (buffer, written.and_then(|()| operation.check_cancelled()))
}
