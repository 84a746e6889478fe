//! io_uring for commands to NVMe namespaces.

use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use io_uring::squeue::Entry128;
use io_uring::{opcode, types};
use uringfs_buffer::{Buffer, RegionId};
use uringfs_errno::Errno;

use super::command::{Namespace, NvmeCommand, WriteMode};
use super::sqe::CommandSqe;
use super::status::NvmeStatus;
use crate::counters::{RawCounters, RingCounters};
use crate::fork::{self, fork_count};
use crate::in_flight::{CompletedTransfer, FreeSlot, RequestId, RequestKind, Slots, not_in_flight};
use crate::notifier::Notifier;
use crate::options::{RingOptions, build_nvme};
use crate::probe::Features;
use crate::queues::NvmeQueues;
use crate::registered::{FileSlot, FileTable, MemoryName, RegionTable, Registration};
use crate::segment::IoSegment;
use crate::sqe::build_iovecs;
use crate::sys::{self, RingFd};
use crate::transfer::{NextOp, StepResult, Transfer, TransferMemory};

/// The id of the watch.
const WATCH: RequestId = RequestId::INTERNAL;

/// io_uring for transfers of type `T`, each step of which is a command to an NVMe namespace. Belongs to the thread that
/// created it.
///
/// As a [`Ring`](crate::Ring), but commands cannot be cancelled: each ends when the controller, or its timeout, ends
/// it. With [`RingOptions::polled`] it polls for completions; flushes, too.
pub struct NvmeRing<T: Transfer> {
    io: NvmeQueues,
    fd: RingFd,
    transfers: Slots<T>,
    files: FileTable,
    /// By the index of their files.
    namespaces: Box<[Namespace]>,
    regions: RegionTable,
    /// Pushed entries that the kernel has not consumed.
    queued: u32,
    /// The length of the submission queue.
    entries: u32,
    /// Lists of vectors, each kept until its command has ended: the kernel may read it again when it retries to start
    /// the command.
    iovec_lists: Vec<(RequestId, Box<[libc::iovec]>)>,
    forks: u32,
    notifier: Notifier,
    is_polled: bool,
    /// The ring polls a descriptor: see [`Self::watch`].
    is_watching: bool,
    counters: RawCounters,
    _owned_by_thread: PhantomData<*const ()>,
}

impl<T: Transfer> fmt::Debug for NvmeRing<T> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_struct("NvmeRing")
            .field("fd", &self.fd)
            .field("queued", &self.queued)
            .finish_non_exhaustive()
    }
}

impl<T: Transfer> NvmeRing<T> {
    /// A ring with every feature that the kernel supports. Before Linux 6.1 commands use no registered memory, and are
    /// not polled for: see [`Self::is_polled`].
    ///
    /// # Errors
    /// In one line why there is no such ring, and what to do.
    pub fn new(options: &RingOptions) -> io::Result<NvmeRing<T>> {
        let features = Features::probe().map_err(io::Error::other)?;
        let options = &supported(options, features.defer_taskrun.is_enabled());
        fork::install_fork_handler();
        let transfers = options.transfers.clamp(1, 16384);
        // One more for the watch.
        let io = build_nvme(options, features, transfers + 1).map_err(|error| {
            let text = format!("NVMe passthrough needs entries of 128 bytes (Linux 5.19): {error}");
            io::Error::new(error.kind(), text)
        })?;
        let fd = if features.registered_ring.is_enabled() {
            // A thread can register 16 rings. Beyond that the ring uses its descriptor.
            sys::register_ring(io.as_raw_fd())
                .map_or(RingFd::Descriptor(io.as_raw_fd()), RingFd::Registered)
        } else {
            RingFd::Descriptor(io.as_raw_fd())
        };
        Ok(NvmeRing {
            fd,
            transfers: Slots::new(RequestKind::Transfer, transfers),
            files: FileTable::new(&io, options.files, options.fixed_files),
            namespaces: vec![Namespace::ABSENT; options.files as usize].into(),
            regions: RegionTable::new(&io, options.fixed_buffers),
            queued: 0,
            entries: io.params().sq_entries(),
            iovec_lists: Vec::new(),
            forks: fork_count(),
            notifier: Notifier::default(),
            is_polled: options.polled,
            is_watching: false,
            counters: RawCounters::default(),
            io,
            _owned_by_thread: PhantomData,
        })
    }

