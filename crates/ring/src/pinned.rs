//! Slots whose transfers stay in place from use to use, so that neither a transfer nor its memory moves. Each is the
//! owner's while it is idle, and the ring's while it is in flight. Values that are equal for several transfers that are
//! pushed at once, and the end of the queue, which the kernel reads, are loaded and stored once.

use std::cell::{Cell, UnsafeCell};
use std::collections::VecDeque;
use std::fmt;
use std::hint;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};

use io_uring::IoUring;
use io_uring::squeue::Entry;
use uringfs_buffer::RegionId;

use crate::counters::RawCounters;
use crate::in_flight::RequestId;
use crate::registered::{FileSlot, FileTable};
use crate::sqe::{Direction, SqeHead};
use crate::transfer::{NextOp, StepResult, Transfer, TransferMemory};

/// The owner of slots whose transfers stay in place. An idle slot holds a transfer, unless the owner has taken it out.
///
/// When the owner is dropped, transfers in flight stay until they have ended.
pub struct PinnedSlots<T> {
    table: Rc<PinnedTable<T>>,
}

/// The slots, which their owner and a ring share.
pub(crate) struct PinnedTable<T> {
    /// The ring that uses them, and their number there. Only that ring has some in flight.
    place: Cell<Option<(RingKey, u32)>>,
    /// The id of each slot, or the id of its last use.
    ids: Box<[Cell<RequestId>]>,
    /// As long as `ids`. The ring's while the id is in use, else the owner's.
    values: Box<[UnsafeCell<Option<T>>]>,
}

impl<T> fmt::Debug for PinnedSlots<T> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_struct("PinnedSlots").field("slots", &self.len()).finish_non_exhaustive()
    }
}

impl<T> PinnedSlots<T> {
    /// The most slots of one owner.
    pub const MAX: usize = 1 << RequestId::PINNED_SLOT_BITS;

    /// Idle slots with these transfers.
    ///
    /// # Panics
    /// When there are more than [`Self::MAX`].
    pub fn new(transfers: impl IntoIterator<Item = T>) -> PinnedSlots<T> {
        let values: Box<[_]> =
            transfers.into_iter().map(|transfer| UnsafeCell::new(Some(transfer))).collect();
        assert!(values.len() <= Self::MAX, "too many slots");
        let id = |slot| Cell::new(RequestId::of_pinned(0, slot).freed());
        let ids = (0..values.len() as u32).map(id).collect();
        PinnedSlots { table: Rc::new(PinnedTable { place: Cell::new(None), ids, values }) }
    }

    /// The number of slots.
    #[inline]
    pub fn len(&self) -> usize {
        self.table.ids.len()
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The transfer of an idle slot. `None` if it is in flight or taken out, and without such a slot.
    #[inline(always)]
    pub fn get(&self, slot: u32) -> Option<&T> {
        let value = self.idle(slot)?;
        // SAFETY: the slot is idle, so it belongs to this owner, which is borrowed. Only a push, which needs the owner
        // exclusively, makes it the ring's.
        unsafe { (*value.get()).as_ref() }
    }

    /// The same, to be changed.
    #[inline(always)]
    pub fn get_mut(&mut self, slot: u32) -> Option<&mut T> {
        let value = self.idle(slot)?;
        // SAFETY: the slot is idle, so it belongs to this owner, which is borrowed exclusively.
        unsafe { (*value.get()).as_mut() }
    }

    /// Takes the transfer out of an idle slot.
    pub fn take(&mut self, slot: u32) -> Option<T> {
        let value = self.idle(slot)?;
        // SAFETY: as in `get_mut`.
        unsafe { (*value.get()).take() }
    }

    /// Puts a transfer into a slot from which it was taken, or which a ring has emptied.
    ///
    /// # Panics
    /// When it is not there, in flight, or not empty.
    pub fn put(&mut self, slot: u32, transfer: T) {
        let value = self.idle(slot).expect("an idle slot");
        // SAFETY: as in `get_mut`.
        let value = unsafe { &mut *value.get() };
        assert!(value.is_none(), "the slot has a transfer");
        *value = Some(transfer);
    }

    #[inline(always)]
    fn idle(&self, slot: u32) -> Option<&UnsafeCell<Option<T>>> {
        let PinnedTable { ids, values, .. } = &*self.table;
        let is_idle = !ids.get(slot as usize)?.get().is_in_use();
        values.get(slot as usize).filter(|_| is_idle)
    }

    /// Their table, for a ring.
    #[inline(always)]
    pub(crate) fn table(&self) -> &Rc<PinnedTable<T>> {
        &self.table
    }
}

impl<T> Drop for PinnedSlots<T> {
    /// Idle transfers are dropped here. A ring may keep the table for those in flight.
    fn drop(&mut self) {
        (0..self.len() as u32).for_each(|slot| drop(self.take(slot)));
    }
}

impl<T> PinnedTable<T> {
    /// Their number in this ring, if that uses them.
    #[inline(always)]
    fn number_in(&self, ring: RingKey) -> Option<u32> {
        self.place.get().filter(|(key, _)| *key == ring).map(|(_, number)| number)
    }

