//! Bounce buffers: aligned copies of whole blocks around bytes that are not, and the arithmetic of blocks.

use std::ops::Range;

use rustix::io::Errno;
use uringfs_buffer::Buffer;
use uringfs_device::{Durability, Op, Payload};
use uringfs_reactor::Operation;

use crate::io::transfer::transfer;
use crate::map::mapping::Place;
use crate::state::file::Shared;

/// Where the longest file ends, as the kernel's `loff_t`.
pub(crate) const LONGEST: u64 = i64::MAX as u64;

/// The most memory one unaligned operation borrows, in bytes.
pub(crate) const BOUNCE: u64 = 1 << 20;

/// Reads what of the blocks around `range` lies outside it, unless `first` is the first of them, has `fill`
/// put the rest in, writes all, and answers it. What lies behind the file's end is zeros then, whatever it
/// was.
pub(crate) async fn merge_blocks(
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

/// The block that is allocated and becomes written as a whole: no smaller than the device's.
pub(crate) fn block_of(shared: &Shared) -> u64 {
    shared.map.block_size().max(shared.block_mask + 1)
}
