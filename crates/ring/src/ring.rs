//! The ring: push, enter, reap. The ring's table owns a pushed request until
//! the kernel has completed it.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use io_uring::squeue::Entry;
use io_uring::{opcode, types};
use uringfs_errno::Errno;

use crate::counters::{RawCounters, RingCounters};
use crate::event::{Event, decode};
use crate::fork::{self, fork_count};
use crate::in_flight::{CompletedTransfer, FreeSlot, RequestId, RequestKind, Slots};
use crate::message::Messages;
use crate::notifier::Notifier;
use crate::options::{RESERVE, RingOptions, build};
use crate::pinned::{PinnedBatch, PinnedEntries, PinnedSlots, PinnedTables};
use crate::probe::Features;
use crate::queues::{AnyQueues, Queues};
use crate::registered::{FileSlot, FileTable, MemoryName, RegionTable, Registration};
use crate::sqe::{Direction, Sqe, SqeHead, file_for_read_only, nop_sqe, slow_sqe};
use crate::sys::{self, RingFd};
use crate::transfer::{NextOp, StepResult, Transfer, TransferMemory};
use crate::wait::{Wait, WaitEntry, WaitHandle};

// A transfer that its owner may execute by a call.
mod held;
#[cfg(test)]
mod tests;

/// io_uring for transfers of type `T`. Belongs to the thread that created it.
pub struct Ring<T: Transfer> {
    io: Queues,
    fd: RingFd,
    transfers: Slots<T>,
    /// Transfers that stay in place.
    pinned: PinnedTables<T>,
    waits: Slots<(Wait, u64)>,
    messages: Messages,
    files: FileTable,
    regions: RegionTable,
    /// Pushed entries that the kernel has not consumed.
    queued: u32,
    /// A transfer whose entry is not pushed yet; [`RequestId::NONE`] if there is none.
    held: RequestId,
    /// Transfers may be pushed while fewer entries than this are queued.
    transfer_limit: u32,
    /// Lists of iovecs, kept until the kernel has read them.
    iovec_lists: Vec<Box<[libc::iovec]>>,
    /// Cancels that wait for free entries in the submission queue.
    cancels: VecDeque<RequestId>,
    forks: u32,
    polled: bool,
    notifier: Notifier,
    /// Completions that [`Self::reap`] found and [`Self::event`] has not returned.
    events: VecDeque<Event>,
    counters: RawCounters,
    _owned_by_thread: PhantomData<*const ()>,
}

impl<T: Transfer> fmt::Debug for Ring<T> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_struct("Ring")
            .field("fd", &self.fd)
            .field("queued", &self.queued)
            .finish_non_exhaustive()
    }
}

impl<T: Transfer> Ring<T> {
    /// A ring with every feature that the kernel supports.
    ///
    /// # Errors
    /// In one line why there is no ring, and what to do.
    pub fn new(options: &RingOptions) -> io::Result<Ring<T>> {
        let features = Features::probe().map_err(io::Error::other)?;
        fork::install_fork_handler();
        let transfers = options.transfers.clamp(1, 16384);
        let io = build(options, features, transfers + options.waits + RESERVE)?;
        let fd = if features.registered_ring.is_enabled() {
            // A thread can register 16 rings. Beyond that the ring uses its descriptor.
            sys::register_ring(io.as_raw_fd())
                .map_or(RingFd::Descriptor(io.as_raw_fd()), RingFd::Registered)
        } else {
            RingFd::Descriptor(io.as_raw_fd())
        };
        let files = FileTable::new(&io, options.files, options.fixed_files);
        let regions = RegionTable::new(&io, options.fixed_buffers);
        Ok(Ring {
            fd,
            transfers: Slots::new(RequestKind::Transfer, transfers),
            pinned: PinnedTables::new(),
            waits: Slots::new(RequestKind::Wait, options.waits),
            messages: Messages::default(),
            files,
            regions,
            queued: 0,
            held: RequestId::NONE,
            transfer_limit: io.parameters().sq_entries() - RESERVE,
            iovec_lists: Vec::new(),
            cancels: VecDeque::new(),
            forks: fork_count(),
            polled: options.polled,
            notifier: Notifier::default(),
            events: VecDeque::new(),
            counters: RawCounters::default(),
            io,
            _owned_by_thread: PhantomData,
        })
    }