    fn is_any_in_flight(&self) -> bool {
        self.ids.iter().any(|id| id.get().is_in_use())
    }

    /// Gives them to a ring. None is in flight.
    fn place_in(&self, ring: RingKey, number: u32) {
        self.place.set(Some((ring, number)));
        for (slot, id) in self.ids.iter().enumerate() {
            let first = RequestId::of_pinned(number, slot as u32).freed();
            id.set(first.with_generation_of(id.get()));
        }
    }

    /// The slot of a completion, if it is one of these. `first` is an id in use of the first slot.
    #[inline(always)]
    pub(crate) fn slot_of(&self, first: RequestId, id: RequestId) -> Option<PinnedSlot<'_, T>> {
        let slot = id.distance(first);
        let own_id = self.ids.get(slot as usize)?;
        // SAFETY: the tables have one length.
        let value = unsafe { self.values.get_unchecked(slot as usize) };
        Some(PinnedSlot { slot: slot as u32, id, own_id, value })
    }

    /// Shows the transfers in flight.
    fn visit_in_flight(&self, mut visit: impl FnMut(RequestId, &mut T)) {
        for (id, value) in self.ids.iter().zip(&self.values) {
            if id.get().is_in_use() {
                // SAFETY: as in `PinnedSlot::end`.
                let value = unsafe { &mut *value.get() };
                value.iter_mut().for_each(|transfer| visit(id.get(), transfer));
            }
        }
    }
}

/// Tells the rings of a process apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RingKey(u64);

/// The pinned transfers of a ring.
pub(crate) struct PinnedTables<T> {
    key: RingKey,
    /// By number.
    tables: Vec<Rc<PinnedTable<T>>>,
    /// Transfers in flight.
    pub(crate) in_flight: usize,
    /// Transfers of which a step has completed, moved out of their slots, with the result.
    pub(crate) moved: VecDeque<(T, StepResult)>,
}

