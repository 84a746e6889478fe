//! Buffers of callers in other languages, who hold memory by its address alone: memory of their own
//! ([`ForeignMemory`]), and buffers of a pool ([`Buffer::into_raw`], [`BufferPool::buffer_from_raw`]).

use std::fmt;
use std::mem;
use std::ptr::NonNull;
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

impl Buffer {
    /// Gives a pool's buffer up for its address: the buffer stays taken until [`BufferPool::buffer_from_raw`] makes one
    /// of it again. Any other buffer is dropped.
    #[doc(hidden)]
    #[inline]
    pub fn into_raw(self) -> NonNull<u8> {
        let pointer = self.pointer();
        if self.is_of_pool() {
            mem::forget(self);
        }
        pointer
    }

    /// True for a buffer of a pool. To forget it, with all that it is in, is [`Self::into_raw`].
    #[doc(hidden)]
    #[inline]
    pub fn is_of_pool(&self) -> bool {
        self.region().slots.is_some()
    }
}

impl BufferPool {
    /// The buffer at this address, which [`Buffer::into_raw`] gave up, in its full length. `None` if no buffer of the
    /// pool begins there.
    ///
    /// # Safety
    /// The buffer at this address was given up, and not made again since.
    #[doc(hidden)]
    #[inline]
    pub unsafe fn buffer_from_raw(&self, pointer: NonNull<u8>) -> Option<Buffer> {
        if !self.begins_at(pointer) {
            return None;
        }
        let region = Arc::as_ptr(self.region());
        // SAFETY: the buffer that was given up has counted a reference to its region, and only this code takes it.
        let region = unsafe { Arc::from_raw(region) };
        let id = region.id();
        Some(Buffer::over(pointer, self.buffer_length(), region, id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_memory_is_moved_in_place() {
        let mut bytes = vec![7_u8; 100];
        let pointer = NonNull::from(&mut bytes[0]);
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
    fn a_pools_buffer_stays_taken_while_it_is_an_address() {
        let pool = BufferPool::new(100, 2).unwrap();
        let mut buffer = pool.get().unwrap();
        buffer.truncate(10);
        buffer.fill(7);
        let pointer = buffer.into_raw();
        assert_eq!(pool.available(), 1);
        // SAFETY: inside the buffer.
        let inside = unsafe { pointer.add(1) };
        for wrong in [inside, NonNull::dangling()] {
            // SAFETY: no buffer begins there, so none is made.
            assert!(unsafe { pool.buffer_from_raw(wrong) }.is_none());
        }
        // SAFETY: it was given up above.
        let again = unsafe { pool.buffer_from_raw(pointer) }.unwrap();
        assert_eq!((again.len(), &again[..10]), (100, &[7; 10][..]));
        drop(again);
        assert_eq!(pool.available(), 2);
    }
}
