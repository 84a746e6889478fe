//! The fast path: a small aligned read or overwrite inside one written extent is
//! one request and completes inline. No task, no state machine, no allocation.
//!
//! Anything else is refused for a reason, which is counted, and takes the slow path.

use uringfs_buffer::Buffer;
use uringfs_reactor::{Counter, Inner};

use crate::map::refusal::Refusal;
use crate::state::file::Shared;

/// The address on the device of a read that is one request. The caller has counted
/// it in for quiescence, so the extent stays where it is until the read has ended.
#[inline(always)]
pub(crate) fn read(shared: &Shared, buffer: &Buffer, offset: u64) -> Result<u64, Refusal> {
    let length = fitting(shared, shared.simple_read_limit, buffer, offset)?;
    if shared.lock.unsaved().is_any() {
        return Err(Refusal::Dirty);
    }
    shared.map.simple_read(offset, length)
}

/// The address of an overwrite that takes no lock. Exclusion changes the mode first and
/// then waits for everything that is counted in.
#[inline(always)]
pub(crate) fn write(shared: &Shared, buffer: &Buffer, offset: u64) -> Result<u64, Refusal> {
    if !shared.lock.is_shared() {
        return Err(Refusal::Locked);
    }
    let length = fitting(shared, shared.simple_write_limit, buffer, offset)?;
    shared.map.simple_write(offset, length)
}

/// Its length in bytes, if length, offset and memory allow one request.
#[inline(always)]
fn fitting(shared: &Shared, limit: u32, buffer: &Buffer, offset: u64) -> Result<u64, Refusal> {
    let length = buffer.len() as u64;
    // 0 becomes the largest of all lengths.
    if length.wrapping_sub(1) >= limit as u64 {
        return Err(Refusal::Length);
    }
    let memory = buffer.pointer().as_ptr() as u64;
    if (offset | length) & shared.block_mask | memory & shared.memory_mask != 0 {
        return Err(Refusal::Alignment);
    }
    // The slow path reports a closed device; the reactor may not know of it yet.
    if shared.core.is_closed() {
        return Err(Refusal::Closed);
    }
    Ok(length)
}

/// Counts why a direct read took the slow path. A closed device is not counted: the read ends there.
#[cold]
pub(crate) fn count_refusal(inner: &Inner, shared: &Shared, refusal: Refusal) {
    if shared.cache.is_some() {
        return;
    }
    inner.count(match refusal {
        Refusal::Length if !shared.options.simple_read => Counter::SimpleOff,
        Refusal::Length => Counter::SimpleLength,
        Refusal::Alignment => Counter::SimpleAlignment,
        Refusal::Size => Counter::SimpleSize,
        Refusal::Dirty => Counter::SimpleUnsaved,
        Refusal::Noted => Counter::SimpleTimes,
        Refusal::Extent => Counter::SimpleExtent,
        Refusal::Closed | Refusal::Locked => return,
    });
}
