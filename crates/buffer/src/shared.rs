//! Memory that others change while it is in use, such as that of a guest. Its buffers move bytes between the kernel and
//! this memory, as others do, but no slice of them exists: code that needs the bytes copies them.

use std::any::Any;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::buffer::{Buffer, MAX_LENGTH};
use crate::region::Region;

/// Whether rings register memory, which keeps all of it in RAM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Registration {
    /// At its first use, if the kernel allows it.
    AtFirstUse,
    /// Never.
    Never,
}

/// A range of memory that others change. Its buffers may overlap.
pub struct SharedMemory {
    /// Of [`MAX_LENGTH`] bytes each, except the last: so much can be registered as one.
    parts: Box<[Arc<Region>]>,
    length: usize,
}

impl SharedMemory {
    /// The `length` bytes at `base`. The owner is dropped with the last buffer.
    ///
    /// # Safety
    /// Until `owner` is dropped the range stays mapped, for reading and writing. No reference to any of it exists, now
    /// or later.
    pub unsafe fn new(
        base: NonNull<u8>,
        length: usize,
        registration: Registration,
        owner: Arc<dyn Any + Send + Sync>,
    ) -> SharedMemory {
        let registered = registration == Registration::AtFirstUse;
        let part = |start: usize| {
            // SAFETY: inside the range that the caller has mapped.
            let base = unsafe { base.add(start) };
            let length = (length - start).min(MAX_LENGTH);
            Region::shared(base, length, registered, Box::new(owner.clone()))
        };
        SharedMemory { parts: (0..length).step_by(MAX_LENGTH).map(part).collect(), length }
    }

    /// `length` zero bytes of this process, in place of a guest's memory: for tests.
    #[doc(hidden)]
    pub fn zeroed(length: usize) -> SharedMemory {
        let owner = Buffer::zeroed(length);
        let base = owner.pointer();
        // SAFETY: the owner keeps its bytes in place, and nothing here or later takes a slice of it.
        unsafe { SharedMemory::new(base, length, Registration::Never, Arc::new(owner)) }
    }

    /// Appends the `length` bytes at `offset` to a list of buffers, or to its last buffer where they adjoin it. Several
    /// buffers where the range is longer than [`MAX_LENGTH`] or crosses a multiple of it.
    ///
    /// # Panics
    /// When the range is not inside the memory.
    pub fn append_to(&self, buffers: &mut Vec<Buffer>, offset: usize, length: usize) {
        let end = offset.checked_add(length).filter(|end| *end <= self.length);
        let end = end.unwrap_or_else(|| panic!("{length} bytes at {offset} of {}", self.length));
        let mut at = offset;
        while at < end {
            let (part, start) = (&self.parts[at / MAX_LENGTH], at % MAX_LENGTH);
            let take = (end - at).min(part.len() - start);
            let buffer = Buffer::from_region(part.clone(), start, take);
            let separate = match buffers.last_mut() {
                Some(last) => last.join(buffer).err(),
                None => Some(buffer),
            };
            buffers.extend(separate);
            at += take;
        }
    }
}

