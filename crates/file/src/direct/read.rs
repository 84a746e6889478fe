//! Direct reads on the slow path: any offset, length and memory.

use rustix::io::Errno;
use uringfs_device::{Durability, Op, Payload};
use uringfs_reactor::{Counter, Operation};

use crate::io::bounce::{BOUNCE, around, copy_in, is_aligned, read_blocks};
use crate::io::transfer::transfer;
use crate::state::file::{File, Shared};
use crate::writeback::runs::save;

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
