//! The slots of a region that a pool divides into equal buffers: the free ones, and the number of parts in use of the
//! others. Allocating and freeing a slot allocate no memory and take no lock.

use std::sync::atomic::{AtomicU32, Ordering};

use crossbeam_queue::ArrayQueue;

/// The free slots of a region, and the number of parts of each slot in use.
#[derive(Debug)]
pub(crate) struct Slots {
    length: usize,
    stride: usize,
    parts: Box<[AtomicU32]>,
    free: ArrayQueue<u32>,
}

impl Slots {
    /// `count` free slots, `stride` bytes apart, of `length` bytes each.
    pub(crate) fn new(length: usize, stride: usize, count: u32) -> Slots {
        let free = ArrayQueue::new(count as usize);
        for slot in 0..count {
            let _ = free.push(slot); // cannot fail: its capacity is `count`
        }
        Slots { length, stride, parts: (0..count).map(|_| AtomicU32::new(0)).collect(), free }
    }

    /// Allocates a slot, as one part. Returns its offset in the region, in bytes.
    #[inline]
    pub(crate) fn allocate(&self) -> Option<usize> {
        let slot = self.free.pop()?;
        self.parts[slot as usize].store(1, Ordering::Relaxed);
        Some(slot as usize * self.stride)
    }

    /// The number of free slots.
    #[inline]
    pub(crate) fn available(&self) -> usize {
        self.free.len()
    }

    /// Bytes in each slot.
    #[inline]
    pub(crate) fn length(&self) -> usize {
        self.length
    }

    fn slot_at(&self, offset: usize) -> usize {
        offset / self.stride
    }

    pub(crate) fn same_slot(&self, one: usize, other: usize) -> bool {
        self.slot_at(one) == self.slot_at(other)
    }

    pub(crate) fn add_part(&self, offset: usize) {
        self.parts[self.slot_at(offset)].fetch_add(1, Ordering::Relaxed);
    }

    /// The last part frees the slot. Release and acquire order the last accesses
    /// through all parts before the first access of the next owner.
    pub(crate) fn drop_part(&self, offset: usize) {
        let slot = self.slot_at(offset);
        if self.parts[slot].fetch_sub(1, Ordering::AcqRel) == 1 {
            let pushed = self.free.push(slot as u32);
            assert!(pushed.is_ok(), "a slot was freed twice");
        }
    }
}
