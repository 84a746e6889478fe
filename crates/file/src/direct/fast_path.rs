//! The simple way: a small aligned read or overwrite inside one written extent
//! goes out as one request and completes inline. No task, no state machine, no
//! allocation.
//!
//! What refuses it is counted by reason, and goes the general way.

use uringfs_buffer::Buffer;
use uringfs_reactor::{Counter, Inner};

use crate::state::file::Shared;

/// Where on the device a simple read lies, if it is one. The caller has counted
/// it in for quiescence, so the extent stays where it is until the read has ended.
#[inline(always)]
pub(crate) fn read(shared: &Shared, buffer: &Buffer, offset: u64) -> Option<u64> {
    let length = fitting(shared, shared.simple_read_limit, buffer, offset)?;
    if shared.lock.unsaved().is_any() {
        return None;
    }
    shared.map.simple_read(offset, length)
}

/// The same for an overwrite that nobody excludes. Whoever wants to exclude it
/// changes the mode first and then waits for everything counted in.
#[inline(always)]
pub(crate) fn write(shared: &Shared, buffer: &Buffer, offset: u64) -> Option<u64> {
    if !shared.lock.is_shared() {
        return None;
    }
    let length = fitting(shared, shared.simple_write_limit, buffer, offset)?;
    shared.map.simple_write(offset, length)
}

/// Its length, if length, offset and memory are as the simple way wants them.
#[inline(always)]
fn fitting(shared: &Shared, limit: u32, buffer: &Buffer, offset: u64) -> Option<u64> {
    let length = buffer.len() as u64;
    // 0 becomes the largest of all lengths.
    let fits = length.wrapping_sub(1) < limit as u64;
    // A closed device: whoever starts the operation is told, the reactor may not know yet.
    let is_simple = fits && !is_unaligned(shared, buffer, offset) && !shared.core.is_closed();
    is_simple.then_some(length)
}

#[inline(always)]
fn is_unaligned(shared: &Shared, buffer: &Buffer, offset: u64) -> bool {
    let memory = buffer.pointer().as_ptr() as u64;
    (offset | buffer.len() as u64) & shared.block_mask | memory & shared.memory_mask != 0
}

/// Counts why a read had no place; a device that is gone is no reason of the read's.
#[cold]
pub(crate) fn count_refusal(inner: &Inner, shared: &Shared, buffer: &Buffer, offset: u64) {
    if !shared.core.is_closed() && shared.cache.is_none() {
        inner.count(why_not(shared, buffer, offset));
    }
}

fn why_not(shared: &Shared, buffer: &Buffer, offset: u64) -> Counter {
    let length = buffer.len() as u64;
    let is_inside = offset.checked_add(length).is_some_and(|end| end <= shared.map.size());
    if !shared.options.simple_read {
        Counter::SimpleOff
    } else if length.wrapping_sub(1) >= shared.simple_read_limit as u64 {
        Counter::SimpleLength
    } else if is_unaligned(shared, buffer, offset) {
        Counter::SimpleAlignment
    } else if !is_inside {
        Counter::SimpleSize
    } else if shared.lock.unsaved().is_any() {
        Counter::SimpleUnsaved
    } else if shared.map.written(offset, length).is_some() {
        Counter::SimpleTimes
    } else {
        Counter::SimpleExtent
    }
}