    /// Puts a file into the ring's table. The ring keeps it open until
    /// [`Self::remove`]; the caller may close its descriptor.
    ///
    /// # Errors
    /// When no descriptor is left (EMFILE) or `index` is not in the table.
    ///
    /// # Panics
    /// When `index` is in use.
    pub fn install(&mut self, index: u32, file: BorrowedFd<'_>) -> io::Result<()> {
        self.files.install(&self.io, index, file)
    }

    /// Turns every transfer that names `index` into a NOP of the kernel, to measure
    /// the round trip.
    ///
    /// # Errors
    /// When `index` is not in the table.
    ///
    /// # Panics
    /// When `index` is in use.
    pub fn install_nop(&mut self, index: u32) -> io::Result<()> {
        self.files.install_nop(index)
    }

    /// Takes a file out of the table.
    ///
    /// # Errors
    /// EBUSY while a transfer names it, EBADF when its slot is empty.
    pub fn remove(&mut self, index: u32) -> Result<(), Errno> {
        let mut is_busy = false;
        self.visit_in_flight(|_, transfer| is_busy |= transfer.file() == index);
        if is_busy {
            return Err(Errno::BUSY);
        }
        self.files.remove(&self.io, index)
    }

    /// Reserves a slot and a submission entry for one transfer. Submits, by a system call, when the
    /// submission queue is full. `None` without a free slot or entry, and in the child of a fork.
    #[inline(always)]
    pub fn sqe_slot(&mut self) -> Option<SqeSlot<'_, T>> {
        let slot = self.transfers.free_slot()?;
        if self.is_forked()
            || self.queued >= self.transfer_limit && !self.submit_below(self.transfer_limit)
        {
            return None;
        }
        Some(SqeSlot { ring: self, slot })
    }

    /// Free submission entries for several transfers of these slots to the file at `file`, each with one segment of
    /// memory in the region of that of slot `first`, which is registered if it can be. Values that are equal for all of
    /// them are looked up once.
    /// `None` for memory that must not be written, without a file at that index, if another ring has some of the slots
    /// in flight, on a ring with wide entries, and in the child of a fork.
    #[inline(always)]
    pub fn pinned_batch<'r>(
        &'r mut self,
        file: u32,
        slots: &'r mut PinnedSlots<T>,
        first: u32,
    ) -> Option<PinnedBatch<'r, T>> {
        let file_slot = self.files.slot(file);
        if self.is_forked() || file_slot == FileSlot::ABSENT || !self.pinned.place(slots) {
            return None;
        }
        let (NextOp::Read(_, memory) | NextOp::Write(_, memory)) = slots.get(first)?.step() else {
            return None;
        };
        let TransferMemory::Single(segment) = memory else { return None };
        let memory = self.regions.name_of(&self.io, &segment);
        let Queues::Narrow(io) = &mut self.io else { return None };
        let index = match memory {
            MemoryName::Index(index) => Some(index),
            MemoryName::Address => None,
            MemoryName::ReadOnlyAddress => return None,
        };
        let room = self.transfer_limit.saturating_sub(self.queued);
        Some(PinnedBatch {
            entries: PinnedEntries {
                table: &**slots.table(),
                file,
                region_id: segment.region_id,
                head: SqeHead::new(file_slot, index),
            },
            io,
            file_slot,
            room,
            first_room: room,
            queued: &mut self.queued,
            in_flight: &mut self.pinned.in_flight,
            counters: &mut self.counters,
        })
    }

    /// Submits the queued entries, so that fewer than `limit` are queued. False
    /// if the kernel does not consume enough.
    #[cold]
    #[inline(never)]
    fn submit_below(&mut self, limit: u32) -> bool {
        self.enter(0, None).is_ok() && self.queued < limit
    }

    /// True if there is an entry for a wait, a cancel or a message, which may use the
    /// reserve; submits the queued entries if needed.
    fn has_free_entry(&mut self) -> bool {
        let held = (self.held != RequestId::NONE) as u32;
        let all = self.io.parameters().sq_entries() - held;
        self.queued < all || self.submit_below(all)
    }

    /// Pushes a transfer, or returns it when the ring is full or no file is installed at
    /// its index. It reaches the kernel with the next [`Self::enter`].
    #[inline]
    pub fn push(&mut self, transfer: T) -> Result<(), T> {
        if self.files.slot(transfer.file()) == FileSlot::ABSENT {
            return Err(transfer);
        }
        match self.sqe_slot() {
            Some(sqe) => sqe.push(transfer),
            None => return Err(transfer),
        }
        Ok(())
    }

    /// True if [`Self::push_wait`] takes commands.
    pub fn takes_commands(&self) -> bool {
        self.io.is_wide()
    }

    /// Pushes a wait, or returns it when its table is full. `tag` is part of its completion.
    ///
    /// # Panics
    /// For a command, if the ring does not take them.
    pub fn push_wait(&mut self, wait: Wait, tag: u64) -> Result<WaitHandle, Wait> {
        let can_push = !self.polled && !self.is_forked() && self.has_free_entry();
        let Some(slot) = self.waits.free_slot().filter(|_| can_push) else { return Err(wait) };
        let (id, (wait, _)) = self.waits.fill(slot, (wait, tag));
        match wait.entry(id) {
            WaitEntry::Narrow(entry) => self.push_sqe(entry),
            WaitEntry::Wide(entry) => {
                // SAFETY: there is a free entry, and the table owns the command.
                let is_pushed = unsafe { self.io.push_command(&entry) };
                assert!(is_pushed, "a ring without commands");
                self.queued += 1;
            }
        }
        Ok(WaitHandle(id))
    }

    /// Wakes the thread that waits in the ring with descriptor `ring`. That ring
    /// then reports [`Event::Message`]. False when the queue is full or the kernel
    /// does not support messages: the caller must wake the target in another way.
    /// Some kernels complete a message only after its target has run. If it fails
    /// that late, [`Self::reap`] writes to `event`, an eventfd that also wakes the
    /// target. `event` may be written to without need.
    pub fn send_message(&mut self, ring: BorrowedFd<'_>, event: &Arc<OwnedFd>) -> bool {
        let Some(id) = self.push_message(ring, event) else { return false };
        // A busy kernel may leave entries queued.
        let is_taken = self.enter(0, None).is_ok() && self.queued() == 0;
        // An early failure is reported here: the caller may not reap for a long time.
        is_taken && !self.has_failed(id)
    }

    fn push_message(&mut self, ring: BorrowedFd<'_>, event: &Arc<OwnedFd>) -> Option<RequestId> {
        let can_send = Features::probe().is_ok_and(|features| features.message.is_enabled());
        if !can_send || self.polled || self.is_forked() || !self.has_free_entry() {
            return None;
        }
        let id = self.messages.begin(event)?;
        let target = types::Fd(ring.as_raw_fd());
        let entry = opcode::MsgRingData::new(target, 0, RequestId::MESSAGE.0, None).build();
        self.push_sqe(entry.user_data(id.0));
        self.counters.messages += 1;
        Some(id)
    }

    /// True if `id` has completed with an error. The completion stays in the queue, to be reaped.
    fn has_failed(&mut self, id: RequestId) -> bool {
        let mut completions = self.io.completion();
        let found = completions.find(|completion| completion.user_data() == id.0);
        // Its drop would consume the completions that were read.
        mem::forget(completions);
        found.is_some_and(|completion| completion.result() < 0)
    }

    /// Asks the kernel to cancel every transfer for which `matches` returns true; `matches`
    /// may mark it. Each still completes, once. A cancel waits for a free entry.
    pub fn cancel(&mut self, mut matches: impl FnMut(&mut T) -> bool) {
        let mut cancels = mem::take(&mut self.cancels);
        self.visit_in_flight(|id, transfer| {
            if matches(transfer) {
                cancels.push_back(id);
            }
        });
        self.cancels = cancels;
    }

    /// Shows all transfers in flight.
    fn visit_in_flight(&mut self, mut visit: impl FnMut(RequestId, &mut T)) {
        self.transfers.iter_mut().for_each(|(id, transfer)| visit(id, transfer));
        self.pinned.visit_in_flight(visit);
    }

    /// Requests to cancel one wait. It still completes, once.
    pub fn cancel_wait(&mut self, wait: WaitHandle) {
        if self.waits.get_mut(wait.0).is_some() {
            self.cancels.push_back(wait.0);
        }
    }

    fn push_sqe(&mut self, entry: Entry) {
        push_sqe(&mut self.io, &mut self.queued, entry);
    }

    #[cold]
    fn push_cancels(&mut self) {
        while self.queued < self.io.parameters().sq_entries()
            && let Some(id) = self.cancels.pop_front()
        {
            self.push_sqe(opcode::AsyncCancel::new(id.0).build().user_data(RequestId::INTERNAL.0));
        }
    }

    /// Submits all pushed entries, and waits until at least `wait` completions are
    /// available or `timeout` has passed. Does not wait if `wait` is 0, or if
    /// cancels are left that found no free entry: it runs pending task work (GETEVENTS) and returns.
    ///
    /// # Errors
    /// ECHILD in the child of a fork: the ring belongs to the parent. Any other error
    /// means that the kernel accepts no entries at all.
    #[inline(always)]
    pub fn enter(&mut self, wait: u32, timeout: Option<Duration>) -> Result<(), Errno> {
        if self.is_forked() {
            return Err(Errno::CHILD);
        }
        if self.held != RequestId::NONE {
            self.push_held();
        }
        if !self.cancels.is_empty() {
            self.push_cancels();
        }
        // The caller may be waiting for a request that one of the remaining cancels is to end.
        let wait = if self.cancels.is_empty() { wait } else { 0 };
        if wait > 0 {
            // The thread may sleep for a long time; dropped regions would stay pinned meanwhile.
            self.regions.unregister_dropped(&self.io);
        }
        self.counters.enters += 1;
        match sys::enter(self.fd, self.queued, wait, timeout) {
            Ok(taken) => {
                self.queued -= taken;
                if self.queued == 0 && !self.iovec_lists.is_empty() {
                    self.iovec_lists.clear();
                }
                Ok(())
            }
            // A signal, the timeout, or a full completion queue: the caller reaps and enters again.
            Err(Errno::INTR | Errno::TIME | Errno::BUSY | Errno::AGAIN) => {
                self.recount();
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Unpins the memory of regions that have been dropped. For an owner that sleeps elsewhere: [`Self::enter`] does it
    /// before it waits.
    pub fn release_dropped_regions(&mut self) {
        self.regions.unregister_dropped(&self.io);
    }

    /// After a call that failed halfway, the kernel's head of the queue gives the number of consumed entries.
    #[cold]
    fn recount(&mut self) {
        self.queued = self.io.submissions();
    }

    /// Calls `take` for every transfer of which a step has completed by now, with the result
    /// of the step. Makes no system call. [`Self::event`] then returns the other
    /// completions.
    #[inline(always)]
    pub fn reap(&mut self, mut take: impl FnMut(CompletedTransfer<'_, T>, StepResult)) {
        if self.is_forked() {
            return;
        }
        let Ring { io, transfers, pinned, waits, messages, files, events, .. } = self;
        for completion in io.completion() {
            let (id, result) = (RequestId(completion.user_data()), completion.result());
            if let Some(ended) = transfers.end(id) {
                let result = files.step_result(&*ended, result);
                take(ended, result);
            } else if id.kind() == RequestKind::Pinned {
                pinned.move_out(files, id, result);
            } else {
                events.extend(decode(waits, messages, id, result));
            }
        }
    }

    /// Calls `take` for every transfer of these slots of which a step has completed by now, with the slot and the
    /// result of the step, up to a completion of anything else, which it returns as [`Self::reap_one`] does. The
    /// transfer stays in its slot if `take` returns true; else it is moved out: see [`Self::moved_out`]. `None` when
    /// everything is reaped.
    #[inline(always)]
    pub fn reap_pinned(
        &mut self,
        slots: &PinnedSlots<T>,
        mut take: impl FnMut(u32, &T, StepResult) -> bool,
    ) -> Option<Reaped<'_, T>> {
        if self.is_forked() {
            return None;
        }
        let Ring { io, pinned, files, .. } = self;
        // Of no completion, if the slots are not this ring's.
        let (table, number) = (&**slots.table(), pinned.number_of(slots));
        let first = number.map_or(RequestId::NONE, |number| RequestId::of_pinned(number, 0));
        let mut completions = io.completion();
        let (id, result) = loop {
            let completion = completions.next()?;
            let (id, result) = (RequestId(completion.user_data()), completion.result());
            let Some(slot) = table.slot_of(first, id) else { break (id, result) };
            pinned.in_flight -= 1;
            let number = slot.slot;
            let moved = slot.end(|transfer| {
                let result = files.step_result(transfer, result);
                take(number, transfer, result)
            });
            if let Some(transfer) = moved {
                pinned.keep(files, transfer, result);
            }
        };
        drop(completions);
        Some(self.reaped(id, result))
    }

    /// The oldest pinned transfer that was moved out of its slot when a step of it had completed, with the result of
    /// the step.
    #[inline]
    pub fn moved_out(&mut self) -> Option<(T, StepResult)> {
        self.pinned.moved.pop_front()
    }

    /// Takes the oldest completion out of the kernel's queue. Makes no system call. [`Self::event`] returns what is no
    /// transfer's.
    #[inline(always)]
    pub fn reap_one(&mut self) -> Option<Reaped<'_, T>> {
        if self.is_forked() {
            return None;
        }
        let completion = self.io.completion().next()?;
        Some(self.reaped(RequestId(completion.user_data()), completion.result()))
    }

    /// A completion that was taken out of the kernel's queue.
    #[inline(always)]
    fn reaped(&mut self, id: RequestId, result: i32) -> Reaped<'_, T> {
        if let Some(ended) = self.transfers.end(id) {
            let result = self.files.step_result(&*ended, result);
            return Reaped::Transfer(ended, result);
        }
        if id.kind() == RequestKind::Pinned {
            self.pinned.move_out(&self.files, id, result);
        } else {
            self.events.extend(decode(&mut self.waits, &mut self.messages, id, result));
        }
        Reaped::Event
    }

    /// True if [`Self::event`] has one to return.
    #[inline]
    pub fn has_event(&self) -> bool {
        !self.events.is_empty()
    }

    /// The oldest completion of a wait or message that [`Self::reap`] has found.
    #[inline]
    pub fn event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// True when there is something to reap.
    pub fn has_completed(&self) -> bool {
        // SAFETY: the ring belongs to this thread and is borrowed, so no
        // other code takes completions during this check.
        !self.is_forked() && !unsafe { self.io.completion_shared() }.is_empty()
    }

    /// Transfers, waits and messages in flight.
    pub fn in_flight(&self) -> usize {
        self.transfers_in_flight() + self.waits.in_flight() + self.messages.in_flight()
    }

    /// Transfers in flight.
    #[inline]
    pub fn transfers_in_flight(&self) -> usize {
        self.transfers.in_flight() + self.pinned.in_flight
    }

    /// The same, with those that were moved out of their slots and that [`Self::moved_out`] has not returned.
    pub fn transfers_pending(&self) -> usize {
        self.transfers_in_flight() + self.pinned.moved.len()
    }

    /// Entries that the next [`Self::enter`] submits.
    #[inline]
    pub fn queued(&self) -> usize {
        self.queued as usize + (self.held != RequestId::NONE) as usize + self.cancels.len()
    }

    /// True in the child of a fork, where the ring belongs to the parent: both share
    /// the memory of its queues, so the child does not touch it.
    #[inline(always)]
    pub fn is_forked(&self) -> bool {
        self.forks != fork_count()
    }

    /// An eventfd that is readable from a completion on until [`Self::silence`].
    /// The ring's own descriptor does not work: with DEFER_TASKRUN the kernel
    /// (6.18) does not wake its pollers. After the first call every completion
    /// costs a little more.
    ///
    /// # Errors
    /// When no descriptor is left or the kernel refuses.
    pub fn notifier(&self) -> io::Result<BorrowedFd<'_>> {
        self.notifier.register(&self.io)
    }

    /// True after the first call of [`Self::notifier`].
    pub fn has_notifier(&self) -> bool {
        self.notifier.is_registered()
    }

    /// Makes the notifier unreadable until the next completion. Check for earlier
    /// completions after this call.
    pub fn silence(&self) {
        self.notifier.silence();
    }

    /// The ring's descriptor, to which other rings send messages.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as the ring, which is borrowed.
        unsafe { BorrowedFd::borrow_raw(self.descriptor_raw()) }
    }

    fn descriptor_raw(&self) -> RawFd {
        self.io.as_raw_fd()
    }

    /// Its counters.
    pub fn counters(&self) -> RingCounters {
        self.counters.read(self.notifier.reads())
    }

    /// The state of registration.
    pub fn registration(&self) -> Registration {
        Registration {
            files: self.files.count_fixed(),
            regions: self.regions.count(),
            refused: self.regions.refusal().map(str::to_owned),
        }
    }

    /// True if requests name files by index.
    pub fn has_fixed_files(&self) -> bool {
        self.files.is_fixed()
    }

    /// True if requests name registered memory by index.
    pub fn has_fixed_buffers(&self) -> bool {
        self.regions.is_enabled()
    }
}

