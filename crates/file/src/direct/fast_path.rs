//! The fast path: a small aligned read or overwrite inside one written extent is one request and completes
//! inline. No task, no state machine, no allocation.
//!
//! A refusal is counted by its reason and takes the slow path.

use uringfs_buffer::Buffer;
use uringfs_reactor::{Counter, Inner};

use crate::state::file::FileHandle;

/// The device address of a read that is eligible for the fast path. The caller has counted it in for
/// quiescence, so the extent stays allocated until the read has ended.
#[inline(always)]
pub(crate) fn read(handle: &FileHandle, buffer: &Buffer, offset: u64) -> Option<u64> {
    let length = eligible_length(handle, handle.fast_read_limit, buffer, offset)?;
    if handle.state.dirty().is_any() {
        return None;
    }
    handle.map.simple_read(offset, length)
}

/// The same for an overwrite while the bias holds. A writer that excludes it revokes the bias first and then
/// waits for everything counted in.
#[inline(always)]
pub(crate) fn write(handle: &FileHandle, buffer: &Buffer, offset: u64) -> Option<u64> {
    if !handle.state.is_biased() {
        return None;
    }
    let length = eligible_length(handle, handle.fast_write_limit, buffer, offset)?;
    handle.map.simple_write(offset, length)
}

/// Its length, if length, offset and memory are eligible.
#[inline(always)]
fn eligible_length(handle: &FileHandle, limit: u32, buffer: &Buffer, offset: u64) -> Option<u64> {
    let length = buffer.len() as u64;
    // 0 wraps to the largest length.
    let fits = length.wrapping_sub(1) < limit as u64;
    // A closed device: the slow path reports it; the reactor may not know yet.
    let is_eligible = fits && !is_unaligned(handle, buffer, offset) && !handle.core.is_closed();
    is_eligible.then_some(length)
}

#[inline(always)]
fn is_unaligned(handle: &FileHandle, buffer: &Buffer, offset: u64) -> bool {
    let memory = buffer.pointer().as_ptr() as u64;
    (offset | buffer.len() as u64) & handle.block_mask | memory & handle.memory_mask != 0
}

/// Counts why a read was refused. A device that is gone is no such reason.
#[cold]
pub(crate) fn count_refusal(inner: &Inner, handle: &FileHandle, buffer: &Buffer, offset: u64) {
    if !handle.core.is_closed() && handle.cache.is_none() {
        inner.count(refusal_reason(handle, buffer, offset));
    }
}

fn refusal_reason(handle: &FileHandle, buffer: &Buffer, offset: u64) -> Counter {
    let length = buffer.len() as u64;
    let is_inside = offset.checked_add(length).is_some_and(|end| end <= handle.map.size());
    if !handle.options.simple_read {
        Counter::SimpleOff
    } else if length.wrapping_sub(1) >= handle.fast_read_limit as u64 {
        Counter::SimpleLength
    } else if is_unaligned(handle, buffer, offset) {
        Counter::SimpleAlignment
    } else if !is_inside {
        Counter::SimpleSize
    } else if handle.state.dirty().is_any() {
        Counter::SimpleUnsaved
    } else if handle.map.written(offset, length).is_some() {
        Counter::SimpleTimes
    } else {
        Counter::SimpleExtent
    }
}