impl fmt::Debug for SharedMemory {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "SharedMemory({} bytes in {} parts)", self.length, self.parts.len())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

    use super::*;
    use crate::RegionId;

    /// A mapping in place of a guest's memory.
    struct Mapping {
        base: NonNull<u8>,
        length: usize,
    }

    // SAFETY: the tests use the memory through buffers alone.
    unsafe impl Send for Mapping {}
    // SAFETY: as above.
    unsafe impl Sync for Mapping {}

    impl Drop for Mapping {
        fn drop(&mut self) {
            // SAFETY: mapped below; the last buffer is gone.
            unsafe { munmap(self.base.as_ptr().cast(), self.length) }.unwrap();
        }
    }

    fn memory(length: usize, registration: Registration) -> (SharedMemory, Arc<Mapping>) {
        let (access, flags) =
            (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let base = unsafe { mmap_anonymous(std::ptr::null_mut(), length, access, flags) }.unwrap();
        let mapping = Arc::new(Mapping { base: NonNull::new(base.cast()).unwrap(), length });
        let owner: Arc<dyn Any + Send + Sync> = mapping.clone();
        // SAFETY: the owner keeps the mapping, and the tests make no reference to it.
        (unsafe { SharedMemory::new(mapping.base, length, registration, owner) }, mapping)
    }

    fn buffers(memory: &SharedMemory, ranges: &[(usize, usize)]) -> Vec<Buffer> {
        let mut buffers = Vec::new();
        ranges.iter().for_each(|(offset, length)| {
            memory.append_to(&mut buffers, *offset, *length);
        });
        buffers
    }

    #[test]
    fn shared_bytes_are_copied_and_never_borrowed() {
        let (memory, _) = memory(8192, Registration::Never);
        let mut buffers = buffers(&memory, &[(0, 4096), (0, 4096)]);
        assert_eq!(buffers.len(), 2, "buffers may overlap");
        buffers[0].copy_from(10, b"guest");
        let mut bytes = [0; 5];
        buffers[1].copy_to(10, &mut bytes);
        assert_eq!(&bytes, b"guest");
        buffers[1].fill_zeros(11..13);
        buffers[0].copy_to(10, &mut bytes);
        assert_eq!(&bytes, b"g\0\0st");
        assert!(catch_unwind(AssertUnwindSafe(|| buffers[0].iter().count())).is_err());
        assert!(catch_unwind(AssertUnwindSafe(|| buffers[0].fill(1))).is_err());
        for (start, length) in [(4092, 5), (usize::MAX, 1)] {
            let copy = || buffers[0].copy_to(start, &mut bytes[..length]);
            assert!(catch_unwind(AssertUnwindSafe(copy)).is_err());
        }
    }

    #[test]
    fn adjoining_ranges_are_one_buffer() {
        let (memory, _) = memory(65536, Registration::Never);
        let ranges = [(0, 512), (512, 512), (4096, 4096), (8192, 1), (512, 512)];
        let lengths = |buffers: Vec<Buffer>| buffers.iter().map(Buffer::len).collect::<Vec<_>>();
        assert_eq!(lengths(buffers(&memory, &ranges)), [1024, 4097, 512]);
        assert_eq!(lengths(buffers(&memory, &[(65535, 1), (65536, 0)])), [1]);
    }

    #[test]
    fn a_long_range_is_split_into_parts_that_can_be_registered() {
        let (memory, _) = memory((2 << 30) + 8192, Registration::AtFirstUse);
        let parts = buffers(&memory, &[(4096, 2 << 30)]);
        let lengths: Vec<_> = parts.iter().map(Buffer::len).collect();
        assert_eq!(lengths, [MAX_LENGTH - 4096, MAX_LENGTH, 4096]);
        let ids: Vec<_> = parts.iter().map(Buffer::region_id).collect();
        assert!(ids.iter().all(|id| id.is_shared() && !id.is_unregistered()));
        assert!(ids[0] != ids[1] && ids[1] != ids[2]);
    }

    #[test]
    fn the_owner_lives_as_long_as_a_buffer() {
        let (memory, mapping) = memory(8192, Registration::Never);
        let buffer = buffers(&memory, &[(4096, 4096)]);
        drop(memory);
        assert_eq!(Arc::strong_count(&mapping), 2);
        drop(buffer);
        assert_eq!(Arc::strong_count(&mapping), 1);
    }

    #[test]
    fn ids_of_shared_memory_are_reused() {
        for _ in 0..2 * RegionId::COUNT {
            let (memory, _) = memory(4096, Registration::AtFirstUse);
            let buffer = buffers(&memory, &[(0, 4096)]).remove(0);
            assert!(buffer.region_id().is_shared() && !buffer.region_id().is_unregistered());
        }
        let (memory, _) = memory(4096, Registration::Never);
        assert!(buffers(&memory, &[(0, 1)])[0].region_id().is_unregistered());
    }
}
