//! The file's size and space: truncate, extend, allocate, punch holes, zero. Each operation is one `async fn`
//! that excludes every other writer of the file; reads never wait.
//!
//! A truncate inside a block writes nothing. An extension first zeroes the bytes beyond the old end, and then
//! sets the size. So after a power cut either change is there in full or not at all.
//!
//! An image or a device has a fixed size and all of its blocks: it supports only discard and zeroing.

use std::ops::Range;

use uringfs_device::{Durability, Errno, Op, Payload};
use uringfs_reactor::{Counter, Operation, RequestSpec};

use crate::direct::write_guard::{begin_write, lock_exclusive, prepare_write, zero_tail};
use crate::io::bounce::{MAX_FILE_SIZE, block_size_of, merge_zeros};
use crate::io::space_wait::allocate;
use crate::io::transfer::may_issue;
use crate::map::mapping::{MappingState, ResizableMap};
use crate::state::file::{File, FileHandle};

/// Effect on the size when space beyond the end is allocated or zeroed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FallocateSize {
    /// The size stays. The space is used when the file grows (`FALLOC_FL_KEEP_SIZE`).
    Keep,
    /// The size becomes the end of the range, if that is larger.
    Extend,
}

/// The operation on a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FallocateMode {
    Allocate(FallocateSize),
    PunchHole,
    Zero(FallocateSize),
}

/// Truncates a file, or extends it by a hole.
pub(crate) async fn set_len(mut operation: Operation, file: File, size: u64) {
    let result = truncate_or_extend(&mut operation, &file.handle, size).await;
    operation.end_releasing(file, Payload::Length(0), result.map(|()| 0));
}

async fn truncate_or_extend(
    operation: &mut Operation,
    handle: &FileHandle,
    size: u64,
) -> Result<(), Errno> {
    let map = writable(handle)?;
    if size > MAX_FILE_SIZE {
        return Err(Errno::FBIG);
    }
    let _change = prepare_write(operation, handle).await?;
    let changed = |was| size.min(was)..u64::MAX;
    let held = lock_exclusive(operation, handle, Counter::WriteResize, size, changed).await?;
    if size > map.size() {
        zero_tail(operation, handle).await?;
        if size < handle.size() {
            // The file's end was only in dirty folios: the map may have allocated blocks for them beyond the
            // new size.
            let block = block_size_of(handle);
            map.punch_hole(size.next_multiple_of(block)..u64::MAX / block * block);
        }
    }
    held.publish(handle, size, || {
        // The map first: otherwise the size would be the map's old one for a moment.
        map.set_size(size);
        handle.state.dirty().truncate(size);
    });
    Ok(())
}

/// Allocates, frees or zeroes a range.
pub(crate) async fn fallocate(
    mut operation: Operation,
    file: File,
    mode: FallocateMode,
    offset: u64,
    length: u64,
) {
    let result = fallocate_range(&mut operation, &file.handle, mode, offset, length).await;
    operation.end_releasing(file, Payload::Length(length), result.map(|()| length));
}

async fn fallocate_range(
    operation: &mut Operation,
    handle: &FileHandle,
    mode: FallocateMode,
    offset: u64,
    length: u64,
) -> Result<(), Errno> {
    let map = writable(handle)?;
    if length == 0 {
        return Err(Errno::INVAL);
    }
    let end = offset.checked_add(length).filter(|end| *end <= MAX_FILE_SIZE).ok_or(Errno::FBIG)?;
    let _change = prepare_write(operation, handle).await?;
    let changed = |size| offset.min(size)..end;
    let held =
        lock_exclusive(operation, handle, Counter::WriteFallocate, u64::MAX, changed).await?;
    match mode {
        FallocateMode::PunchHole => {
            let whole = zero_ends(operation, handle, offset..end).await?;
            if !whole.is_empty() {
                map.punch_hole(whole);
            }
            return Ok(());
        }
        FallocateMode::Zero(_) => {
            let whole = zero_ends(operation, handle, offset..end).await?;
            if !whole.is_empty() {
                map.mark_unwritten(whole);
            }
        }
        FallocateMode::Allocate(_) => {}
    }
    allocate(operation, handle, offset..end, map.generation()).await?;
    match mode {
        FallocateMode::Allocate(FallocateSize::Extend)
        | FallocateMode::Zero(FallocateSize::Extend)
            if end > map.size() =>
        {
            zero_tail(operation, handle).await?;
            held.publish(handle, end, || map.set_size(end));
        }
        _ => {}
    }
    Ok(())
}

fn writable(handle: &FileHandle) -> Result<&dyn ResizableMap, Errno> {
    match handle.write_refusal {
        Some(errno) => Err(errno),
        None => handle.map.require_resizable(),
    }
}

