//! The table of requests in flight. An id is the index of a slot and a generation. A slot
//! is free again only after its completion has been taken.

use std::mem::{ManuallyDrop, MaybeUninit};
use std::ops::Deref;
use std::ptr;

/// The kind of a request, as encoded in `user_data`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum RequestKind {
    Transfer = 0,
    Wait = 1,
    /// Completions of cancels, at index 0, and of sent messages, at the indexes above it.
    Internal = 2,
    /// A message from another ring.
    Message = 3,
    /// A transfer that stays in its slot, in a table of its own.
    Pinned = 4,
}

const KIND_SHIFT: u32 = 32;
/// One generation, as added to an id; generations wrap around.
const GENERATION: u64 = 1 << 35;
/// Set while the slot is free. It changes the kind to one that is never looked up in
/// a table, so that comparing ids also checks that the slot is in use.
const FREE: u64 = (RequestKind::Internal as u64) << KIND_SHIFT;

/// One use of one slot, as `user_data`: 29 bits of generation, 3 of kind, 32 of index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestId(pub u64);

impl RequestId {
    pub(crate) const INTERNAL: RequestId = RequestId((RequestKind::Internal as u64) << KIND_SHIFT);
    /// Of no completion.
    pub(crate) const NONE: RequestId = RequestId(7 << KIND_SHIFT);
    pub(crate) const MESSAGE: RequestId = RequestId((RequestKind::Message as u64) << KIND_SHIFT);

    #[inline]
    pub(crate) fn kind(self) -> RequestKind {
        match self.0 >> KIND_SHIFT & 7 {
            0 => RequestKind::Transfer,
            1 => RequestKind::Wait,
            2 => RequestKind::Internal,
            3 => RequestKind::Message,
            _ => RequestKind::Pinned,
        }
    }

    /// Of the index of a pinned transfer, the bits of its slot. Above them is the number of its table.
    pub(crate) const PINNED_SLOT_BITS: u32 = 20;
    /// The most tables of pinned transfers in one ring.
    pub(crate) const MAX_PINNED_TABLES: usize = 1 << (32 - RequestId::PINNED_SLOT_BITS);

    /// An id of a pinned transfer in this slot.
    #[inline(always)]
    pub(crate) fn of_pinned(table: u32, slot: u32) -> RequestId {
        let index = table << RequestId::PINNED_SLOT_BITS | slot;
        RequestId((RequestKind::Pinned as u64) << KIND_SHIFT | index as u64)
    }

    /// The same slot, with the generation of `other`.
    pub(crate) fn with_generation_of(self, other: RequestId) -> RequestId {
        RequestId(self.0 & (GENERATION - 1) | other.0 & !(GENERATION - 1))
    }

    /// The slot of a pinned transfer in use, if it is in the table of `first`, which is in use; else larger than any
    /// slot.
    #[inline(always)]
    pub(crate) fn distance(self, first: RequestId) -> u64 {
        (self.0 ^ first.0) & (GENERATION - 1)
    }

    /// The number of a pinned transfer's table.
    pub(crate) fn pinned_table(self) -> u32 {
        self.0 as u32 >> RequestId::PINNED_SLOT_BITS
    }

    /// The sender's id of the message at this index.
    pub(crate) fn from_message_index(index: usize) -> RequestId {
        RequestId(RequestId::INTERNAL.0 | (index as u64 + 1))
    }

    /// `None` for the completion of a cancel.
    pub(crate) fn message_index(self) -> Option<usize> {
        self.index().checked_sub(1)
    }

    #[inline(always)]
    fn index(self) -> usize {
        self.0 as u32 as usize
    }

    #[inline(always)]
    pub(crate) fn is_in_use(self) -> bool {
        self.0 & FREE == 0
    }

    /// The id of the next use, from the id of a [`Self::freed`] slot.
    #[inline(always)]
    pub(crate) fn next(self) -> RequestId {
        RequestId(self.0.wrapping_add(GENERATION - FREE))
    }

