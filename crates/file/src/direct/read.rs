//! Direct reads on the slow path: any offset, length and memory.
use uringfs_device::{Durability, Errno, Op, Payload};
use uringfs_reactor::{Counter, Operation};

use crate::io::bounce::{MAX_BOUNCE_BYTES, blocks_around, is_aligned, read_blocks};
use crate::io::transfer::transfer;
use crate::state::file::{File, FileHandle};
use crate::writeback::runs::write_back;

/// Reads at `offset` into `payload`: fewer bytes at the end of the file.
pub(crate) async fn read(mut operation: Operation, file: File, payload: Payload, offset: u64) {
    let handle = &*file.handle;
    let whole = payload.length();
    if handle.state.dirty().is_any() {
        let end = offset.saturating_add(whole);
        // Beyond the size in the map, everything is written back, so that the map knows the file's end.
        let end = if end > handle.map.size() { u64::MAX } else { end };
        if let Err(error) = Box::pin(write_back(&mut operation, handle, offset..end)).await {
            return operation.end_releasing(file, payload, Err(error));
        }
    }
    let length = whole.min(left(handle, offset));
    handle.map.touch_atime();
    if length == 0 {
        operation.end_releasing(file, payload, Ok(0));
    } else if length == whole && is_aligned(handle, &payload, offset) {
        let ended =
            transfer(&operation, handle, Op::Read, Durability::Volatile, payload, offset).await;
        match ended.result() {
            Ok(read) if read > left(handle, offset) => {
                let read = left(handle, offset);
                operation.end_releasing(file, ended.payload, Ok(read));
            }
            _ => operation.end_with_releasing(file, ended),
        }
    } else {
        operation.count(Counter::Bounced);
        let (payload, result) =
            Box::pin(read_bounced(&operation, handle, payload, offset, length)).await;
        let result = result.map(|read| read.min(left(handle, offset)));
        operation.end_releasing(file, payload, result);
    }
}

/// Bytes of the file from `offset` on. Computed again after a read: if the file was truncated meanwhile, the
/// read found holes there and returned zeros that the file never had.
fn left(handle: &FileHandle, offset: u64) -> u64 {
    handle.map.size().saturating_sub(offset)
}

async fn read_bounced(
    operation: &Operation,
    handle: &FileHandle,
    mut payload: Payload,
    offset: u64,
    length: u64,
) -> (Payload, Result<u64, Errno>) {
    let mut done = 0;
    while done < length {
        let at = offset + done;
        let blocks =
            blocks_around(handle.block_mask + 1, at..at + (length - done).min(MAX_BOUNCE_BYTES));
        let skip = at - blocks.start;
        let bounce = match read_blocks(operation, handle, blocks).await {
            Ok(bounce) => bounce,
            Err(error) => return (payload, Err(error)),
        };
        let take = (length - done).min(MAX_BOUNCE_BYTES);
        payload.copy_from(done, &bounce[skip as usize..(skip + take) as usize]);
        done += take;
    }
    (payload, Ok(done))
}