    /// Puts the character device of a namespace into the ring's table. The ring keeps it open until [`Self::remove`];
    /// the caller may close its descriptor.
    ///
    /// # Errors
    /// When no descriptor is left (EMFILE) or `index` is not in the table.
    ///
    /// # Panics
    /// When `index` is in use.
    pub fn install(
        &mut self,
        index: u32,
        device: BorrowedFd<'_>,
        namespace: Namespace,
    ) -> io::Result<()> {
        self.files.install(&self.io, index, device)?;
        self.namespaces[index as usize] = namespace;
        Ok(())
    }

    /// Takes a namespace out of the table.
    ///
    /// # Errors
    /// EBUSY while a transfer names it, EBADF when its slot is empty.
    pub fn remove(&mut self, index: u32) -> Result<(), Errno> {
        if self.transfers.iter_mut().any(|(_, transfer)| transfer.file() == index) {
            return Err(Errno::BUSY);
        }
        self.files.remove(&self.io, index)?;
        self.namespaces[index as usize] = Namespace::ABSENT;
        Ok(())
    }

    /// Reserves a slot and a submission entry for one transfer. Submits, by a system call, when the submission queue is
    /// full. `None` without a free slot or entry, and in the child of a fork.
    #[inline(always)]
    pub fn sqe_slot(&mut self) -> Option<NvmeSqeSlot<'_, T>> {
        let slot = self.transfers.free_slot()?;
        if self.is_forked() || self.queued >= self.entries && !self.submit_some() {
            return None;
        }
        Some(NvmeSqeSlot { ring: self, slot })
    }

    #[cold]
    #[inline(never)]
    fn submit_some(&mut self) -> bool {
        self.enter(0, None).is_ok() && self.queued < self.entries
    }

    /// Pushes a transfer, or returns it when the ring is full or no namespace is installed at its index. It reaches the
    /// kernel with the next [`Self::enter`].
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

    /// Makes a wait in [`Self::enter`] end when `descriptor` becomes readable, once. False if there is no free entry,
    /// or if the ring polls for completions, which cannot wait.
    pub fn watch(&mut self, descriptor: BorrowedFd<'_>) -> bool {
        let can_push = !self.is_polled && !self.is_forked() && self.queued < self.entries;
        if can_push && !self.is_watching {
            let poll = opcode::PollAdd::new(types::Fd(descriptor.as_raw_fd()), libc::POLLIN as u32);
            push_sqe(&mut self.io, &mut self.queued, poll.build().user_data(WATCH.0).into());
            self.is_watching = true;
        }
        self.is_watching
    }

    /// True from [`Self::watch`] on until [`Self::reap`] finds that the descriptor has become readable.
    #[inline(always)]
    pub fn is_watching(&self) -> bool {
        self.is_watching
    }

    /// True if it polls for completions: then [`Self::enter`] never sleeps.
    pub fn is_polled(&self) -> bool {
        self.is_polled
    }

    /// Calls `mark` for every transfer in flight, so that it can remember that it was cancelled: the kernel cancels
    /// none.
    pub fn mark_in_flight(&mut self, mut mark: impl FnMut(&mut T)) {
        self.transfers.iter_mut().for_each(|(_, transfer)| mark(transfer));
    }

    /// Submits all pushed entries, and waits until at least `wait` completions are available or `timeout` has passed.
    /// Does not wait if `wait` is 0: it runs pending task work (GETEVENTS) and returns.
    ///
    /// # Errors
    /// As [`Ring::enter`](crate::Ring::enter).
    #[inline(always)]
    pub fn enter(&mut self, wait: u32, timeout: Option<Duration>) -> Result<(), Errno> {
        if self.is_forked() {
            return Err(Errno::CHILD);
        }
        if wait > 0 {
            // The thread may sleep for a long time; dropped regions would stay pinned meanwhile.
            self.regions.unregister_dropped(&self.io);
        }
        self.counters.enters += 1;
        match sys::enter(self.fd, self.queued, wait, timeout) {
            Ok(taken) => {
                self.queued -= taken;
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
        self.queued = self.io.submission().len() as u32;
    }

    /// Calls `take` for every transfer whose command has ended: see [`Self::reap_one`].
    #[inline(always)]
    pub fn reap(
        &mut self,
        mut take: impl FnMut(CompletedTransfer<'_, T>, StepResult),
        report: fn(&T, NvmeStatus),
    ) {
        while let Some((transfer, result)) = self.reap_one(report) {
            take(transfer, result);
        }
    }

    /// Takes the oldest completion out of the kernel's queue: a transfer whose command has ended, with the result of
    /// the step: the bytes moved, or the errno of its [`NvmeStatus`]. Before that calls `report` with the status,
    /// unless the same step may succeed if it is tried again. Makes no system call.
    #[inline(always)]
    pub fn reap_one(
        &mut self,
        report: fn(&T, NvmeStatus),
    ) -> Option<(CompletedTransfer<'_, T>, StepResult)> {
        if self.is_forked() {
            return None;
        }
        let (id, result) = loop {
            let completion = self.io.completion().next()?;
            match RequestId(completion.user_data()) {
                WATCH => self.is_watching = false,
                id => break (id, completion.result()),
            }
        };
        let ended = self.transfers.end(id).unwrap_or_else(|| not_in_flight());
        let result = match result {
            0 => moved(&self.namespaces, &*ended),
            failed => failure(&self.namespaces, &*ended, failed, report),
        };
        if !self.iovec_lists.is_empty() {
            self.iovec_lists.retain(|(owner, _)| *owner != id);
        }
        Some((ended, StepResult(result)))
    }

    /// True when there is something to reap.
    pub fn has_completed(&self) -> bool {
        // SAFETY: the ring belongs to this thread and is borrowed, so no other code takes completions during this
        // check.
        !self.is_forked() && !unsafe { self.io.completion_shared() }.is_empty()
    }

    /// Transfers in flight.
    #[inline]
    pub fn transfers_in_flight(&self) -> usize {
        self.transfers.in_flight()
    }

    /// Entries that the next [`Self::enter`] submits.
    #[inline]
    pub fn queued(&self) -> usize {
        self.queued as usize
    }

    /// True in the child of a fork, where the ring belongs to the parent.
    #[inline(always)]
    pub fn is_forked(&self) -> bool {
        self.forks != fork_count()
    }

    /// As [`Ring::notifier`](crate::Ring::notifier).
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

    /// Makes the notifier unreadable until the next completion. Check for earlier completions after this call.
    pub fn silence(&self) {
        self.notifier.silence();
    }

    /// Its counters. It sends no messages.
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
}

/// The options without those that commands do not have in this kernel: registered memory and polling came with Linux
/// 6.1, as DEFER_TASKRUN did. Before, the kernel refuses each command of this kind with EINVAL.
fn supported(options: &RingOptions, has_defer_taskrun: bool) -> RingOptions {
    RingOptions {
        fixed_buffers: options.fixed_buffers && has_defer_taskrun,
        polled: options.polled && has_defer_taskrun,
        ..options.clone()
    }
}

/// The bytes that the step of a successful command has moved.
#[inline(always)]
fn moved<T: Transfer>(namespaces: &[Namespace], ended: &T) -> i32 {
    match ended.step() {
        NextOp::Read(address, memory)
        | NextOp::Write(address, memory)
        | NextOp::WriteDurably(address, memory) => {
            let namespace = &namespaces[ended.file() as usize];
            namespace.step_length(address, memory.length()) as i32
        }
        NextOp::Flush => 0,
    }
}

/// The result of a failed command: a negative errno. A range behind the end is none for the block device, which moves
/// nothing there: a read returns 0 bytes, a write ENOSPC.
#[cold]
fn failure<T: Transfer>(
    namespaces: &[Namespace],
    ended: &T,
    result: i32,
    report: fn(&T, NvmeStatus),
) -> i32 {
    let status = match u32::try_from(result) {
        Ok(status) => NvmeStatus::from_result(status),
        Err(_) if result == -libc::EINTR => NvmeStatus::ABORTED_BY_HOST,
        Err(_) => return result,
    };
    let end = namespaces[ended.file() as usize].size;
    match ended.step() {
        NextOp::Read(address, _) if status.is_behind_the_end() && address >= end => 0,
        NextOp::Write(address, _) | NextOp::WriteDurably(address, _)
            if status.is_behind_the_end() && address >= end =>
        {
            -libc::ENOSPC
        }
        _ => {
            let errno = status.step_errno(ended.tries());
            if errno != Errno::AGAIN {
                report(ended, status);
            }
            -errno.raw_os_error()
        }
    }
}

/// A free slot and a free submission entry of an [`NvmeRing`], for one transfer.
pub struct NvmeSqeSlot<'r, T: Transfer> {
    ring: &'r mut NvmeRing<T>,
    slot: FreeSlot,
}

impl<T: Transfer> fmt::Debug for NvmeSqeSlot<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_struct("NvmeSqeSlot").finish_non_exhaustive()
    }
}

