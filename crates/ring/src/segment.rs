//! A segment of memory, in the form that submission entries need.

use std::ptr::NonNull;

use uringfs_buffer::{Buffer, Region, RegionId};

/// One segment of memory, in the form that submission entries need. Valid as long as its buffer exists.
#[derive(Clone, Copy, Debug)]
pub struct IoSegment {
    pub(crate) pointer: NonNull<u8>,
    /// Length in bytes.
    pub(crate) length: u32,
    pub(crate) region_id: RegionId,
    pub(crate) region: NonNull<Region>,
}

impl IoSegment {
    /// The bytes of `buffer` after the first `skip`.
    ///
    /// # Panics
    /// When there are fewer.
    #[inline(always)]
    pub fn from_buffer(buffer: &Buffer, skip: u32) -> IoSegment {
        let length = buffer.len() as u32;
        assert!(skip <= length, "{skip} of {length} bytes are done");
        // SAFETY: inside the buffer, as asserted.
        let pointer = unsafe { buffer.pointer().add(skip as usize) };
        let (length, region) = (length - skip, NonNull::from(buffer.region()));
        IoSegment { pointer, length, region_id: buffer.region_id(), region }
    }
}
