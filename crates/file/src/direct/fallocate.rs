//! A file's size and its space: cut off, made longer, allocated ahead, given back, zeroed. Each is one
//! `async fn` that keeps every other writer of the file out while it works; readers never wait.
//!
//! An image or a device is as long as it is, and has all of its blocks: of these it only discards and
//! zeroes.

use std::ops::Range;

use rustix::io::Errno;
use uringfs_device::{Durability, Op, Payload};
use uringfs_reactor::{Counter, Operation, Order};

use crate::direct::write_guard::{enter, keep_out, note_write, zero_tail};
use crate::io::bounce::{LONGEST, block_of, merge_zeros};
use crate::io::space_wait::prepare;
use crate::map::mapping::{Map, Place};
use crate::state::file::{File, Shared};

/// What becomes of a file's size when space is allocated or zeroed behind its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// It stays: what lies behind it is there when the file becomes longer.
    Keep,
    /// The file becomes as long as the range reaches.
    Extend,
}

/// What is done to a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Allocate(Size),
    PunchHole,
    Zero(Size),
}

/// Cuts a file off, or makes it longer by a hole.
pub(crate) async fn set_size(mut operation: Operation, file: File, size: u64) {
    let result = cut_or_extend(&mut operation, &file.shared, size).await;
    operation.end(Payload::Length(0), result.map(|()| 0));
}

async fn cut_or_extend(operation: &mut Operation, shared: &Shared, size: u64) -> Result<(), Errno> {
    let map = writable(shared)?;
    if size > LONGEST {
        return Err(Errno::FBIG);
    }
    note_write(operation, shared).await?;
    let changed = |was| size.min(was)..u64::MAX;
    let _held = keep_out(operation, shared, Counter::WriteSize, size, changed).await?;
    if size > map.size() {
        zero_tail(operation, shared).await?;
        if size < shared.size() {
            // The map has not heard how long the file was: it may have blocks behind the cut for it.
            let block = block_of(shared);
            map.remove(size.next_multiple_of(block)..u64::MAX / block * block)?;
        }
    }
    // First: else the file were as short as the map says for a moment.
    map.set_size(size)?;
    shared.lock.unsaved().cut(size);
    Ok(())
}

/// Allocates, frees or zeroes a range.
pub(crate) async fn change(
    mut operation: Operation,
    file: File,
    how: Change,
    offset: u64,
    length: u64,
) {
    let result = change_range(&mut operation, &file.shared, how, offset, length).await;
    operation.end(Payload::Length(length), result.map(|()| length));
}

async fn change_range(
    operation: &mut Operation,
    shared: &Shared,
    how: Change,
    offset: u64,
    length: u64,
) -> Result<(), Errno> {
    let map = writable(shared)?;
    if length == 0 {
        return Err(Errno::INVAL);
    }
    let end = offset.checked_add(length).filter(|end| *end <= LONGEST).ok_or(Errno::FBIG)?;
    note_write(operation, shared).await?;
    let changed = |size| offset.min(size)..end;
    let _held = keep_out(operation, shared, Counter::WriteSpace, u64::MAX, changed).await?;
    match how {
        Change::PunchHole => {
            let whole = zero_ends(operation, shared, offset..end).await?;
            return if whole.is_empty() { Ok(()) } else { map.remove(whole) };
        }
        Change::Zero(_) => {
            let whole = zero_ends(operation, shared, offset..end).await?;
            if !whole.is_empty() {
                map.unwrite(whole)?;
            }
        }
        Change::Allocate(_) => {}
    }
    prepare(operation, shared, offset..end, map.generation()).await?;
    match how {
        Change::Allocate(Size::Extend) | Change::Zero(Size::Extend) if end > map.size() => {
            zero_tail(operation, shared).await?;
            map.set_size(end)
        }
        _ => Ok(()),
    }
}

fn writable(shared: &Shared) -> Result<&dyn Map, Errno> {
    match shared.read_only {
        true => Err(Errno::ROFS),
        false => shared.map.growing(),
    }
}