impl<T: Transfer> NvmeSqeSlot<'_, T> {
    /// Moves the transfer into its slot and pushes its command, which reaches the kernel with the next
    /// [`NvmeRing::enter`].
    #[inline(always)]
    pub fn push(self, transfer: T) {
        let NvmeRing { transfers, io, queued, files, namespaces, regions, counters, .. } =
            self.ring;
        let index = transfer.file();
        let file = files.slot(index);
        let namespace = namespaces.get(index as usize).unwrap_or(&Namespace::ABSENT);
        let (is_read, command, segment) = match transfer.step() {
            NextOp::Read(address, TransferMemory::Single(segment)) => {
                (true, read(namespace, address, &segment), segment)
            }
            NextOp::Write(address, TransferMemory::Single(segment)) if !namespace.read_only => {
                (false, write(namespace, WriteMode::Cached, address, &segment), segment)
            }
            _ => return self.push_slow(transfer),
        };
        let (id, _) = transfers.fill(self.slot, transfer);
        match regions.name_of(io, &segment) {
            MemoryName::Index(index) => {
                counters.count(file, true);
                push_sqe(io, queued, CommandSqe::fixed(file, command, index).with_id(id));
            }
            MemoryName::Address => {
                counters.count(file, false);
                push_sqe(io, queued, CommandSqe::plain(file, command).with_id(id));
            }
            MemoryName::ReadOnlyAddress => {
                counters.count(file, false);
                let file = if is_read { FileSlot::ABSENT } else { file };
                push_sqe(io, queued, CommandSqe::plain(file, command).with_id(id));
            }
        }
    }

    /// Pushes any transfer other than a read or a volatile write of one segment.
    #[cold]
    #[inline(never)]
    fn push_slow(self, transfer: T) {
        let NvmeRing {
            transfers,
            io,
            queued,
            files,
            namespaces,
            regions,
            iovec_lists,
            counters,
            ..
        } = self.ring;
        let index = transfer.file();
        let mut file = files.slot(index);
        let namespace = *namespaces.get(index as usize).unwrap_or(&Namespace::ABSENT);
        let (id, transfer) = transfers.fill(self.slot, transfer);
        let (mode, address, memory) = match transfer.step() {
            NextOp::Flush => {
                let entry = match namespace.volatile_cache {
                    true => CommandSqe::plain(file, namespace.flush()).with_id(id),
                    false => opcode::Nop::new().build().user_data(id.0).into(),
                };
                return push_sqe(io, queued, entry);
            }
            NextOp::Read(address, memory) => (None, address, memory),
            NextOp::Write(address, memory) => (Some(WriteMode::Cached), address, memory),
            NextOp::WriteDurably(address, memory) => {
                (Some(WriteMode::ForceUnitAccess), address, memory)
            }
        };
        let is_read_only = |buffer: &Buffer| buffer.region_id() == RegionId::READ_ONLY;
        let is_refused = match (mode, memory) {
            (Some(_), _) => namespace.read_only,
            (None, TransferMemory::Single(segment)) => segment.region_id == RegionId::READ_ONLY,
            (None, TransferMemory::Vectored { buffers, .. }) => buffers.iter().any(is_read_only),
        };
        if is_refused {
            // The kernel returns EBADF, as it does for a descriptor that is not open for this.
            file = FileSlot::ABSENT;
        }
        let entry = match memory {
            TransferMemory::Single(segment) => {
                let command = match mode {
                    None => read(&namespace, address, &segment),
                    Some(mode) => write(&namespace, mode, address, &segment),
                };
                match regions.name_of(io, &segment) {
                    MemoryName::Index(index) => {
                        counters.count(file, true);
                        CommandSqe::fixed(file, command, index)
                    }
                    MemoryName::Address | MemoryName::ReadOnlyAddress => {
                        counters.count(file, false);
                        CommandSqe::plain(file, command)
                    }
                }
            }
            TransferMemory::Vectored { buffers, skip, length } => {
                counters.count(file, false);
                let length = namespace.step_length(address, length);
                let command = match mode {
                    None => namespace.read(address, length, 0),
                    Some(mode) => namespace.write(mode, address, length, 0),
                };
                let iovecs = build_iovecs(buffers, skip, length.into());
                let (list, count) = (iovecs.as_ptr() as u64, iovecs.len() as u32);
                iovec_lists.push((id, iovecs));
                CommandSqe::vectored(file, command.with_memory(list, count))
            }
        };
        push_sqe(io, queued, entry.with_id(id));
    }
}

