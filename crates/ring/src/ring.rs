//! The ring: push, enter, reap. What is pushed is owned by the ring's table
//! until the kernel has answered for it.

use std::collections::VecDeque;
use std::hint;
use std::io;
use std::marker::PhantomData;
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use io_uring::squeue::Entry;
use io_uring::{IoUring, opcode, types};
use rustix::io::Errno;

use crate::counters::{RawCounters, RingCounters};
use crate::event::{Event, decode};
use crate::fork::{self, fork_count};
use crate::in_flight::{Ended, FreeSlot, RequestId, RequestKind, Slots};
use crate::message::Messages;
use crate::notifier::Notifier;
use crate::probe::Features;
use crate::registered::{FileSlot, FileTable, RegionTable, Registration};
use crate::setup::{RESERVE, RingOptions, build};
use crate::sqe::{Direction, Sqe, nop_sqe, slow_sqe};
use crate::sys::{self, RingFd};
use crate::transfer::{NextOp, StepResult, Transfer, TransferMemory};
use crate::wait::{Wait, WaitHandle};

#[cfg(test)]
mod tests;

/// io_uring for transfers of type `T`. Belongs to the thread that made it.
pub struct Ring<T: Transfer> {
    io: IoUring,
    fd: RingFd,
    transfers: Slots<T>,
    waits: Slots<(Wait, u64)>,
    messages: Messages,
    files: FileTable,
    regions: RegionTable,
    /// Entries pushed that the kernel has not taken.
    queued: u32,
    /// Transfers may be pushed while fewer are queued.
    transfer_limit: u32,
    /// Lists of pieces of memory, until the kernel has read them.
    iovec_lists: Vec<Box<[libc::iovec]>>,
    /// Cancels that wait for room in the submission queue.
    cancels: VecDeque<RequestId>,
    forks: u32,
    polled: bool,
    notifier: Notifier,
    /// Found while reaping, and not asked for yet.
    events: VecDeque<Event>,
    counters: RawCounters,
    _owned_by_thread: PhantomData<*const ()>,
}