    /// The id of the slot after this use.
    #[inline(always)]
    pub(crate) fn freed(self) -> RequestId {
        RequestId(self.0 | FREE)
    }
}

/// A completed transfer, still in its slot, so that it moves only once, to its
/// destination. It is dropped if it is not taken.
#[derive(Debug)]
pub struct CompletedTransfer<'a, T> {
    /// Initialized: [`Slots::end`] has taken the slot out of use, and the borrow
    /// is exclusive.
    slot: &'a mut MaybeUninit<T>,
}

impl<T> CompletedTransfer<'_, T> {
    /// Moves the transfer out of its slot.
    #[inline(always)]
    pub fn take(self) -> T {
        let ended = ManuallyDrop::new(self);
        // SAFETY: the slot holds a value, which is read once: it is not dropped here,
        // and for the table the slot is free.
        unsafe { ended.slot.assume_init_read() }
    }
}

impl<T> Drop for CompletedTransfer<'_, T> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the slot holds a value that has not been moved out.
        unsafe { self.slot.assume_init_drop() };
    }
}

impl<T> Deref for CompletedTransfer<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: the slot holds a value until it is moved out, which consumes this.
        unsafe { self.slot.assume_init_ref() }
    }
}

/// The index of a free slot, for [`Slots::fill`].
pub(crate) struct FreeSlot(u32);

/// A fixed number of slots of one kind.
pub(crate) struct Slots<T> {
    /// Each holds a value while its id is in use.
    values: Box<[MaybeUninit<T>]>,
    /// The id of each slot, or the id of its last use.
    ids: Box<[RequestId]>,
    /// A stack of free slots: the first `free_count`, the last used one on top.
    free: Box<[u32]>,
    free_count: usize,
}

impl<T> Slots<T> {
    pub(crate) fn new(kind: RequestKind, count: u32) -> Slots<T> {
        let id = |index| RequestId((kind as u64) << KIND_SHIFT | index as u64).freed();
        Slots {
            values: (0..count).map(|_| MaybeUninit::uninit()).collect(),
            ids: (0..count).map(id).collect(),
            free: (0..count).rev().collect(),
            free_count: count as usize,
        }
    }

    #[inline]
    pub(crate) fn in_flight(&self) -> usize {
        self.values.len() - self.free_count
    }

    /// The slot that [`Self::fill`] uses next; `None` while all are in use.
    #[inline(always)]
    pub(crate) fn free_slot(&self) -> Option<FreeSlot> {
        let last = self.free_count.checked_sub(1)?;
        // SAFETY: `free_count` never exceeds the length of `free`.
        Some(FreeSlot(unsafe { *self.free.get_unchecked(last) }))
    }

    /// Moves `value` into the slot, where it stays until [`Self::end`]. Never
    /// panics, so that the compiler can build `value` directly in the slot.
    #[inline(always)]
    pub(crate) fn fill(&mut self, free_slot: FreeSlot, value: T) -> (RequestId, &T) {
        let index = free_slot.0 as usize;
        self.free_count -= 1;
        // SAFETY: the indexes in `free`, and so this free one, are those of
        // both tables, whose length never changes.
        let slot = unsafe { self.values.get_unchecked_mut(index) };
        // SAFETY: the same.
        let id = unsafe { self.ids.get_unchecked_mut(index) };
        *id = id.next();
        (*id, slot.write(value))
    }