/// Zeroes the written blocks that a range covers in part, and returns its whole blocks. The last block of the
/// file counts as whole if the range reaches the end.
async fn zero_ends(
    operation: &Operation,
    handle: &FileHandle,
    range: Range<u64>,
) -> Result<Range<u64>, Errno> {
    let block = block_size_of(handle);
    let to_end = range.end >= handle.map.size();
    let end = if to_end { range.end.next_multiple_of(block) } else { range.end / block * block };
    let start = range.start.next_multiple_of(block);
    let (head, tail) = (range.start..start.min(range.end), end.max(range.start)..range.end);
    // Within one block both are the same part.
    let parts = if start > end { [range.clone(), 0..0] } else { [head, tail] };
    for part in parts {
        let is_written = matches!(handle.map.map(part.start).state, MappingState::Written(_));
        if !part.is_empty() && is_written {
            merge_zeros(operation, handle, block, part).await?;
        }
    }
    Ok(start..end.max(start))
}

/// Discards the content of a range; blocks that it covers in part stay.
pub(crate) async fn discard(mut operation: Operation, file: File, offset: u64, length: u64) {
    let result = discard_range(&mut operation, &file.handle, offset, length).await;
    operation.end_releasing(file, Payload::Length(length), result.map(|()| length));
}

async fn discard_range(
    operation: &mut Operation,
    handle: &FileHandle,
    offset: u64,
    length: u64,
) -> Result<(), Errno> {
    if let Some(errno) = handle.write_refusal {
        return Err(errno);
    }
    let range = clamp_to_size(handle, offset, length);
    let whole = |block| range.start.next_multiple_of(block)..range.end / block * block;
    if let Some(map) = handle.map.resizable() {
        let whole = whole(block_size_of(handle));
        if whole.is_empty() {
            return Ok(());
        }
        let _change = prepare_write(operation, handle).await?;
        let _held =
            lock_exclusive(operation, handle, Counter::WriteFallocate, u64::MAX, |_| whole.clone())
                .await?;
        map.punch_hole(whole);
        return Ok(());
    }
    let limits = handle.device.geometry().discard.ok_or(Errno::OPNOTSUPP)?;
    let whole = whole(handle.block_mask + 1);
    clear(operation, handle, Op::Discard, whole, limits.max_bytes).await
}

/// Makes a range inside the size read as zeros.
pub(crate) async fn write_zeroes(mut operation: Operation, file: File, offset: u64, length: u64) {
    let handle = &*file.handle;
    let range = clamp_to_size(handle, offset, length);
    let result = if let Some(errno) = handle.write_refusal {
        Err(errno)
    } else if range.is_empty() {
        Ok(())
    } else if handle.map.resizable().is_some() {
        let (offset, length) = (range.start, range.end - range.start);
        fallocate_range(
            &mut operation,
            handle,
            FallocateMode::Zero(FallocateSize::Keep),
            offset,
            length,
        )
        .await
    } else {
        zero(&mut operation, handle, range).await
    };
    operation.end_releasing(file, Payload::Length(length), result.map(|()| length));
}

/// Zeroes a range in place.
async fn zero(
    operation: &mut Operation,
    handle: &FileHandle,
    range: Range<u64>,
) -> Result<(), Errno> {
    let block = handle.block_mask + 1;
    let whole = range.start.next_multiple_of(block)..range.end / block * block;
    if whole.start >= whole.end {
        return zero_part(operation, handle, range).await;
    }
    zero_part(operation, handle, range.start..whole.start).await?;
    zero_part(operation, handle, whole.end..range.end).await?;
    clear(operation, handle, Op::WriteZeroes, whole, u64::MAX).await
}

/// Zeroes bytes that are not whole blocks.
async fn zero_part(
    operation: &mut Operation,
    handle: &FileHandle,
    range: Range<u64>,
) -> Result<(), Errno> {
    if range.is_empty() || !matches!(handle.map.map(range.start).state, MappingState::Written(_)) {
        // A hole or unwritten: it reads as zeros already.
        return Ok(());
    }
    let guard = begin_write(operation, handle, range.clone()).await?;
    merge_zeros(operation, handle, guard.block, range).await
}

/// Discards or zeroes whole blocks, extent by extent.
async fn clear(
    operation: &mut Operation,
    handle: &FileHandle,
    op: Op,
    range: Range<u64>,
    max: u64,
) -> Result<(), Errno> {
    if range.is_empty() {
        return Ok(());
    }
    let _guard = begin_write(operation, handle, range.clone()).await?;
    let block = handle.block_mask + 1;
    let max = (max / block * block).max(block);
    let mut at = range.start;
    while at < range.end {
        operation.check_cancelled()?;
        let mapping = handle.map.map(at);
        let length = mapping.length.min(range.end - at).min(max);
        if let MappingState::Written(address) = mapping.state {
            if !may_issue(handle, op, address, length) {
                return Err(Errno::IO);
            }
            let payload = Payload::Length(length);
            let spec = RequestSpec { op, durability: Durability::Volatile, address };
            operation.request(&handle.device_inner, spec, payload).await.result()?;
        }
        at += length;
    }
    Ok(())
}

/// The part of a range that is inside the size, dirty folios included.
fn clamp_to_size(handle: &FileHandle, offset: u64, length: u64) -> Range<u64> {
    let size = handle.size();
    let start = offset.min(size);
    start..start + length.min(size - start)
}
