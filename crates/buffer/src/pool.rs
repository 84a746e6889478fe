//! A fixed number of equal buffers out of one region. Getting and returning a
//! buffer allocate nothing and take no lock; an empty pool returns `None` at once.

use std::io;
use std::sync::Arc;

use crate::buffer::{ALIGNMENT, Buffer, MAX_LENGTH};
use crate::region::{Backing, Region};
use crate::slots::Slots;

/// A fixed number of buffers of one size. A clone is another handle to the same pool.
#[derive(Clone, Debug)]
pub struct BufferPool {
    region: Arc<Region>,
}

impl BufferPool {
    /// `count` buffers of `length` bytes each, aligned to [`ALIGNMENT`]. Uses huge
    /// pages if the machine has free ones.
    ///
    /// # Errors
    /// `InvalidInput` for an empty pool or buffers over [`MAX_LENGTH`]; the error of
    /// `mmap` if there is no memory.
    pub fn new(length: usize, count: usize) -> io::Result<BufferPool> {
        let stride = length.max(1).next_multiple_of(ALIGNMENT);
        let total = stride.checked_mul(count);
        let (Some(total), Ok(count), true) =
            (total, u32::try_from(count), count > 0 && length <= MAX_LENGTH)
        else {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("a pool of {count} buffers of {length} bytes cannot be made"),
            ));
        };
        let region = Region::mapped(total, Some(Slots::new(length, stride, count)))?;
        Ok(BufferPool { region })
    }

    /// A free buffer, or `None` while all are in use. It still contains the bytes of its last user.
    pub fn get(&self) -> Option<Buffer> {
        let slots = self.slots();
        let start = slots.allocate()?;
        Some(Buffer::from_region(self.region.clone(), start, slots.length()))
    }

    /// Buffers free now.
    pub fn available(&self) -> usize {
        self.slots().available()
    }

    /// Bytes in each buffer.
    pub fn buffer_length(&self) -> usize {
        self.slots().length()
    }

    /// The kind of pages of the pool's memory.
    pub fn backing(&self) -> Backing {
        self.region.backing()
    }

    fn slots(&self) -> &Slots {
        self.region.slots.as_ref().expect("a pool's region is divided into slots")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_pool_returns_none_and_recovers() {
        let pool = BufferPool::new(512, 3).unwrap();
        let all: Vec<_> = std::iter::from_fn(|| pool.get()).collect();
        assert_eq!(all.len(), 3);
        assert!(pool.get().is_none());
        drop(all);
        assert_eq!(pool.available(), 3);
    }

    #[test]
    fn invalid_pool_sizes_are_refused() {
        assert!(BufferPool::new(4096, 0).is_err());
        assert!(BufferPool::new(MAX_LENGTH + 1, 1).is_err());
        assert!(BufferPool::new(4096, usize::MAX).is_err());
    }

    #[test]
    fn parts_dropped_on_several_threads_free_the_slot_once() {
        let pool = BufferPool::new(4096, 1).unwrap();
        for _ in 0..200 {
            let mut head = pool.get().unwrap();
            let parts: Vec<_> = (1..4).rev().map(|cut| head.split_off(cut * 1024)).collect();
            std::thread::scope(|scope| {
                for part in parts {
                    scope.spawn(move || drop(part));
                }
                drop(head);
            });
            assert_eq!(pool.available(), 1);
        }
    }
}
