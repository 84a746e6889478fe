//! One owned range of bytes. Splitting makes two owners of disjoint ranges;
//! joining adjacent ranges makes one again.

use std::any::Any;
use std::fmt;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::Arc;

use crate::region::{Region, RegionId};

/// The default alignment of a buffer: a page, which in practice every direct
/// I/O accepts.
pub const ALIGNMENT: usize = 4096;

/// The longest buffer, 1 GiB: one request to the kernel can move it in one segment.
pub const MAX_LENGTH: usize = 1 << 30;

/// Owned memory. The holder of the buffer is the only user of its bytes.
///
/// Dropping it frees the memory. A pool gets its memory back when all parts of the buffer are dropped: see
/// [`Self::split_off`].
pub struct Buffer {
    pointer: NonNull<u8>,
    region: Arc<Region>,
    length: u32,
    region_id: RegionId,
}

// SAFETY: a buffer is the only owner of its bytes, like a `Vec<u8>`.
unsafe impl Send for Buffer {}
// SAFETY: through a shared reference the bytes can only be read.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// `length` zero bytes, aligned to [`ALIGNMENT`].
    ///
    /// # Panics
    /// When `length` is over [`MAX_LENGTH`].
    pub fn zeroed(length: usize) -> Buffer {
        Buffer::aligned(length, ALIGNMENT)
    }

    /// `length` zero bytes, aligned to `alignment`, a power of two.
    ///
    /// # Panics
    /// When `length` is over [`MAX_LENGTH`] or `alignment` is no power of two.
    pub fn aligned(length: usize, alignment: usize) -> Buffer {
        assert!(length <= MAX_LENGTH, "a buffer of {length} bytes is over {MAX_LENGTH}");
        assert!(alignment.is_power_of_two(), "alignment {alignment} is no power of two");
        let region = Region::heap(length.max(1), alignment);
        Buffer {
            pointer: region.base(),
            region: Arc::new(region),
            length: length as u32,
            region_id: RegionId::NONE,
        }
    }

    /// A copy of `bytes`, aligned to [`ALIGNMENT`].
    pub fn copy_of(bytes: &[u8]) -> Buffer {
        let mut buffer = Buffer::zeroed(bytes.len());
        buffer.copy_from_slice(bytes);
        buffer
    }

    /// The range `start..start + length` of `region`, which must have no other owner.
    pub(crate) fn from_region(region: Arc<Region>, start: usize, length: usize) -> Buffer {
        assert!(start + length <= region.len());
        // SAFETY: inside the region, as asserted.
        let pointer = unsafe { region.base().add(start) };
        Buffer { pointer, length: length as u32, region_id: region.id(), region }
    }

    /// The `length` bytes at `pointer`, which `region` stands for.
    #[inline]
    pub(crate) fn over(
        pointer: NonNull<u8>,
        length: usize,
        region: Arc<Region>,
        region_id: RegionId,
    ) -> Buffer {
        Buffer { pointer, region, length: length as u32, region_id }
    }

    /// Address of the first byte, for a request to the kernel. Valid until the
    /// buffer is dropped, even if the buffer is moved.
    #[inline]
    pub fn pointer(&self) -> NonNull<u8> {
        self.pointer
    }

    /// The region that contains this buffer. A ring may have registered it.
    #[doc(hidden)]
    #[inline]
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// [`Region::id`] of [`Self::region`], kept here because every request reads it.
    #[doc(hidden)]
    #[inline]
    pub fn region_id(&self) -> RegionId {
        self.region_id
    }

    /// True for memory that others change ([`SharedMemory`](crate::SharedMemory)): it has no slice, so `&buffer[..]`
    /// panics.
    #[doc(hidden)]
    #[inline]
    pub fn is_shared(&self) -> bool {
        self.region_id.is_shared()
    }

    /// Copies the bytes from `start` on, as many as `into` has, of any memory.
    ///
    /// # Panics
    /// When there are fewer.
    #[doc(hidden)]
    pub fn copy_to(&self, start: usize, into: &mut [u8]) {
        let source = self.part(start..start.saturating_add(into.len()));
        // SAFETY: the source is inside this buffer. `into` is borrowed exclusively, so it is other memory. Others may
        // change shared memory meanwhile: then the copy has any mixture of its bytes, and no reference to them exists.
        unsafe { ptr::copy_nonoverlapping(source.as_ptr(), into.as_mut_ptr(), into.len()) };
    }

    /// Overwrites the bytes from `start` on with a copy of `bytes`, in any memory that may be written.
    ///
    /// # Panics
    /// When there are fewer, and for memory that is read only.
    #[doc(hidden)]
    pub fn copy_from(&mut self, start: usize, bytes: &[u8]) {
        let target = self.part_mut(start..start.saturating_add(bytes.len()));
        // SAFETY: as in `copy_to`.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), target.as_ptr(), bytes.len()) };
    }

    /// Fills a range with zeros, as [`Self::copy_from`].
    ///
    /// # Panics
    /// As [`Self::copy_from`].
    #[doc(hidden)]
    pub fn fill_zeros(&mut self, range: Range<usize>) {
        let length = range.len();
        let target = self.part_mut(range);
        // SAFETY: inside this buffer, which this thread alone uses; of shared memory as in `copy_to`.
        unsafe { ptr::write_bytes(target.as_ptr(), 0, length) };
    }

    /// Address of a range of this buffer.
    fn part(&self, range: Range<usize>) -> NonNull<u8> {
        let is_inside = range.start <= range.end && range.end <= self.len();
        assert!(is_inside, "{range:?} is not inside {} bytes", self.len());
        // SAFETY: inside this buffer, as asserted.
        unsafe { self.pointer.add(range.start) }
    }

    fn part_mut(&mut self, range: Range<usize>) -> NonNull<u8> {
        self.assert_writable();
        self.part(range)
    }

    /// Only a back end or a queue could find such memory in a request, and only this crate makes it.
    #[inline]
    fn assert_writable(&self) {
        assert!(
            self.region_id != RegionId::READ_ONLY,
            "memory that is being written out is read only"
        );
    }

    /// Length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.length as usize
    }

    /// True if it has no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Keeps the first `at` bytes and returns the rest.
    ///
    /// # Panics
    /// When `at` is past the end.
    pub fn split_off(&mut self, at: usize) -> Buffer {
        assert!(at <= self.len(), "split at {at} of {} bytes", self.len());
        let length = self.length - at as u32;
        self.length = at as u32;
        if let Some(slots) = &self.region.slots {
            slots.add_part(self.offset_in_region());
        }
        // A pointer to the end of the slot would count as a part of the next slot, so
        // an empty tail points to the beginning of the range.
        let step = if length == 0 { 0 } else { at };
        // SAFETY: inside this buffer's own range.
        let pointer = unsafe { self.pointer.add(step) };
        Buffer { pointer, region: self.region.clone(), length, region_id: self.region_id }
    }

    /// Keeps the first `length` bytes, as [`Vec::truncate`] does; no effect if there are no more. For the last part of a
    /// file that fills its buffer only in part. The rest of the memory is free again when the buffer is dropped: one of
    /// a pool returns to it whole.
    ///
    /// ```
    /// # use uringfs_buffer as uringfs;
    /// use uringfs::BufferPool;
    ///
    /// let pool = BufferPool::new(4096, 1)?;
    /// let mut buffer = pool.get().unwrap();
    /// buffer.truncate(700);
    /// assert_eq!(buffer.len(), 700);
    /// drop(buffer);
    /// assert_eq!(pool.get().unwrap().len(), 4096);
    /// # Ok::<_, std::io::Error>(())
    /// ```
    #[inline]
    pub fn truncate(&mut self, length: usize) {
        self.length = self.length.min(length.try_into().unwrap_or(u32::MAX));
    }

    /// Takes back a part from [`Self::split_off`]. Returns `tail` as the error when
    /// it does not begin where this buffer ends, in the same memory.
    pub fn join(&mut self, tail: Buffer) -> Result<(), Buffer> {
        // SAFETY: one past the end of this buffer's own range.
        let end = unsafe { self.pointer.add(self.len()) };
        let adjacent = tail.length == 0 || end == tail.pointer;
        let same_region = Arc::ptr_eq(&self.region, &tail.region)
            && self.region.slots.as_ref().is_none_or(|slots| {
                slots.same_slot(self.offset_in_region(), tail.offset_in_region())
            });
        if !adjacent || !same_region {
            return Err(tail);
        }
        self.length += tail.length;
        Ok(())
    }

    /// The value whose memory this is, if no other buffer has a part of it.
    pub(crate) fn into_value(self) -> Option<Box<dyn Any + Send>> {
        let region = self.region.clone();
        drop(self);
        Arc::into_inner(region)?.into_value()
    }

    pub(crate) fn offset_in_region(&self) -> usize {
        self.pointer.as_ptr() as usize - self.region.base().as_ptr() as usize
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(slots) = &self.region.slots {
            slots.drop_part(self.offset_in_region());
        }
    }
}