impl<T> PinnedTables<T> {
    pub(crate) fn new() -> PinnedTables<T> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let key = RingKey(NEXT.fetch_add(1, Ordering::Relaxed));
        PinnedTables { key, tables: Vec::new(), in_flight: 0, moved: VecDeque::new() }
    }

    /// The number of these slots, if they are this ring's.
    #[inline(always)]
    pub(crate) fn number_of(&self, slots: &PinnedSlots<T>) -> Option<u32> {
        slots.table.number_in(self.key)
    }

    /// Gives the slots to this ring, unless they are. False if another ring has some in flight, or there are too many
    /// tables.
    #[inline(always)]
    pub(crate) fn place(&mut self, slots: &PinnedSlots<T>) -> bool {
        self.number_of(slots).is_some() || self.place_slow(slots)
    }

    #[cold]
    #[inline(never)]
    fn place_slow(&mut self, slots: &PinnedSlots<T>) -> bool {
        let table = &slots.table;
        if table.is_any_in_flight() {
            return false;
        }
        // Another ring has it, or another place here, or its owner is gone, and with the last in flight all of its transfers.
        let is_free = |(number, own): (usize, &Rc<PinnedTable<T>>)| {
            own.number_in(self.key) != Some(number as u32)
                || Rc::strong_count(own) == 1 && !own.is_any_in_flight()
        };
        let number = self.tables.iter().enumerate().position(is_free).unwrap_or(self.tables.len());
        if number == RequestId::MAX_PINNED_TABLES {
            return false;
        }
        match self.tables.get_mut(number) {
            Some(own) => *own = table.clone(),
            None => self.tables.push(table.clone()),
        }
        table.place_in(self.key, number as u32);
        true
    }

    /// Ends the use of a slot whose owner does not reap, and moves the transfer out.
    #[cold]
    #[inline(never)]
    pub(crate) fn move_out(&mut self, files: &FileTable, id: RequestId, result: i32)
    where
        T: Transfer,
    {
        let number = id.pinned_table();
        let table = &self.tables[number as usize];
        let slot = table.slot_of(RequestId::of_pinned(number, 0), id).expect("a slot of its table");
        self.in_flight -= 1;
        let transfer = slot.end(|_| false).expect("a slot in flight has a transfer");
        self.keep(files, transfer, result);
    }

    /// Keeps a transfer that was moved out.
    #[cold]
    #[inline(never)]
    pub(crate) fn keep(&mut self, files: &FileTable, transfer: T, result: i32)
    where
        T: Transfer,
    {
        let result = files.step_result(&transfer, result);
        self.moved.push_back((transfer, result));
    }

    /// Shows the transfers in flight.
    pub(crate) fn visit_in_flight(&mut self, mut visit: impl FnMut(RequestId, &mut T)) {
        for (number, table) in self.tables.iter().enumerate() {
            if table.number_in(self.key) == Some(number as u32) {
                table.visit_in_flight(&mut visit);
            }
        }
    }

    #[cfg(test)]
    pub(crate) fn tables(&self) -> usize {
        self.tables.len()
    }
}

/// A slot whose step has completed.
pub(crate) struct PinnedSlot<'t, T> {
    pub(crate) slot: u32,
    id: RequestId,
    own_id: &'t Cell<RequestId>,
    value: &'t UnsafeCell<Option<T>>,
}

impl<T> PinnedSlot<'_, T> {
    /// Ends its use. `is_done` gets the transfer, and returns true if it stays; else it is moved out, and returned.
    ///
    /// # Panics
    /// When the id is not in flight.
    #[inline(always)]
    pub(crate) fn end(self, is_done: impl FnOnce(&T) -> bool) -> Option<T> {
        assert!(self.own_id.get() == self.id, "a completion for a slot that is not in flight");
        // SAFETY: the slot is in flight, so it belongs to the ring, which is borrowed exclusively, until the id
        // changes.
        let value = unsafe { &mut *self.value.get() };
        // SAFETY: only a push makes a slot the ring's, and only with a transfer in it.
        let is_done = is_done(unsafe { value.as_ref().unwrap_unchecked() });
        let moved = if is_done { None } else { value.take() };
        self.own_id.set(self.id.freed());
        moved
    }
}

/// Free submission entries of a ring, for transfers of one owner's slots to one file, with memory of one region: see
/// [`Ring::pinned_batch`](crate::Ring::pinned_batch). The kernel sees them when this is dropped and the ring is
/// entered.
pub struct PinnedBatch<'r, T: Transfer> {
    pub(crate) entries: PinnedEntries<'r, T>,
    pub(crate) io: &'r mut IoUring,
    pub(crate) file_slot: FileSlot,
    /// Entries that are free.
    pub(crate) room: u32,
    /// The same when the batch began.
    pub(crate) first_room: u32,
    pub(crate) queued: &'r mut u32,
    pub(crate) in_flight: &'r mut usize,
    pub(crate) counters: &'r mut RawCounters,
}