/// Writes zeros where a range covers a written block in part, and answers the whole blocks of it: also
/// the last of the file, if it reaches to its end.
async fn zero_ends(
    operation: &Operation,
    shared: &Shared,
    range: Range<u64>,
) -> Result<Range<u64>, Errno> {
    let block = block_of(shared);
    let to_end = range.end >= shared.map.size();
    let end = if to_end { range.end.next_multiple_of(block) } else { range.end / block * block };
    let start = range.start.next_multiple_of(block);
    let (head, tail) = (range.start..start.min(range.end), end.max(range.start)..range.end);
    // Within one block they are the same part.
    let parts = if start > end { [range.clone(), 0..0] } else { [head, tail] };
    for part in parts {
        let is_written = matches!(shared.map.map(part.start).place, Place::Written(_));
        if !part.is_empty() && is_written {
            merge_zeros(operation, shared, block, part).await?;
        }
    }
    Ok(start..end.max(start))
}

/// Gives up the content of a range; blocks that it covers in part are kept.
pub(crate) async fn discard(mut operation: Operation, file: File, offset: u64, length: u64) {
    let result = discard_range(&mut operation, &file.shared, offset, length).await;
    operation.end(Payload::Length(length), result.map(|()| length));
}

async fn discard_range(
    operation: &mut Operation,
    shared: &Shared,
    offset: u64,
    length: u64,
) -> Result<(), Errno> {
    if shared.read_only {
        return Err(Errno::ROFS);
    }
    let range = within(shared, offset, length);
    let whole = |block| range.start.next_multiple_of(block)..range.end / block * block;
    if let Ok(map) = shared.map.growing() {
        let whole = whole(block_of(shared));
        if whole.is_empty() {
            return Ok(());
        }
        note_write(operation, shared).await?;
        let _held =
            keep_out(operation, shared, Counter::WriteSpace, u64::MAX, |_| whole.clone()).await?;
        return map.remove(whole);
    }
    let limits = shared.device.geometry().discard.ok_or(Errno::OPNOTSUPP)?;
    let whole = whole(shared.block_mask + 1);
    clear(operation, shared, Op::Discard, whole, limits.max_bytes).await
}

/// Has a range inside the size read as zeros.
pub(crate) async fn write_zeroes(mut operation: Operation, file: File, offset: u64, length: u64) {
    let shared = &*file.shared;
    let range = within(shared, offset, length);
    let result = if shared.read_only {
        Err(Errno::ROFS)
    } else if range.is_empty() {
        Ok(())
    } else if shared.map.grows() {
        let (offset, length) = (range.start, range.end - range.start);
        change_range(&mut operation, shared, Change::Zero(Size::Keep), offset, length).await
    } else {
        zero(&mut operation, shared, range).await
    };
    operation.end(Payload::Length(length), result.map(|()| length));
}

/// Zeroes a range in place.
async fn zero(operation: &mut Operation, shared: &Shared, range: Range<u64>) -> Result<(), Errno> {
    let block = shared.block_mask + 1;
    let whole = range.start.next_multiple_of(block)..range.end / block * block;
    if whole.start >= whole.end {
        return zero_part(operation, shared, range).await;
    }
    zero_part(operation, shared, range.start..whole.start).await?;
    zero_part(operation, shared, whole.end..range.end).await?;
    clear(operation, shared, Op::WriteZeroes, whole, u64::MAX).await
}

/// Zeroes bytes that are not whole blocks.
async fn zero_part(
    operation: &mut Operation,
    shared: &Shared,
    range: Range<u64>,
) -> Result<(), Errno> {
    if range.is_empty() || !matches!(shared.map.map(range.start).place, Place::Written(_)) {
        // There is nothing, or it reads as zeros already.
        return Ok(());
    }
    let entry = enter(operation, shared, range.clone()).await?;
    merge_zeros(operation, shared, entry.block, range).await
}

/// Discards or zeroes whole blocks, extent by extent.
async fn clear(
    operation: &mut Operation,
    shared: &Shared,
    op: Op,
    range: Range<u64>,
    max: u64,
) -> Result<(), Errno> {
    if range.is_empty() {
        return Ok(());
    }
    let _entry = enter(operation, shared, range.clone()).await?;
    let block = shared.block_mask + 1;
    let max = (max / block * block).max(block);
    let mut at = range.start;
    while at < range.end {
        operation.check()?;
        let mapping = shared.map.map(at);
        let length = mapping.length.min(range.end - at).min(max);
        if let Place::Written(address) = mapping.place {
            let payload = Payload::Length(length);
            let order = Order { op, durability: Durability::Volatile, address };
            operation.request(&shared.core, order, payload).await.result()?;
        }
        at += length;
    }
    Ok(())
}

/// The part of a range that is inside the size.
fn within(shared: &Shared, offset: u64, length: u64) -> Range<u64> {
    let size = shared.map.size();
    let start = offset.min(size);
    start..start + length.min(size - start)
}
