//! The fast path: a small aligned read or overwrite inside one written extent is one request and completes
//! inline. No task, no state machine, no allocation.
//!
//! Everything else takes the slow path. A refused direct read is counted by its reason at the place of refusal, in
//! code that is not inlined. If the reason were returned, it would occupy a register of each read that is not refused.

use uringfs_buffer::Buffer;
use uringfs_reactor::{Counter, Locate, ReactorCore};

use crate::map::refusal::Refusal;
use crate::state::file::FileHandle;

/// A read, to be located for the fast path.
pub(crate) struct LocateRead<'a> {
    pub(crate) reactor: &'a ReactorCore,
    pub(crate) handle: &'a FileHandle,
    pub(crate) offset: u64,
}

impl Locate for LocateRead<'_> {
    #[inline(always)]
    fn locate(self, buffer: &Buffer) -> Option<u64> {
        read(self.reactor, self.handle, buffer, self.offset)
    }
}

/// An overwrite, to be located for the fast path.
pub(crate) struct LocateWrite<'a> {
    pub(crate) handle: &'a FileHandle,
    pub(crate) offset: u64,
}

impl Locate for LocateWrite<'_> {
    #[inline(always)]
    fn locate(self, buffer: &Buffer) -> Option<u64> {
        write(self.handle, buffer, self.offset)
    }
}

/// The device address of a read that is eligible for the fast path. The caller has entered the
/// epoch, so the extent stays allocated until the read has ended.
#[inline(always)]
fn read(reactor: &ReactorCore, handle: &FileHandle, buffer: &Buffer, offset: u64) -> Option<u64> {
    let refuse = |refusal| count_refusal(reactor, handle, refusal);
    let length = eligible_length(handle, handle.fast_read_limit, buffer, offset, refuse)?;
    if handle.state.dirty().is_any() {
        refuse(Refusal::Dirty);
        return None;
    }
    handle.map.fast_read_address(offset, length, refuse)
}

/// The same for an overwrite while the bias holds. A writer that must exclude overwrites first revokes the bias,
/// then waits for quiescence.
#[inline(always)]
fn write(handle: &FileHandle, buffer: &Buffer, offset: u64) -> Option<u64> {
    if !handle.state.is_biased() {
        return None;
    }
    let length = eligible_length(handle, handle.fast_write_limit, buffer, offset, |_| ())?;
    handle.map.fast_write_address(offset, length)
}

/// Its length in bytes, if length, offset and memory are eligible.
#[inline(always)]
fn eligible_length(
    handle: &FileHandle,
    limit: u32,
    buffer: &Buffer,
    offset: u64,
    refuse: impl Fn(Refusal),
) -> Option<u64> {
    let length = buffer.len() as u64;
    // 0 wraps to the largest length.
    if length.wrapping_sub(1) >= limit as u64 {
        refuse(Refusal::Length);
        return None;
    }
    let memory = buffer.pointer().as_ptr() as u64;
    if (offset | length) & handle.block_mask | memory & handle.memory_mask != 0 {
        refuse(Refusal::Alignment);
        return None;
    }
    // The slow path reports a closed device; the reactor may not know yet.
    if handle.device_inner.is_closed() {
        return None;
    }
    Some(length)
}

/// Counts why a direct read was refused. A closed device, and a handle that may not read, are not counted.
#[cold]
#[inline(never)]
fn count_refusal(reactor: &ReactorCore, handle: &FileHandle, refusal: Refusal) {
    if handle.cache().is_some() || handle.read_refusal.is_some() {
        return;
    }
    reactor.count(match refusal {
        Refusal::Length if !handle.options.simple_read => Counter::FastPathOff,
        Refusal::Length => Counter::FastPathLength,
        Refusal::Alignment => Counter::FastPathAlignment,
        Refusal::Size => Counter::FastPathSize,
        Refusal::Dirty => Counter::FastPathDirty,
        Refusal::NeedsUpdate => Counter::FastPathAtime,
        Refusal::Extent => Counter::FastPathExtent,
    });
}
