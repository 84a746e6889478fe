//! Bounce buffers: aligned copies of whole blocks for unaligned ranges or memory, and block arithmetic.

use std::ops::Range;

use uringfs_buffer::Buffer;
use uringfs_device::{Durability, Errno, Op, Payload};
use uringfs_reactor::Operation;

use crate::io::transfer::transfer;
use crate::map::mapping::MappingState;
use crate::state::file::FileHandle;

/// Maximum file size in bytes: the kernel's `loff_t`.
pub(crate) const MAX_FILE_SIZE: u64 = i64::MAX as u64;

/// Memory that one unaligned operation borrows at most, in bytes.
pub(crate) const MAX_BOUNCE_BYTES: u64 = 1 << 20;

/// Writes `range` by whole blocks. Reads the blocks at its ends that it covers in part, except the first one if
/// `first` has it already; `fill` supplies the bytes of the range. Returns what was written. Bytes beyond the
/// file's end become zeros, whatever they were.
pub(crate) async fn merge_blocks(
    operation: &Operation,
    handle: &FileHandle,
    block: u64,
    range: Range<u64>,
    first: Option<Buffer>,
    durability: Durability,
    fill: impl FnOnce(&mut Buffer),
) -> Result<Buffer, Errno> {
    let blocks = blocks_around(block, range.clone());
    let mut bounce = bounce(handle, blocks.end - blocks.start);
    let head = (blocks.start < range.start).then_some(blocks.start);
    let tail = (range.end < blocks.end).then_some(blocks.end - block);
    let mut first = first.filter(|first| first.len() as u64 == block);
    for start in head.into_iter().chain(tail.filter(|tail| Some(*tail) != head)) {
        let known = first.take_if(|_| start == blocks.start);
        let mut old = match known {
            Some(known) => known,
            None => read_blocks(operation, handle, start..start + block).await?,
        };
        let place = (start - blocks.start) as usize;
        let inside = handle.map.size().saturating_sub(start).min(block) as usize;
        old[inside..].fill(0);
        bounce[place..place + block as usize].copy_from_slice(&old);
    }
    fill(&mut bounce);
    let payload = Payload::Buffer(bounce);
    let ended = transfer(operation, handle, Op::Write, durability, payload, blocks.start).await;
    ended.result()?;
    Ok(single_buffer(ended.payload))
}

/// Writes zeros over a range, as [`merge_blocks`]. The caller excludes writers, so only a truncation to 0 can
/// take its blocks away.
pub(crate) async fn merge_zeros(
    operation: &Operation,
    handle: &FileHandle,
    block: u64,
    range: Range<u64>,
) -> Result<(), Errno> {
    let start = (range.start % block) as usize;
    let end = start + (range.end - range.start) as usize;
    let zeros = |bounce: &mut Buffer| bounce[start..end].fill(0);
    let at = range.start;
    match merge_blocks(operation, handle, block, range, None, Durability::Volatile, zeros).await {
        // The file was truncated to 0 meanwhile: the range reads as zeros.
        Err(Errno::IO) if handle.map.map(at).state == MappingState::Hole => Ok(()),
        zeroed => zeroed.map(drop),
    }
}

pub(crate) async fn read_blocks(
    operation: &Operation,
    handle: &FileHandle,
    blocks: Range<u64>,
) -> Result<Buffer, Errno> {
    let payload = Payload::Buffer(bounce(handle, blocks.end - blocks.start));
    let ended =
        transfer(operation, handle, Op::Read, Durability::Volatile, payload, blocks.start).await;
    ended.result()?;
    Ok(single_buffer(ended.payload))
}

/// The memory of a request that went out with one buffer.
pub(crate) fn single_buffer(payload: Payload) -> Buffer {
    match payload {
        Payload::Buffer(buffer) => buffer,
        Payload::Buffers(_) | Payload::Length(_) => unreachable!("one buffer went in"),
    }
}

pub(crate) fn bounce(handle: &FileHandle, length: u64) -> Buffer {
    Buffer::aligned(length as usize, uringfs_buffer::ALIGNMENT.max(handle.memory_mask as usize + 1))
}

/// The whole blocks that cover a range.
pub(crate) fn blocks_around(block: u64, range: Range<u64>) -> Range<u64> {
    range.start / block * block..range.end.next_multiple_of(block)
}

pub(crate) fn is_aligned(handle: &FileHandle, payload: &Payload, offset: u64) -> bool {
    let fits = |buffer: &Buffer| {
        buffer.len() as u64 & handle.block_mask == 0
            && buffer.pointer().as_ptr() as u64 & handle.memory_mask == 0
    };
    offset & handle.block_mask == 0
        && match payload {
            Payload::Buffer(buffer) => fits(buffer),
            Payload::Buffers(buffers) => buffers.iter().all(fits),
            Payload::Length(_) => true,
        }
}

/// The unit that is allocated and becomes written as a whole: the map's block or the device's, whichever is
/// larger.
pub(crate) fn block_size_of(handle: &FileHandle) -> u64 {
    handle.map.block_size().max(handle.block_mask + 1)
}