impl<T: Transfer> Ring<T> {
    /// A ring with every feature that the machine gives.
    ///
    /// # Errors
    /// Why there is none and what to do, in one line.
    pub fn new(options: &RingOptions) -> io::Result<Ring<T>> {
        let features = Features::probe().map_err(io::Error::other)?;
        fork::watch_forks();
        let transfers = options.transfers.clamp(1, 16384);
        let io = build(options, features, transfers + options.waits + RESERVE)?;
        let fd = if features.registered_ring.is_kept() {
            // A thread has 16 places; when they are out the descriptor serves.
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
            waits: Slots::new(RequestKind::Wait, options.waits),
            messages: Messages::default(),
            files,
            regions,
            queued: 0,
            transfer_limit: io.params().sq_entries() - RESERVE,
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
    /// [`Self::remove`]; the caller may close his descriptor.
    ///
    /// # Errors
    /// When no descriptor is left (EMFILE) or `index` is not in the table.
    ///
    /// # Panics
    /// When `index` is taken.
    pub fn install(&mut self, index: u32, file: BorrowedFd<'_>) -> io::Result<()> {
        self.files.install(&self.io, index, file)
    }

    /// Makes every transfer that names `index` the kernel's NOP, for measuring
    /// the way there and back.
    ///
    /// # Errors
    /// When `index` is not in the table.
    ///
    /// # Panics
    /// When `index` is taken.
    pub fn install_nop(&mut self, index: u32) -> io::Result<()> {
        self.files.install_nop(index)
    }

    /// Takes a file out of the table.
    ///
    /// # Errors
    /// EBUSY while a transfer names it, EBADF when its slot is empty.
    pub fn remove(&mut self, index: u32) -> Result<(), Errno> {
        if self.transfers.iter_mut().any(|(_, transfer)| transfer.file() == index) {
            return Err(Errno::BUSY);
        }
        self.files.remove(&self.io, index)
    }

    /// Room for one transfer: a slot and an entry. None when either is short,
    /// and in the child of a fork.
    #[inline(always)]
    pub fn room(&mut self) -> Option<SqeSlot<'_, T>> {
        let slot = self.transfers.free_slot()?;
        if self.is_forked()
            || self.queued >= self.transfer_limit && !self.submit_below(self.transfer_limit)
        {
            return None;
        }
        Some(SqeSlot { ring: self, slot })
    }

    /// Has the kernel take what is queued, so that fewer than `room` are. False
    /// when it takes nothing.
    #[cold]
    #[inline(never)]
    fn submit_below(&mut self, limit: u32) -> bool {
        self.enter(0, None).is_ok() && self.queued < limit
    }

    /// The same for what may use the reserve.
    fn has_free_entry(&mut self) -> bool {
        let all = self.io.params().sq_entries();
        self.queued < all || self.submit_below(all)
    }

    /// Takes a transfer, or gives it back when there is no room or no file at
    /// its index. It reaches the kernel with the next [`Self::enter`].
    #[inline]
    pub fn push(&mut self, transfer: T) -> Result<(), T> {
        if self.files.slot(transfer.file()) == FileSlot::ABSENT {
            return Err(transfer);
        }
        match self.room() {
            Some(room) => room.push(transfer),
            None => return Err(transfer),
        }
        Ok(())
    }

    /// Takes a wait, or gives it back when its table is full. `tag` comes back with it.
    pub fn push_wait(&mut self, wait: Wait, tag: u64) -> Result<WaitHandle, Wait> {
        let can_push = !self.polled && !self.is_forked() && self.has_free_entry();
        let Some(slot) = self.waits.free_slot().filter(|_| can_push) else { return Err(wait) };
        let (id, (wait, _)) = self.waits.fill(slot, (wait, tag));
        let entry = wait.entry().user_data(id.0);
        self.push_sqe(entry);
        Ok(WaitHandle(id))
    }

    /// Wakes the thread that waits in the ring behind `ring`, whose
    /// [`Self::reap`] then answers [`Event::Message`]. False when there is no
    /// room or the kernel cannot: the caller takes another way. Some kernels
    /// answer for a message only when its target has run; should it fail so late, [`Self::reap`] writes to `event`, an eventfd that wakes
    /// the target, too. It may be written to without need.
    pub fn send_message(&mut self, ring: BorrowedFd<'_>, event: &Arc<OwnedFd>) -> bool {
        let Some(id) = self.push_message(ring, event) else { return false };
        // The kernel may have been too busy to take it.
        let is_taken = self.enter(0, None).is_ok() && self.queued() == 0;
        // The caller may not come to reap for long.
        is_taken && !self.has_failed(id)
    }

    fn push_message(&mut self, ring: BorrowedFd<'_>, event: &Arc<OwnedFd>) -> Option<RequestId> {
        let can_send = Features::probe().is_ok_and(|features| features.message.is_kept());
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

    /// True when the kernel has answered `id` with an error. The answer stays, to be reaped.
    fn has_failed(&mut self, id: RequestId) -> bool {
        let mut completions = self.io.completion();
        let answer = completions.find(|completion| completion.user_data() == id.0);
        // Dropped, it would take what was looked at.
        mem::forget(completions);
        answer.is_some_and(|answer| answer.result() < 0)
    }

    /// Asks for every transfer that `matches` to end soon; `matches` may mark
    /// it. Each still completes, once. A cancel is kept until there is room.
    pub fn cancel(&mut self, mut matches: impl FnMut(&mut T) -> bool) {
        for (id, transfer) in self.transfers.iter_mut() {
            if matches(transfer) {
                self.cancels.push_back(id);
            }
        }
    }

    /// Asks for one wait to end soon. It still completes, once.
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
        while self.queued < self.io.params().sq_entries()
            && let Some(id) = self.cancels.pop_front()
        {
            self.push_sqe(opcode::AsyncCancel::new(id.0).build().user_data(RequestId::INTERNAL.0));
        }
    }

    /// Hands everything pushed to the kernel, and waits until at least `wait`
    /// completions are there or `timeout` has passed. With `wait` 0, and while
    /// cancels are left that have found no room, it lets the kernel finish what is
    /// ready and returns.
    ///
    /// # Errors
    /// ECHILD in the child of a fork: the ring is its parent's. Anything else
    /// means that the kernel takes no entries at all.
    #[inline(always)]
    pub fn enter(&mut self, wait: u32, timeout: Option<Duration>) -> Result<(), Errno> {
        if self.is_forked() {
            return Err(Errno::CHILD);
        }
        if !self.cancels.is_empty() {
            self.push_cancels();
        }
        // The wait may be for a request that one of the remaining cancels is for.
        let wait = if self.cancels.is_empty() { wait } else { 0 };
        if wait > 0 {
            // It may sleep for long, and they are pinned so long.
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
            // A signal, the timeout, or a full completion queue: reap and come again.
            Err(Errno::INTR | Errno::TIME | Errno::BUSY | Errno::AGAIN) => {
                self.recount();
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// After a call that failed half way the kernel's head says what it took.
    #[cold]
    fn recount(&mut self) {
        self.queued = self.io.submission().len() as u32;
    }

    /// Hands over every transfer that has ended, or a step of it, with what
    /// that has come to; makes no system call. [`Self::event`] returns the other completions
    /// afterwards.
    #[inline(always)]
    pub fn reap(&mut self, mut take: impl FnMut(Ended<'_, T>, StepResult)) {
        if self.is_forked() {
            return;
        }
        for completion in self.io.completion() {
            let id = RequestId(completion.user_data());
            let mut result = completion.result();
            if id.kind() == RequestKind::Transfer {
                let ended = self.transfers.end(id);
                if result == 0 && self.files.slot(ended.file()) == FileSlot::NOP {
                    // A NOP answers 0 for the bytes that were not moved.
                    result = ended.step().length() as i32;
                }
                take(ended, StepResult(result));
            } else {
                self.events.extend(decode(&mut self.waits, &mut self.messages, id, result));
            }
        }
    }

    /// Something else that [`Self::reap`] has found, oldest first.
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
        self.transfers.in_flight() + self.waits.in_flight() + self.messages.in_flight()
    }

    /// Transfers in flight.
    #[inline]
    pub fn transfers_in_flight(&self) -> usize {
        self.transfers.in_flight()
    }

    /// Entries that the next [`Self::enter`] hands over.
    #[inline]
    pub fn queued(&self) -> usize {
        self.queued as usize + self.cancels.len()
    }

    /// True in the child of a fork, where the ring is its parent's: its queues
    /// are memory that both share, so nothing here touches them.
    #[inline(always)]
    pub fn is_forked(&self) -> bool {
        self.forks != fork_count()
    }

    /// Readable from a completion on until [`Self::silence`]. The ring's own
    /// descriptor does not do: with DEFER_TASKRUN the kernel (6.18) does not
    /// wake those who poll it. Every completion costs a little more from the
    /// first call on.
    ///
    /// # Errors
    /// When no descriptor is left or the kernel refuses.
    pub fn notifier(&self) -> io::Result<BorrowedFd<'_>> {
        self.notifier.register(&self.io)
    }

    /// True once [`Self::notifier`] has been asked for.
    pub fn has_notifier(&self) -> bool {
        self.notifier.is_registered()
    }

    /// Makes the notifier unreadable until the next completion. What has
    /// completed before has to be looked for afterwards.
    pub fn silence(&self) {
        self.notifier.silence();
    }

    /// The ring's descriptor: what other rings send messages to.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as the ring, which is borrowed.
        unsafe { BorrowedFd::borrow_raw(self.descriptor_raw()) }
    }

    fn descriptor_raw(&self) -> RawFd {
        self.io.as_raw_fd()
    }

    /// Its counters.
    pub fn counters(&self) -> RingCounters {
        self.counters.read()
    }

    /// The state of registration.
    pub fn registration(&self) -> Registration {
        Registration {
            files: self.files.count_fixed(),
            regions: self.regions.count(),
            refused: self.regions.refusal().map(str::to_owned),
        }
    }

    /// True when files are named by index.
    pub fn has_fixed_files(&self) -> bool {
        self.files.is_fixed()
    }

    /// True when memory of pools is named by index, where it can be registered.
    pub fn has_fixed_buffers(&self) -> bool {
        self.regions.is_enabled()
    }
}

/// Room for one transfer in a ring.
pub struct SqeSlot<'r, T: Transfer> {
    ring: &'r mut Ring<T>,
    slot: FreeSlot,
}

impl<T: Transfer> SqeSlot<'_, T> {
    /// Moves the transfer into its slot and pushes the entry that stands for
    /// it. It reaches the kernel with the next [`Ring::enter`].
    #[inline(always)]
    pub fn push(self, transfer: T) {
        let Ring { transfers, io, queued, files, regions, iovec_lists, counters, .. } = self.ring;
        let file = files.slot(transfer.file());
        let (direction, offset, segment) = match transfer.step() {
            NextOp::Read(offset, TransferMemory::Single(segment)) => {
                (Direction::READ, offset, segment)
            }
            NextOp::Write(offset, TransferMemory::Single(segment)) => {
                (Direction::WRITE, offset, segment)
            }
            _ => {
                let (id, transfer) = transfers.fill(self.slot, transfer);
                let step = transfer.step();
                let entry = slow_sqe(io, regions, iovec_lists, counters, file, step, id);
                return push_sqe(io, queued, entry);
            }
        };
        let (id, _) = transfers.fill(self.slot, transfer);
        if file == FileSlot::NOP {
            return push_sqe(io, queued, nop_sqe(id));
        }
        // Each is pushed where it is made: joined, they would be copied.
        match regions.index_of(io, &segment) {
            Some(index) => {
                counters.count(file, true);
                let entry = Sqe::fixed(direction, file, offset, &segment, index);
                push_sqe(io, queued, entry.with_id(id));
            }
            None => {
                counters.count(file, false);
                let entry = Sqe::plain(direction, file, offset, &segment);
                push_sqe(io, queued, entry.with_id(id));
            }
        }
    }
}