    /// Frees the slot of `id`, and returns its value in place.
    ///
    /// # Panics
    /// When `id` is not in flight: the kernel completed it twice, or other code
    /// overwrote the table.
    #[inline(always)]
    pub(crate) fn end(&mut self, id: RequestId) -> CompletedTransfer<'_, T> {
        let index = id.index();
        assert!(self.ids[index] == id, "a completion for a slot that is not in flight");
        self.ids[index] = id.freed();
        // SAFETY: this slot was in use, so not every slot was free, and `free`
        // is as long as the other tables.
        let free = unsafe { self.free.get_unchecked_mut(self.free_count) };
        // SAFETY: as long as `ids`, which has this index.
        let slot = unsafe { self.values.get_unchecked_mut(index) };
        *free = index as u32;
        self.free_count += 1;
        CompletedTransfer { slot }
    }

    /// All values in flight, with their ids.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (RequestId, &mut T)> {
        let slots = self.ids.iter().zip(self.values.iter_mut());
        let in_use = slots.filter(|(id, _)| id.is_in_use());
        // SAFETY: a slot whose id is in use holds a value.
        in_use.map(|(id, value)| (*id, unsafe { value.assume_init_mut() }))
    }

    /// The value of `id`, if it is still in flight.
    pub(crate) fn get_mut(&mut self, id: RequestId) -> Option<&mut T> {
        let index = id.index();
        if *self.ids.get(index)? != id {
            return None;
        }
        // SAFETY: a slot whose id is in use holds a value.
        Some(unsafe { self.values[index].assume_init_mut() })
    }
}

impl<T> Drop for Slots<T> {
    fn drop(&mut self) {
        for (_, value) in self.iter_mut() {
            // SAFETY: the slot is in use, and the table is dropped with it.
            unsafe { ptr::drop_in_place(value) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::rc::Rc;

    fn put<T>(slots: &mut Slots<T>, value: T) -> RequestId {
        let free_slot = slots.free_slot().expect("there is room");
        slots.fill(free_slot, value).0
    }

    #[test]
    fn a_reused_slot_has_a_new_id() {
        let mut slots = Slots::new(RequestKind::Transfer, 1);
        let first = put(&mut slots, 'a');
        assert!(slots.free_slot().is_none());
        assert_eq!(slots.end(first).take(), 'a');
        let second = put(&mut slots, 'b');
        assert_ne!(first, second);
        assert!(slots.get_mut(first).is_none());
        assert_eq!(slots.get_mut(second), Some(&mut 'b'));
    }

    #[test]
    #[should_panic(expected = "not in flight")]
    fn a_second_completion_panics() {
        let mut slots = Slots::new(RequestKind::Wait, 2);
        let id = put(&mut slots, 1);
        slots.end(id).take();
        slots.end(id);
    }

    #[test]
    fn generations_wrap_without_changing_kind_or_index() {
        let mut slots = Slots::new(RequestKind::Wait, 3);
        let bare = (RequestKind::Wait as u64) << 32 | 2;
        slots.ids[2] = RequestId(u64::MAX << 35 | bare).freed();
        let id = put(&mut slots, 'a');
        put(&mut slots, 'b');
        let last = put(&mut slots, 'c');
        assert_eq!((id.kind(), id.index()), (RequestKind::Wait, 0));
        assert_eq!(last, RequestId(bare));
        assert_eq!(slots.end(last).take(), 'c');
        assert!(slots.get_mut(last).is_none());
        assert_eq!(put(&mut slots, 'd'), RequestId(bare + GENERATION));
    }

    #[test]
    fn every_value_is_dropped_once() {
        let value = Rc::new(());
        let mut slots = Slots::new(RequestKind::Transfer, 4);
        let ids: Vec<_> = (0..4).map(|_| put(&mut slots, value.clone())).collect();
        assert_eq!(slots.iter_mut().count(), 4);
        drop(slots.end(ids[0]).take());
        drop(slots.end(ids[2]));
        assert_eq!(Rc::strong_count(&value), 3);
        assert_eq!(slots.iter_mut().count(), 2);
        drop(slots);
        assert_eq!(Rc::strong_count(&value), 1);
    }

    #[test]
    fn kinds_are_distinct() {
        let mut slots = Slots::new(RequestKind::Wait, 1);
        let id = put(&mut slots, ());
        assert_eq!(id.kind(), RequestKind::Wait);
        assert_eq!(RequestId::INTERNAL.kind(), RequestKind::Internal);
        assert_eq!(RequestId::MESSAGE.kind(), RequestKind::Message);
    }
}