#[inline(always)]
fn read(namespace: &Namespace, address: u64, segment: &IoSegment) -> NvmeCommand {
    let length = namespace.step_length(address, segment.length.into());
    namespace.read(address, length, segment.pointer.as_ptr() as u64)
}

#[inline(always)]
fn write(namespace: &Namespace, mode: WriteMode, address: u64, segment: &IoSegment) -> NvmeCommand {
    let length = namespace.step_length(address, segment.length.into());
    namespace.write(mode, address, length, segment.pointer.as_ptr() as u64)
}

/// Puts an entry into the submission queue. The caller has checked that there is a free entry.
#[inline(always)]
fn push_sqe(io: &mut NvmeQueues, queued: &mut u32, entry: Entry128) {
    // SAFETY: the queue holds `queued` entries, and the caller has compared that number with its length. The ring's
    // tables own everything that the entry names until its command has ended.
    let pushed = unsafe { io.submission().push(&entry) };
    debug_assert!(pushed.is_ok());
    *queued += 1;
}

impl<T: Transfer> Drop for NvmeRing<T> {
    /// Waits for all commands in flight: until then the controller may use their memory. In the child of a fork nothing
    /// is touched.
    fn drop(&mut self) {
        if self.is_forked() {
            return;
        }
        while self.transfers_in_flight() > 0 {
            if let Err(error) = self.enter(1, None) {
                // Memory that the kernel may use cannot be freed, so it is leaked.
                let in_flight = self.transfers_in_flight();
                mem::forget(mem::replace(
                    &mut self.transfers,
                    Slots::new(RequestKind::Transfer, 0),
                ));
                mem::forget(mem::take(&mut self.iovec_lists));
                eprintln!(
                    "uringfs: {in_flight} commands cannot be awaited ({error}); their memory is leaked"
                );
                return;
            }
            self.reap(|_, _| {}, |_, _| {});
        }
        let _ = self.io.submitter().unregister_files();
        if let RingFd::Registered(index) = self.fd {
            sys::unregister_ring(self.io.as_raw_fd(), index);
        }
    }
}

#[cfg(test)]
mod tests;