/// Puts an entry into the submission queue, which the caller has seen to have room.
#[inline(always)]
fn push_sqe(io: &mut IoUring, queued: &mut u32, entry: Entry) {
    let mut queue = io.submission();
    // SAFETY: `queued` entries are in it, and every caller has compared that
    // with its length.
    unsafe { hint::assert_unchecked(!queue.is_full()) };
    // SAFETY: what the entry names is owned by the ring's tables until the
    // kernel has answered for it, or until it has read it (`iovec_lists`).
    let pushed = unsafe { queue.push(&entry) };
    debug_assert!(pushed.is_ok());
    *queued += 1;
}

impl<T: Transfer> Drop for Ring<T> {
    /// Cancels what is in flight and waits for it: until then its memory is
    /// the kernel's. In the child of a fork nothing is touched.
    fn drop(&mut self) {
        if self.is_forked() {
            return;
        }
        self.cancel(|_| true);
        let waits: Vec<_> = self.waits.iter_mut().map(|(id, _)| id).collect();
        self.cancels.extend(waits);
        while self.in_flight() > 0 {
            if let Err(error) = self.enter(1, None) {
                self.messages.fail_all();
                // Memory in the kernel's hands cannot be freed, so it is leaked.
                let in_flight = self.in_flight();
                mem::forget(mem::replace(
                    &mut self.transfers,
                    Slots::new(RequestKind::Transfer, 0),
                ));
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
        // Else the kernel closes them some time after the ring, and a block
        // device stays claimed as long.
        let _ = self.io.submitter().unregister_files();
        if let RingFd::Registered(index) = self.fd {
            sys::unregister_ring(self.io.as_raw_fd(), index);
        }
    }
}