/// The entry that [`Ring::reap_one`] has taken out of the kernel's queue.
#[derive(Debug)]
pub enum Reaped<'r, T> {
    /// A step of a transfer has completed, with this result.
    Transfer(CompletedTransfer<'r, T>, StepResult),
    /// The completion of a wait or message, or of a pinned transfer: see [`Ring::event`] and [`Ring::moved_out`].
    Event,
}

/// A free slot and a free submission entry of a ring, for one transfer.
pub struct SqeSlot<'r, T: Transfer> {
    ring: &'r mut Ring<T>,
    slot: FreeSlot,
}

impl<T: Transfer> fmt::Debug for SqeSlot<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_struct("SqeSlot").finish_non_exhaustive()
    }
}

impl<T: Transfer> SqeSlot<'_, T> {
    /// Moves the transfer into its slot and pushes its submission entry, which
    /// reaches the kernel with the next [`Ring::enter`].
    #[inline(always)]
    pub fn push(self, transfer: T) {
        let Ring { transfers, io, queued, files, regions, iovec_lists, counters, .. } = self.ring;
        let file = transfer.file();
        let (direction, offset, segment) = match transfer.step() {
            NextOp::Read(offset, TransferMemory::Single(segment)) => {
                (Direction::READ, offset, segment)
            }
            NextOp::Write(offset, TransferMemory::Single(segment)) => {
                (Direction::WRITE, offset, segment)
            }
            _ => {
                let (id, transfer) = transfers.fill(self.slot, transfer);
                let (step, file) = (transfer.step(), files.slot(file));
                let entry = slow_sqe(io, regions, iovec_lists, counters, file, step, id);
                return push_sqe(io, queued, entry);
            }
        };
        let (id, _) = transfers.fill(self.slot, transfer);
        // Each branch pushes its own entry: with one common push the entry would be copied.
        if let Some(file) = files.fixed(file)
            && let Some(index) = regions.registered_index(segment.region_id)
        {
            counters.count_fixed();
            let entry = Sqe::fixed(direction, file, offset, &segment, index);
            return push_sqe(io, queued, entry.with_id(id));
        }
        let file = files.slot(file);
        if file == FileSlot::NOP {
            return push_sqe(io, queued, nop_sqe(id));
        }
        match regions.name_of(io, &segment) {
            MemoryName::Index(index) => {
                counters.count(file, true);
                let entry = Sqe::fixed(direction, file, offset, &segment, index);
                push_sqe(io, queued, entry.with_id(id));
            }
            MemoryName::Address => {
                counters.count(file, false);
                let entry = Sqe::plain(direction, file, offset, &segment);
                push_sqe(io, queued, entry.with_id(id));
            }
            MemoryName::ReadOnlyAddress => {
                counters.count(file, false);
                let file = file_for_read_only(direction, file);
                let entry = Sqe::plain(direction, file, offset, &segment);
                push_sqe(io, queued, entry.with_id(id));
            }
        }
    }
}

