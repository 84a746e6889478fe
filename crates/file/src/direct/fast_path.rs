//! The fast path: a small aligned read or overwrite inside one written extent is one request and completes
//! inline. No task, no state machine, no allocation.
//!
//! A refusal is counted by its reason and takes the slow path.

use uringfs_buffer::Buffer;
use uringfs_reactor::{Counter, ReactorCore};

use crate::map::refusal::Refusal;
use crate::state::file::FileHandle;

/// The device address of a read that is eligible for the fast path. The caller has put it in
/// the epoch, so the extent stays allocated until the read has ended.
#[inline(always)]
pub(crate) fn read(handle: &FileHandle, buffer: &Buffer, offset: u64) -> Result<u64, Refusal> {
    let length = eligible_length(handle, handle.fast_read_limit, buffer, offset)?;
    if handle.state.dirty().is_any() {
        return Err(Refusal::Dirty);
    }
    handle.map.fast_read_address(offset, length)
}

/// The same for an overwrite while the bias holds. A writer that excludes it revokes the bias first and then
/// waits for everything in the epoch.
#[inline(always)]
pub(crate) fn write(handle: &FileHandle, buffer: &Buffer, offset: u64) -> Result<u64, Refusal> {
    if !handle.state.is_biased() {
        return Err(Refusal::Locked);
    }
    let length = eligible_length(handle, handle.fast_write_limit, buffer, offset)?;
    handle.map.fast_write_address(offset, length)
}

/// Its length in bytes, if length, offset and memory are eligible.
#[inline(always)]
fn eligible_length(
    handle: &FileHandle,
    limit: u32,
    buffer: &Buffer,
    offset: u64,
) -> Result<u64, Refusal> {
    let length = buffer.len() as u64;
    // 0 wraps to the largest length.
    if length.wrapping_sub(1) >= limit as u64 {
        return Err(Refusal::Length);
    }
    let memory = buffer.pointer().as_ptr() as u64;
    if (offset | length) & handle.block_mask | memory & handle.memory_mask != 0 {
        return Err(Refusal::Alignment);
    }
    // The slow path reports a closed device; the reactor may not know yet.
    if handle.device_inner.is_closed() {
        return Err(Refusal::Closed);
    }
    Ok(length)
}

/// Counts why a direct read was refused. A closed device is no such reason.
#[cold]
pub(crate) fn count_refusal(reactor: &ReactorCore, handle: &FileHandle, refusal: Refusal) {
    if handle.cache.is_some() {
        return;
    }
    reactor.count(match refusal {
        Refusal::Length if !handle.options.simple_read => Counter::FastPathOff,
        Refusal::Length => Counter::FastPathLength,
        Refusal::Alignment => Counter::FastPathAlignment,
        Refusal::Size => Counter::FastPathSize,
        Refusal::Dirty => Counter::FastPathDirty,
        Refusal::Noted => Counter::FastPathAtime,
        Refusal::Extent => Counter::FastPathExtent,
        Refusal::Closed | Refusal::Locked => return,
    });
}