impl Deref for Buffer {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        assert!(!self.is_shared(), "memory that others change has no slice");
        // SAFETY: the range is inside the region that this buffer keeps alive. It was
        // initialized when the region was made, and it belongs to this buffer alone.
        unsafe { slice::from_raw_parts(self.pointer.as_ptr(), self.length as usize) }
    }
}

impl DerefMut for Buffer {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        assert!(!self.is_shared(), "memory that others change has no slice");
        self.assert_writable();
        // SAFETY: as in `deref`; the exclusive borrow makes this the only access, and the value of a region that is
        // not read only allows to write its bytes.
        unsafe { slice::from_raw_parts_mut(self.pointer.as_ptr(), self.length as usize) }
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Buffer({} bytes at {:p})", self.length, self.pointer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BufferPool;
    use proptest::prelude::*;

    #[test]
    fn an_empty_tail_returns_to_its_own_slot() {
        let pool = BufferPool::new(4096, 2).unwrap();
        let mut first = pool.get().unwrap();
        let second = pool.get().unwrap();
        let tail = first.split_off(4096);
        drop(second);
        drop(first);
        assert_eq!(pool.available(), 1);
        drop(tail);
        assert_eq!(pool.available(), 2);
    }

    #[test]
    fn a_truncated_buffer_joins_no_part_beyond_its_end() {
        let mut head = Buffer::copy_of(&[7; 64]);
        head.truncate(100);
        assert_eq!(head.len(), 64);
        let tail = head.split_off(32);
        head.truncate(8);
        let tail = head.join(tail).unwrap_err();
        assert_eq!((&head[..], &tail[..]), (&[7; 8][..], &[7; 32][..]));
        head.truncate(0);
        assert!(head.is_empty());
    }

