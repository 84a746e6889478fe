//! The simple way: a small aligned read or overwrite inside one written extent
//! goes out as one request and completes inline. No task, no state machine, no
//! allocation.
//!
//! What refuses it is counted by reason, and goes the general way.

use uringfs_buffer::Buffer;
use uringfs_reactor::Counter;

use crate::file::Shared;
use crate::map::Place;

/// Where on the device a simple read lies, or why it is none. The caller has
/// counted it in for quiescence, so the extent stays where it is until the read
/// has ended.
#[inline(always)]
pub(crate) fn read(shared: &Shared, buffer: &Buffer, offset: u64) -> Result<u64, Counter> {
    if !shared.options.simple_read {
        return Err(Counter::SimpleOff);
    }
    place(shared, buffer, offset)
}

/// The same for an overwrite that nobody excludes. Whoever wants to exclude it
/// changes the mode first and then waits for everything counted in.
#[inline(always)]
pub(crate) fn write(shared: &Shared, buffer: &Buffer, offset: u64) -> Result<u64, Counter> {
    if !shared.lock.is_shared() {
        return Err(Counter::WriteRanged);
    }
    if shared.read_only {
        return Err(Counter::SimpleExtent);
    }
    place(shared, buffer, offset)
}

#[inline(always)]
fn place(shared: &Shared, buffer: &Buffer, offset: u64) -> Result<u64, Counter> {
    if shared.core().is_closed() {
        // Whoever starts the operation is told; the reactor may not know yet.
        return Err(Counter::SimpleFull);
    }
    let length = buffer.len() as u64;
    if length == 0 || length > shared.simple_limit as u64 {
        return Err(Counter::SimpleLength);
    }
    let memory = buffer.pointer().as_ptr() as usize;
    if (offset | length) & shared.block_mask != 0 || memory & shared.memory_mask != 0 {
        return Err(Counter::SimpleAlignment);
    }
    let mapping = shared.map.map(offset);
    match mapping.place {
        Place::Written(address) if mapping.length >= length => Ok(address),
        _ => Err(why_not(shared, offset, length)),
    }
}

#[cold]
fn why_not(shared: &Shared, offset: u64, length: u64) -> Counter {
    let inside = offset.checked_add(length).is_some_and(|end| end <= shared.map.size());
    if inside { Counter::SimpleExtent } else { Counter::SimpleSize }
}