/// Puts an entry into the submission queue. The caller has checked that there is a free entry.
#[inline(always)]
fn push_sqe(io: &mut Queues, queued: &mut u32, entry: Entry) {
    // SAFETY: the queue holds `queued` entries, and every caller has compared that number with its length. The ring's
    // tables own everything that the entry names until the kernel has completed it, or has read it (`iovec_lists`).
    unsafe { io.push(entry) };
    *queued += 1;
}

impl<T: Transfer> Drop for Ring<T> {
    /// Cancels all requests in flight and waits for them: until then the kernel
    /// may use their memory. Does not wait for messages, but wakes their targets in the other
    /// way. In the child of a fork nothing is touched.
    fn drop(&mut self) {
        if self.is_forked() {
            return;
        }
        // They have no memory here, and the kernel may complete them only after their targets have run.
        self.messages.fail_all();
        self.cancel(|_| true);
        let waits: Vec<_> = self.waits.iter_mut().map(|(id, _)| id).collect();
        self.cancels.extend(waits);
        while self.in_flight() > 0 {
            if let Err(error) = self.enter(1, None) {
                // Memory that the kernel may use cannot be freed, so it is leaked.
                let in_flight = self.in_flight();
                mem::forget(mem::replace(
                    &mut self.transfers,
                    Slots::new(RequestKind::Transfer, 0),
                ));
                mem::forget(mem::replace(&mut self.pinned, PinnedTables::new()));
                mem::forget(mem::replace(&mut self.waits, Slots::new(RequestKind::Wait, 0)));
                if in_flight > 0 {
                    eprintln!(
                        "uringfs: {in_flight} requests cannot be awaited ({error}); their memory is leaked"
                    );
                }
                return;
            }
            self.reap(|_, _| {});
        }
        // Without this the kernel closes the files some time after the ring, and a
        // block device stays claimed until then.
        let _ = self.io.submitter().unregister_files();
        if let RingFd::Registered(index) = self.fd {
            sys::unregister_ring(self.io.as_raw_fd(), index);
        }
    }
}