    #[test]
    fn neighbours_of_a_pool_do_not_join() {
        let pool = BufferPool::new(4096, 2).unwrap();
        let (mut first, second) = (pool.get().unwrap(), pool.get().unwrap());
        assert!(first.join(second).is_err());
    }

    #[test]
    fn a_part_keeps_its_memory_when_the_rest_is_dropped() {
        let mut whole = Buffer::copy_of(&[7; 8192]);
        let tail = whole.split_off(4096);
        drop(whole);
        assert!(tail.iter().all(|byte| *byte == 7));
    }

    #[test]
    fn buffers_have_the_requested_alignment() {
        for alignment in [512, 4096, 65536] {
            let buffer = Buffer::aligned(100, alignment);
            assert_eq!(buffer.pointer().as_ptr() as usize % alignment, 0);
        }
    }

    #[test]
    fn pool_buffers_share_a_registrable_region() {
        let pool = BufferPool::new(4096, 4).unwrap();
        let (first, second) = (pool.get().unwrap(), pool.get().unwrap());
        assert_eq!(first.region_id(), second.region_id());
        assert_ne!(first.region_id(), RegionId::NONE);
        assert_eq!(Buffer::zeroed(1).region_id(), RegionId::NONE);
    }

    #[test]
    fn a_reused_index_has_a_new_generation() {
        let first = BufferPool::new(4096, 1).unwrap().get().unwrap().region_id();
        for _ in 0..2 * RegionId::COUNT {
            let again = BufferPool::new(4096, 1).unwrap().get().unwrap().region_id();
            assert_ne!(first, again);
        }
    }

    proptest! {
        /// Any tree of splits, joined again in order, is the original buffer.
        #[test]
        fn split_buffers_join_to_the_original(cuts in proptest::collection::vec(0usize..=4096, 0..8), pooled: bool) {
            let pool = BufferPool::new(4096, 1).unwrap();
            let mut head = if pooled { pool.get().unwrap() } else { Buffer::zeroed(4096) };
            for (at, byte) in head.iter_mut().enumerate() {
                *byte = at as u8;
            }
            let mut tails = Vec::new();
            for cut in cuts {
                tails.push(head.split_off(cut.min(head.len())));
            }
            while let Some(tail) = tails.pop() {
                head.join(tail).unwrap();
            }
            prop_assert_eq!(head.len(), 4096);
            prop_assert!(head.iter().enumerate().all(|(at, byte)| *byte == at as u8));
            drop(head);
            prop_assert_eq!(pool.available(), 1);
        }
    }
}
