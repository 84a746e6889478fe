//! Buffers of callers in other languages, who hold memory by its address alone: memory of their own
//! ([`ForeignMemory`], [`ForeignBuffers`]), and buffers of a pool ([`RawPool`]).

use std::cell::Cell;
use std::fmt;
use std::mem;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use crate::buffer::{Buffer, MAX_LENGTH};
use crate::pool::BufferPool;
use crate::region::{Region, RegionId};

/// Makes buffers over memory that this process owns elsewhere, such as a C program's. Allocates nothing for each. Rings
/// do not register such memory.
#[derive(Clone)]
pub struct ForeignMemory {
    /// It has no bytes. It stands for the owner, which need not learn that a buffer is gone.
    region: Arc<Region>,
}

impl Default for ForeignMemory {
    fn default() -> ForeignMemory {
        let region = Region::of_value(NonNull::dangling(), 0, RegionId::NONE, Box::new(()));
        ForeignMemory { region: Arc::new(region) }
    }
}

impl ForeignMemory {
    /// The `length` bytes at `pointer`, for a read or a write. `None` if they are more than [`MAX_LENGTH`].
    ///
    /// # Safety
    /// Until the buffer is dropped, and until the kernel is done with its request, the bytes stay mapped for reading
    /// and writing, and no other code uses them.
    #[inline]
    pub unsafe fn buffer(&self, pointer: NonNull<u8>, length: usize) -> Option<Buffer> {
        self.over(pointer, length, RegionId::NONE)
    }

    /// The same for a write: the bytes may be read only, and others may read them.
    ///
    /// # Safety
    /// As for [`Self::buffer`], but the bytes need not be mapped for writing, and others may read them.
    #[inline]
    pub unsafe fn read_only(&self, pointer: NonNull<u8>, length: usize) -> Option<Buffer> {
        self.over(pointer, length, RegionId::READ_ONLY)
    }

    #[inline]
    fn over(&self, pointer: NonNull<u8>, length: usize, id: RegionId) -> Option<Buffer> {
        (length <= MAX_LENGTH).then(|| Buffer::over(pointer, length, self.region.clone(), id))
    }
}

impl fmt::Debug for ForeignMemory {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("ForeignMemory")
    }
}

/// [`ForeignMemory`] for one thread that makes buffers again and again: it keeps the references of those that it gets
/// back, and gives them to the next ones, so that a buffer changes no counter that threads could share.
#[derive(Default)]
pub struct ForeignBuffers {
    memory: ForeignMemory,
    /// References to the region that no buffer has.
    kept: Cell<usize>,
}

impl ForeignBuffers {
    /// As [`ForeignMemory::buffer`].
    ///
    /// # Safety
    /// As there.
    #[inline]
    pub unsafe fn buffer(&self, pointer: NonNull<u8>, length: usize) -> Option<Buffer> {
        self.over(pointer, length, RegionId::NONE)
    }

    /// As [`ForeignMemory::read_only`].
    ///
    /// # Safety
    /// As there.
    #[inline]
    pub unsafe fn read_only(&self, pointer: NonNull<u8>, length: usize) -> Option<Buffer> {
        self.over(pointer, length, RegionId::READ_ONLY)
    }

    /// Takes a buffer back. Drops one of another owner.
    #[inline]
    pub fn take_back(&self, buffer: Buffer) {
        if ptr::eq(buffer.region(), &*self.memory.region) {
            mem::forget(buffer);
            self.kept.set(self.kept.get() + 1);
        }
    }

    #[inline]
    fn over(&self, pointer: NonNull<u8>, length: usize, id: RegionId) -> Option<Buffer> {
        (length <= MAX_LENGTH).then(|| Buffer::over(pointer, length, self.reference(), id))
    }

    #[inline]
    fn reference(&self) -> Arc<Region> {
        match self.kept.get().checked_sub(1) {
            Some(kept) => {
                self.kept.set(kept);
                // SAFETY: a buffer that was forgotten has left its reference, and the number of these is one less now.
                unsafe { Arc::from_raw(Arc::as_ptr(&self.memory.region)) }
            }
            None => self.memory.region.clone(),
        }
    }
}

impl Drop for ForeignBuffers {
    fn drop(&mut self) {
        while self.kept.get() > 0 {
            drop(self.reference());
        }
    }
}

impl fmt::Debug for ForeignBuffers {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("ForeignBuffers").field("kept", &self.kept.get()).finish_non_exhaustive()
    }
}

impl Buffer {
    /// Gives a pool's buffer up for its address: the buffer stays taken until [`RawPool::buffer`] makes one of it again.
    /// Any other buffer is dropped.
    #[doc(hidden)]
    #[inline]
    pub fn into_raw(self) -> NonNull<u8> {
        let pointer = self.pointer();
        if self.is_of_pool() {
            mem::forget(self);
        }
        pointer
    }

    /// True for a buffer of a pool.
    #[doc(hidden)]
    #[inline]
    pub fn is_of_pool(&self) -> bool {
        self.region().slots.is_some()
    }
}

/// A pool whose buffers callers hold by their addresses: [`Buffer::into_raw`] gives one up, [`Self::buffer`] makes it
/// again. It has what that looks up in one place.
#[derive(Debug)]
pub struct RawPool {
    pool: BufferPool,
    base: usize,
    /// Bytes of all buffers, with the gaps behind them.
    bytes: usize,
    /// The bits of an offset in the region that are 0 where a buffer begins. All of them if the look-up takes a division.
    offset_bits: usize,
    length: usize,
    id: RegionId,
}

