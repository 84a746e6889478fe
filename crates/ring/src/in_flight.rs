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
    /// A transfer that stays in its slot, in a table of its own.
    Pinned = 2,
    /// Completions of cancels, at index 0, and of sent messages, at the indexes above it.
    Internal = 3,
    /// A message from another ring.
    Message = 7,
}

/// Bits of an index. Index and kind have 31 bits: each constant below fits into an instruction.
const INDEX_BITS: u32 = 28;
const KIND_SHIFT: u32 = INDEX_BITS;
/// One generation, as added to an id; generations wrap around.
const GENERATION: u64 = 1 << 31;
/// Set while the slot is free. It changes the kind of what is in a table to one that no completion has (4 to 6), so
/// comparing ids also checks that the slot is in use.
const FREE: u64 = 4 << KIND_SHIFT;

/// One use of one slot, as `user_data`: 33 bits of generation, 3 of kind, 28 of index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestId(pub u64);

impl RequestId {
    pub(crate) const INTERNAL: RequestId = RequestId((RequestKind::Internal as u64) << KIND_SHIFT);
    /// Of no completion, and of no slot: no table has this index.
    pub(crate) const NONE: RequestId = RequestId(FREE | ((1 << INDEX_BITS) - 1));
    pub(crate) const MESSAGE: RequestId = RequestId((RequestKind::Message as u64) << KIND_SHIFT);

    #[inline]
    pub(crate) fn kind(self) -> RequestKind {
        match self.0 >> KIND_SHIFT & 7 {
            0 => RequestKind::Transfer,
            1 => RequestKind::Wait,
            2 => RequestKind::Pinned,
            3 => RequestKind::Internal,
            _ => RequestKind::Message,
        }
    }

    /// Of the index of a pinned transfer, the bits of its slot. Above them is the number of its table.
    pub(crate) const PINNED_SLOT_BITS: u32 = 18;
    /// The most tables of pinned transfers in one ring.
    pub(crate) const MAX_PINNED_TABLES: usize = 1 << (INDEX_BITS - RequestId::PINNED_SLOT_BITS);

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
        self.index() as u32 >> RequestId::PINNED_SLOT_BITS
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
        (self.0 & ((1 << INDEX_BITS) - 1)) as usize
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

/// The kernel completed a request twice, or other code overwrote a table.
#[cold]
#[inline(never)]
pub(crate) fn not_in_flight() -> ! {
    panic!("a completion for a slot that is not in flight")
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

    /// Frees the slot of `id`, and returns its value in place. `None` if it is no id in flight of this table.
    #[inline(always)]
    pub(crate) fn end(&mut self, id: RequestId) -> Option<CompletedTransfer<'_, T>> {
        let index = id.index();
        let own_id = self.ids.get_mut(index).filter(|own_id| **own_id == id)?;
        *own_id = id.freed();
        // SAFETY: this slot was in use, so not every slot was free, and `free`
        // is as long as the other tables.
        let free = unsafe { self.free.get_unchecked_mut(self.free_count) };
        // SAFETY: as long as `ids`, which has this index.
        let slot = unsafe { self.values.get_unchecked_mut(index) };
        *free = index as u32;
        self.free_count += 1;
        Some(CompletedTransfer { slot })
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
        assert_eq!(slots.end(first).unwrap().take(), 'a');
        let second = put(&mut slots, 'b');
        assert_ne!(first, second);
        assert!(slots.get_mut(first).is_none());
        assert_eq!(slots.get_mut(second), Some(&mut 'b'));
    }

    #[test]
    fn a_second_completion_finds_nothing() {
        let mut slots = Slots::new(RequestKind::Wait, 2);
        let id = put(&mut slots, 1);
        assert!(slots.end(id).is_some());
        assert!(slots.end(id).is_none());
    }

    #[test]
    fn an_id_of_another_kind_finds_nothing() {
        let mut slots = Slots::new(RequestKind::Transfer, 2);
        let id = put(&mut slots, 1);
        for kind in [RequestKind::Wait, RequestKind::Internal, RequestKind::Pinned] {
            assert!(slots.end(RequestId(id.0 | (kind as u64) << KIND_SHIFT)).is_none());
        }
        assert!(slots.end(RequestId(id.0 + 5)).is_none());
        assert_eq!(slots.end(id).unwrap().take(), 1);
    }

    #[test]
    fn generations_wrap_without_changing_kind_or_index() {
        let mut slots = Slots::new(RequestKind::Wait, 3);
        let bare = (RequestKind::Wait as u64) << KIND_SHIFT | 2;
        slots.ids[2] = RequestId(u64::MAX << 31 | bare).freed();
        let id = put(&mut slots, 'a');
        put(&mut slots, 'b');
        let last = put(&mut slots, 'c');
        assert_eq!((id.kind(), id.index()), (RequestKind::Wait, 0));
        assert_eq!(last, RequestId(bare));
        assert_eq!(slots.end(last).unwrap().take(), 'c');
        assert!(slots.get_mut(last).is_none());
        assert_eq!(put(&mut slots, 'd'), RequestId(bare + GENERATION));
    }

    #[test]
    fn every_value_is_dropped_once() {
        let value = Rc::new(());
        let mut slots = Slots::new(RequestKind::Transfer, 4);
        let ids: Vec<_> = (0..4).map(|_| put(&mut slots, value.clone())).collect();
        assert_eq!(slots.iter_mut().count(), 4);
        drop(slots.end(ids[0]).unwrap().take());
        drop(slots.end(ids[2]));
        assert_eq!(Rc::strong_count(&value), 3);
        assert_eq!(slots.iter_mut().count(), 2);
        drop(slots);
        assert_eq!(Rc::strong_count(&value), 1);
    }

    #[test]
    fn a_free_slot_is_not_ended_by_what_has_no_table() {
        for kind in [RequestKind::Transfer, RequestKind::Wait] {
            let mut slots = Slots::<char>::new(kind, 2);
            for id in [
                RequestId::INTERNAL,
                RequestId::MESSAGE,
                RequestId::from_message_index(0),
                RequestId::NONE,
            ] {
                assert!(slots.end(id).is_none() && slots.get_mut(id).is_none(), "{id:?}");
            }
        }
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
