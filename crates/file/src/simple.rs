//! The simple direct read: a small read inside one written extent goes out as
//! one request and completes inline. No task, no state machine, no allocation.
//!
//! What refuses it is counted by reason, and goes the general way.

use uringfs_buffer::Buffer;
use uringfs_device::{Op, Payload, Request, Tag};
use uringfs_reactor::Counter;

use crate::file::Shared;
use crate::map::Place;

/// The one request that a simple read is, or why it is none. The caller has
/// counted it in for quiescence, so the extent stays where it is until the read
/// has ended.
#[inline]
pub(crate) fn plan(
    shared: &Shared,
    buffer: Buffer,
    offset: u64,
    tag: Tag,
) -> Result<Request, (Buffer, Counter)> {
    match place(shared, &buffer, offset) {
        Ok(address) => {
            let payload = Payload::Buffer(buffer);
            Ok(Request::new(shared.device.index(), Op::Read, address, payload, tag))
        }
        Err(reason) => Err((buffer, reason)),
    }
}

#[inline]
fn place(shared: &Shared, buffer: &Buffer, offset: u64) -> Result<u64, Counter> {
    let length = buffer.len() as u64;
    if !shared.options.simple_read {
        return Err(Counter::SimpleOff);
    }
    if length == 0 || length > shared.simple_limit as u64 {
        return Err(Counter::SimpleLength);
    }
    let memory = buffer.pointer().as_ptr() as usize;
    if (offset | length) & shared.block_mask != 0 || memory & shared.memory_mask != 0 {
        return Err(Counter::SimpleAlignment);
    }
    let size = shared.map.size();
    if offset >= size || length > size - offset {
        return Err(Counter::SimpleSize);
    }
    let mapping = shared.map.map(offset);
    match mapping.place {
        Place::Written(address) if mapping.length >= length => Ok(address),
        _ => Err(Counter::SimpleExtent),
    }
}