/// Makes the submission entries of a batch.
pub(crate) struct PinnedEntries<'r, T> {
    pub(crate) table: &'r PinnedTable<T>,
    /// The index of the file.
    pub(crate) file: u32,
    pub(crate) region_id: RegionId,
    pub(crate) head: SqeHead,
}

impl<T: Transfer> fmt::Debug for PinnedBatch<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_struct("PinnedBatch").field("pushed", &self.pushed()).finish_non_exhaustive()
    }
}

impl<T: Transfer> PinnedEntries<'_, T> {
    /// Prepares the transfer of an idle slot by `prepare`, makes it the ring's, and returns its entry.
    #[inline(always)]
    fn entry(&self, slot: u32, prepare: impl FnOnce(&mut T)) -> Option<Entry> {
        let PinnedTable { ids, values, .. } = self.table;
        let id = ids.get(slot as usize).filter(|id| !id.get().is_in_use())?;
        // SAFETY: the tables have one length.
        let value = unsafe { values.get_unchecked(slot as usize) };
        // SAFETY: the slot is idle, so it belongs to the owner, which the batch borrows exclusively.
        let transfer = unsafe { &mut *value.get() }.as_mut()?;
        prepare(transfer);
        let (direction, offset, segment) = match transfer.step() {
            NextOp::Read(offset, TransferMemory::Single(segment)) => {
                (Direction::READ, offset, segment)
            }
            NextOp::Write(offset, TransferMemory::Single(segment)) => {
                (Direction::WRITE, offset, segment)
            }
            _ => return None,
        };
        debug_assert_eq!(transfer.file(), self.file, "a transfer to the file of its batch");
        if segment.region_id != self.region_id {
            return None;
        }
        let next = id.get().next();
        id.set(next);
        Some(self.head.sqe(direction, offset, &segment).with_id(next))
    }
}

impl<T: Transfer> PinnedBatch<'_, T> {
    /// Prepares transfers of idle slots, each by its function, and writes their submission entries, up to the first for
    /// which that is not possible: there is no such slot, it is in flight or empty, no entry is free, or the transfer
    /// is not a read or a volatile write of one segment in the batch's region. Returns the number of those before it.
    /// Each is to the batch's file.
    #[inline(always)]
    pub fn push_each<P: FnOnce(&mut T)>(
        &mut self,
        transfers: impl IntoIterator<Item = (u32, P)>,
    ) -> usize {
        let before = self.room;
        // The end of the queue and the number are stored once, also if the caller's code panics.
        let mut queue = self.io.submission();
        let mut left = RoomLeft { left: before, room: &mut self.room };
        for (slot, prepare) in transfers {
            if left.left == 0 {
                break;
            }
            let Some(entry) = self.entries.entry(slot, prepare) else { break };
            // SAFETY: `left` entries are free: the queue's length without those queued before.
            unsafe { hint::assert_unchecked(!queue.is_full()) };
            // SAFETY: the table owns the transfer, and with it everything that the entry names. It belongs to the
            // ring, which holds the table, until the kernel has completed it.
            let pushed = unsafe { queue.push(&entry) };
            debug_assert!(pushed.is_ok());
            left.left -= 1;
        }
        (before - left.left) as usize
    }

    fn pushed(&self) -> u32 {
        self.first_room - self.room
    }

    /// Ends the batch. Returns how many transfers were pushed.
    #[inline(always)]
    pub fn finish(self) -> u32 {
        self.pushed()
    }
}

/// Stores the number of free entries when it is dropped.
struct RoomLeft<'b> {
    left: u32,
    room: &'b mut u32,
}

impl Drop for RoomLeft<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        *self.room = self.left;
    }
}

impl<T: Transfer> Drop for PinnedBatch<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        let pushed = self.pushed();
        *self.queued += pushed;
        *self.in_flight += pushed as usize;
        if self.file_slot != FileSlot::NOP {
            let is_fixed = self.entries.head.is_fixed();
            self.counters.count_many(self.file_slot, is_fixed, pushed.into());
        }
    }
}