impl RawPool {
    /// The same pool by addresses.
    pub fn new(pool: BufferPool) -> RawPool {
        let region = pool.region();
        let (stride, bytes) = pool.stride_and_bytes();
        RawPool {
            base: region.base().as_ptr() as usize,
            bytes,
            offset_bits: if stride.is_power_of_two() { stride - 1 } else { usize::MAX },
            length: pool.buffer_length(),
            id: region.id(),
            pool,
        }
    }

    /// The pool.
    pub fn pool(&self) -> &BufferPool {
        &self.pool
    }

    /// Bytes in each buffer.
    #[inline]
    pub fn buffer_length(&self) -> usize {
        self.length
    }

    /// The buffer at this address, which [`Buffer::into_raw`] gave up, or its first `length` bytes. `None` if no buffer
    /// of the pool begins there.
    ///
    /// # Safety
    /// The buffer at this address was given up, and not made again since.
    ///
    /// # Panics
    /// When `length` is over [`Self::buffer_length`].
    #[inline]
    pub unsafe fn buffer(&self, pointer: NonNull<u8>, length: usize) -> Option<Buffer> {
        assert!(length <= self.length, "a part of {length} bytes of a buffer of {}", self.length);
        let offset = (pointer.as_ptr() as usize).wrapping_sub(self.base);
        if offset >= self.bytes || offset & self.offset_bits != 0 && !self.pool.begins_at(pointer) {
            return None;
        }
        let region = Arc::as_ptr(self.pool.region());
        // SAFETY: the buffer that was given up has counted a reference to its region, and only this code takes it.
        let region = unsafe { Arc::from_raw(region) };
        Some(Buffer::over(pointer, length, region, self.id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_memory_is_moved_in_place() {
        let mut bytes = vec![7_u8; 100];
        let pointer = NonNull::new(bytes.as_mut_ptr()).unwrap();
        let memory = ForeignMemory::default();
        // SAFETY: the bytes outlive the buffers, and are not used beside them.
        let mut buffer = unsafe { memory.buffer(pointer, 100) }.unwrap();
        assert_eq!((buffer.pointer(), buffer.len()), (pointer, 100));
        let tail = buffer.split_off(60);
        buffer.fill(8);
        buffer.join(tail).unwrap();
        assert_eq!(buffer.into_raw(), pointer);
        assert_eq!(bytes, [[8; 60].as_slice(), &[7; 40]].concat());
        // SAFETY: a length over the limit is refused, so no byte is used.
        assert!(unsafe { memory.buffer(pointer, MAX_LENGTH + 1) }.is_none());
    }

    #[test]
    fn foreign_memory_of_a_write_refuses_changes() {
        let bytes = b"constant";
        // SAFETY: static bytes, which the buffer may only read.
        let mut buffer =
            unsafe { ForeignMemory::default().read_only(NonNull::from(&bytes[0]), bytes.len()) }
                .unwrap();
        assert_eq!(&buffer[..], bytes);
        let change = std::panic::AssertUnwindSafe(|| buffer[0] = 0);
        assert!(std::panic::catch_unwind(change).is_err());
    }

    #[test]
    fn foreign_buffers_return_their_references() {
        let mut bytes = [7_u8; 100];
        let pointer = NonNull::from(&mut bytes).cast();
        let buffers = ForeignBuffers::default();
        let references = || Arc::strong_count(&buffers.memory.region);
        // SAFETY: the bytes outlive the buffers, and are not used beside them.
        let buffer = |length| unsafe { buffers.buffer(pointer, length) };
        for _ in 0..3 {
            let (first, second) = (buffer(60).unwrap(), buffer(40).unwrap());
            assert_eq!((first.len(), second.len(), references()), (60, 40, 3));
            buffers.take_back(first);
            // One that is dropped elsewhere takes its reference along.
            drop(second);
            assert_eq!((buffers.kept.get(), references()), (1, 2));
        }
        // A buffer of another owner is dropped.
        let owner = ForeignMemory::default();
        // SAFETY: as above.
        buffers.take_back(unsafe { owner.buffer(pointer, 1) }.unwrap());
        assert_eq!((buffers.kept.get(), Arc::strong_count(&owner.region)), (1, 1));
        assert!(buffer(MAX_LENGTH + 1).is_none());
        let region = buffers.memory.region.clone();
        drop(buffers);
        assert_eq!(Arc::strong_count(&region), 1);
    }

    #[test]
    fn a_pools_buffer_stays_taken_while_it_is_an_address() {
        // The second length is no power of two when it is rounded up to pages.
        for length in [100, 8193] {
            let raw = RawPool::new(BufferPool::new(length, 3).unwrap());
            let pointers: Vec<_> =
                std::iter::from_fn(|| raw.pool().get()).map(Buffer::into_raw).collect();
            assert_eq!((pointers.len(), raw.pool().available()), (3, 0));
            for pointer in &pointers {
                let end = pointer.as_ptr().wrapping_add(raw.bytes);
                let wrong =
                    [pointer.as_ptr().wrapping_add(1), end, pointer.as_ptr().wrapping_add(4096)];
                for wrong in wrong.into_iter().filter_map(NonNull::new) {
                    if pointers.contains(&wrong) {
                        continue;
                    }
                    // SAFETY: no buffer begins there, so none is made.
                    assert!(unsafe { raw.buffer(wrong, 1) }.is_none());
                }
            }
            for pointer in pointers {
                // SAFETY: it was given up above.
                let mut buffer = unsafe { raw.buffer(pointer, 10) }.unwrap();
                buffer.fill(7);
                assert_eq!((buffer.len(), buffer.into_raw()), (10, pointer));
                // SAFETY: it was given up above.
                let again = unsafe { raw.buffer(pointer, length) }.unwrap();
                assert_eq!((again.len(), &again[..10]), (length, &[7; 10][..]));
            }
            assert_eq!(raw.pool().available(), 3);
        }
    }
}
