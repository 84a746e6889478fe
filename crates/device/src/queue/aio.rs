//! Linux AIO: asynchronous direct I/O for machines where io_uring is forbidden or
//! missing. One system call submits a batch. Completions are read from the ring that
//! the kernel shares (fs/aio.c), without a system call.
//!
//! Only direct I/O is asynchronous; buffered I/O is done inside the call. So are
//! discards and zeroing, which AIO does not support.

#![allow(unsafe_code)]

mod context;

use std::cell::Cell;
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr;
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};
use uringfs_errno::Errno;

use self::context::{Context, ControlBlock, RESFD};
use crate::inner::DeviceInner;
use crate::interface::backend::KernelTarget;
use crate::interface::queue::{Queue, Ready};
use crate::request::{Durability, Op, Payload, Request, StepCompletion, Tag};

const PREAD: u16 = 0;
const PWRITE: u16 = 1;
const FDSYNC: u16 = 3;
const PREADV: u16 = 7;
const PWRITEV: u16 = 8;
/// When this many bytes are pushed and nothing is in flight, they are submitted at once, so that the device begins while
/// the caller prepares more. The rest of the batch shares a system call.
const EARLY_BYTES: u64 = 64 << 10;

/// A queue over Linux AIO.
pub struct AioQueue {
    /// The first field, so that it is dropped first: see its drop.
    context: Context,
    core: Arc<DeviceInner>,
    notifier: OwnedFd,
    /// The requests, from push to reap, each with its control block. io_cancel
    /// identifies a request by the address of its control block, so that stays in place.
    slots: Box<[Option<Request>]>,
    iocbs: Box<[ControlBlock]>,
    free: Vec<u32>,
    /// Slots pushed and not submitted.
    pushed: Vec<u32>,
    /// The bytes of `pushed`, for [`EARLY_BYTES`].
    pushed_bytes: u64,
    /// The control blocks and vectors of the batch that is being submitted; kept to reuse their memory.
    batch: Vec<*mut ControlBlock>,
    vectors: Vec<libc::iovec>,
    /// Completed, without the kernel.
    ended: VecDeque<StepCompletion>,
    /// The number of requests submitted and not reaped.
    in_kernel: usize,
    /// The reaped completions whose signals were not read from the notifier yet. Negative: completions that were not
    /// reaped, and whose signals were read.
    unread_signals: Cell<i64>,
    /// All system calls except those that the context counts itself.
    system_calls: Cell<u64>,
}

impl fmt::Debug for AioQueue {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_struct("AioQueue").field("in_kernel", &self.in_kernel).finish_non_exhaustive()
    }
}

impl AioQueue {
    /// A queue to one device, with at most `depth` requests in flight.
    ///
    /// # Errors
    /// `Unsupported` for a device without a descriptor; else in one line why the
    /// kernel refuses, and what to do.
    pub fn new(core: Arc<DeviceInner>, depth: usize) -> io::Result<AioQueue> {
        if !matches!(core.backend().kernel_target(), KernelTarget::Descriptor(_)) {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                format!("Linux AIO: {} is not a file", core.backend().description()),
            ));
        }
        let slots = u32::try_from(depth.max(1)).unwrap_or(u32::MAX);
        let context = Context::new(slots)?;
        Ok(AioQueue {
            context,
            core,
            notifier: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            slots: (0..slots).map(|_| None).collect(),
            iocbs: vec![ControlBlock::default(); slots as usize].into(),
            free: (0..slots).rev().collect(),
            pushed: Vec::with_capacity(slots as usize),
            pushed_bytes: 0,
            batch: Vec::with_capacity(slots as usize),
            vectors: Vec::new(),
            ended: VecDeque::with_capacity(slots as usize),
            in_kernel: 0,
            unread_signals: Cell::new(0),
            system_calls: Cell::new(0),
        })
    }

    fn end(&mut self, slot: u32, result: Result<u32, Errno>) {
        let request = self.slots[slot as usize].take().expect("the slot is in use");
        self.free.push(slot);
        self.ended.push_back(StepCompletion { request, result });
    }

    /// Executes the requests that AIO does not support, and collects the control blocks of the others in `batch`.
    fn prepare(&mut self) {
        let is_async = |request: &Request| matches!(request.op, Op::Read | Op::Write | Op::Flush);
        // Reserved in full: the control blocks point to the vectors, which must not move.
        let segments = self.pushed.iter().map(|slot| match &self.slots[*slot as usize] {
            Some(Request { payload: Payload::Buffers(buffers), .. }) => buffers.len(),
            _ => 0,
        });
        let segments = segments.sum();
        self.vectors.clear();
        self.vectors.reserve(segments);
        for position in 0..self.pushed.len() {
            let slot = self.pushed[position];
            let request = self.slots[slot as usize].as_mut().expect("pushed");
            if request.is_cancelled() {
                self.end(slot, Err(Errno::CANCELED));
            } else if !is_async(request) {
                let result = self.core.perform(request);
                self.count_calls(self.core.calls_to_perform());
                self.end(slot, result);
            } else if let Some(iocb) = self.build_iocb(slot) {
                self.iocbs[slot as usize] = iocb;
                self.batch.push(&raw mut self.iocbs[slot as usize]);
            } else {
                self.end(slot, Err(Errno::INVAL));
            }
        }
        self.pushed.clear();
        self.pushed_bytes = 0;
    }

    /// Submits all pushed requests.
    fn submit_batch(&mut self) {
        self.prepare();
        let mut start = 0;
        while start < self.batch.len() {
            let rest = &mut self.batch[start..];
            // SAFETY: the control blocks stay in place, and name memory of requests in
            // `slots`, which are kept until their events are taken. The context
            // is dropped before the requests.
            match unsafe { self.context.submit(rest) } {
                Ok(taken) => {
                    start += taken;
                    self.in_kernel += taken;
                }
                // Only the first of the rest is refused.
                Err(error) => {
                    // SAFETY: points into `iocbs`.
                    let slot = unsafe { (*rest[0]).data };
                    self.end(slot as u32, Err(error));
                    start += 1;
                }
            }
        }
        self.batch.clear();
    }

    /// The control block of the next step of the request in `slot`. `None` for an
    /// invalid request: one without memory that needs it, a read into memory that must not be written, or one at an
    /// invalid address.
    fn build_iocb(&mut self, slot: u32) -> Option<ControlBlock> {
        let request = self.slots[slot as usize].as_ref().expect("pushed");
        let KernelTarget::Descriptor(file) = self.core.backend().kernel_target() else {
            return None;
        };
        let mut iocb = ControlBlock {
            data: slot as u64,
            opcode: FDSYNC,
            file: file.as_raw_fd() as u32,
            flags: RESFD,
            resfd: self.notifier.as_raw_fd() as u32,
            ..ControlBlock::default()
        };
        if request.op == Op::Flush {
            return Some(iocb);
        }
        let write = request.op == Op::Write;
        if !write && request.payload.is_read_only() {
            return None;
        }
        iocb.offset = i64::try_from(request.address.checked_add(request.done())?).ok()?;
        match &request.payload {
            Payload::Buffer(_) => {
                let (address, length) = request.ranges().next().unwrap_or((ptr::dangling_mut(), 0));
                iocb.opcode = if write { PWRITE } else { PREAD };
                iocb.memory = address as u64;
                iocb.length = length as u64;
            }
            Payload::Buffers(_) => {
                let first = self.vectors.len();
                self.vectors.extend(request.ranges().map(|(address, length)| libc::iovec {
                    iov_base: address.cast(),
                    iov_len: length,
                }));
                iocb.opcode = if write { PWRITEV } else { PREADV };
                iocb.memory = self.vectors[first..].as_ptr() as u64;
                iocb.length = (self.vectors.len() - first) as u64;
            }
            Payload::Length(_) => return None,
        }
        if write && request.durability == Durability::Durable {
            iocb.rw_flags = libc::RWF_DSYNC;
        }
        Some(iocb)
    }

    /// Takes one event, and converts it to the completion of its request.
    #[inline]
    fn reap_event(&mut self) -> Option<StepCompletion> {
        let event = self.context.take()?;
        let slot = event.data as u32;
        let request = self.slots[slot as usize].take().expect("in flight");
        self.free.push(slot);
        self.in_kernel -= 1;
        self.unread_signals.set(self.unread_signals.get() + 1);
        let result = match u32::try_from(event.result) {
            Ok(moved) => Ok(moved),
            Err(_) => Err(Errno::from_raw_os_error(-event.result as i32)),
        };
        Some(StepCompletion { request, result })
    }

    /// Subtracts the reaped completions from the notifier, so that it is readable
    /// only for later ones. The kernel may add to the notifier after the completion is
    /// visible (fs/aio.c adds after it has moved the tail): a later call reads the rest.
    fn drain_notifier(&self) {
        if self.unread_signals.get() <= 0 {
            return;
        }
        let mut count = [0; 8];
        self.count_calls(1);
        if rustix::io::read(&self.notifier, &mut count).is_ok() {
            self.unread_signals.set(self.unread_signals.get() - u64::from_ne_bytes(count) as i64);
        }
    }

    /// True if there is an event to take, as far as is known without a system call: it is visible, or its signal was read
    /// before it was taken.
    fn has_events(&self) -> bool {
        self.context.has_events() || self.unread_signals.get() < 0
    }

    fn count_calls(&self, calls: u64) {
        self.system_calls.set(self.system_calls.get() + calls);
    }
}

impl Queue for AioQueue {
    #[inline]
    fn push(&mut self, request: Request) -> Result<(), Request> {
        // A request in `ended` has no slot, but counts until it is reaped.
        if self.in_flight() == self.slots.len() {
            return Err(request);
        }
        let slot = self.free.pop().expect("as many slots as requests");
        self.pushed_bytes += match &request.payload {
            Payload::Length(_) => 0,
            memory => memory.length(),
        };
        self.slots[slot as usize] = Some(request);
        self.pushed.push(slot);
        if self.in_kernel == 0 && self.pushed_bytes >= EARLY_BYTES {
            self.submit_batch();
        }
        Ok(())
    }

    fn submit(&mut self) -> Result<(), Errno> {
        if !self.pushed.is_empty() {
            self.submit_batch();
        }
        Ok(())
    }

    #[inline]
    fn reap(&mut self) -> Option<StepCompletion> {
        if let Some(ended) = self.ended.pop_front() {
            return Some(ended);
        }
        if self.in_kernel == 0 { None } else { self.reap_event() }
    }

    #[inline]
    fn in_flight(&self) -> usize {
        self.pushed.len() + self.ended.len() + self.in_kernel
    }

    /// Requests that were not submitted end at the next submit. The kernel can cancel few of
    /// the others: no file and no block device cancels direct I/O.
    fn cancel(&mut self, tag: Tag) {
        for slot in 0..self.slots.len() {
            let Some(request) = &mut self.slots[slot] else { continue };
            if request.tag != tag {
                continue;
            }
            request.cancel();
            if !self.pushed.contains(&(slot as u32)) {
                self.context.cancel(&self.iocbs[slot]);
            }
        }
    }

    fn ready(&self) -> Ready<'_> {
        if !self.ended.is_empty() || self.has_events() {
            return Ready::Now;
        }
        // Of an idle queue, too: a signal that nothing reads would end each wait in epoll at once.
        self.drain_notifier();
        if self.in_kernel == 0 {
            return Ready::Never;
        }
        if self.has_events() {
            return Ready::Now;
        }
        Ready::Readable(self.notifier.as_fd())
    }

    fn notifier(&self) -> Option<BorrowedFd<'_>> {
        Some(self.notifier.as_fd())
    }

    fn system_calls(&self) -> u64 {
        self.system_calls.get() + self.context.system_calls()
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, poll};

    use super::context::{Event, Reaping, RingHeader};
    use super::*;
    use crate::backend::file::{Allocation, File};
    use crate::{Device, KernelTarget};
    use uringfs_buffer::{Buffer, IoBuf};

    #[test]
    fn structures_have_the_kernels_sizes() {
        assert_eq!(size_of::<ControlBlock>(), 64);
        assert_eq!(size_of::<Event>(), 32);
        assert_eq!(size_of::<RingHeader>(), 32);
    }

    #[test]
    fn a_ring_of_unknown_layout_is_reaped_by_system_call() {
        let folder = tempfile::tempdir().unwrap();
        let file = File::create(&folder.path().join("a"), 1 << 20, Allocation::Written).unwrap();
        let device = Device::new(file).unwrap();
        let mut queue = AioQueue::new(device.core().clone(), 4).unwrap();
        assert!(queue.context.reaping == Reaping::Mapped, "this kernel's layout is known");
        queue.context.reaping = Reaping::ByCall;
        for round in 0..20u64 {
            for tag in 0..4 {
                let payload = Payload::Buffer(Buffer::copy_of(&[1; 4096]));
                let address = (round * 4 + tag) * 4096;
                let read = Request::new(device.index(), Op::Read, address, payload, Tag(tag));
                queue.push(read).unwrap();
            }
            queue.submit().unwrap();
            let mut ended = 0;
            while ended < 4 {
                match queue.reap() {
                    Some(completion) => {
                        assert_eq!(completion.result, Ok(4096));
                        ended += 1;
                    }
                    None => std::thread::yield_now(),
                }
            }
        }
    }

    /// A read of the notifier may take the signals of completions that are not reaped yet.
    #[test]
    fn a_completion_whose_signal_was_read_is_ready_now() {
        let folder = tempfile::tempdir().unwrap();
        let file = File::create(&folder.path().join("a"), 1 << 20, Allocation::Written).unwrap();
        let device = Device::new(file).unwrap();
        for reaping in [Reaping::Mapped, Reaping::ByCall] {
            let mut queue = AioQueue::new(device.core().clone(), 2).unwrap();
            queue.context.reaping = reaping;
            for tag in 0..2 {
                let payload = Payload::Buffer(Buffer::zeroed(4096));
                queue.push(Request::new(device.index(), Op::Read, 0, payload, Tag(tag))).unwrap();
            }
            queue.submit().unwrap();
            // Both have completed when both signals are there.
            let mut signals = 0;
            while signals < 2 {
                poll(&mut [PollFd::new(&queue.notifier, PollFlags::IN)], None).unwrap();
                let mut count = [0; 8];
                rustix::io::read(&queue.notifier, &mut count).unwrap();
                signals += u64::from_ne_bytes(count);
            }
            rustix::io::write(&queue.notifier, &signals.to_ne_bytes()).unwrap();
            assert!(queue.reap().is_some());
            // Each look is right, not the first one alone.
            assert!(matches!(queue.ready(), Ready::Now) && matches!(queue.ready(), Ready::Now));
            assert!(queue.reap().is_some());
            assert!(matches!(queue.ready(), Ready::Never));
        }
    }

    #[test]
    fn system_calls_are_counted() {
        let folder = tempfile::tempdir().unwrap();
        let file = File::create(&folder.path().join("a"), 1 << 20, Allocation::Written).unwrap();
        let device = Device::new(file).unwrap();
        let mut queue = AioQueue::new(device.core().clone(), 8).unwrap();
        let push = |queue: &mut AioQueue, op, payload| {
            queue.push(Request::new(device.index(), op, 0, payload, Tag(0))).unwrap();
        };
        let reap = |queue: &mut AioQueue, count| {
            let mut ended = 0;
            while ended < count {
                match queue.reap() {
                    Some(completion) => ended += completion.result.map(|_| 1).unwrap(),
                    None => std::thread::yield_now(),
                }
            }
        };
        for _ in 0..4 {
            push(&mut queue, Op::Read, Payload::Buffer(Buffer::zeroed(4096)));
        }
        queue.submit().unwrap();
        reap(&mut queue, 4);
        assert_eq!(queue.system_calls(), 1, "io_submit; events are taken from the shared ring");
        queue.drain_notifier();
        assert_eq!(queue.system_calls(), 2, "the eventfd");
        push(&mut queue, Op::Discard, Payload::Length(4096));
        queue.submit().unwrap();
        reap(&mut queue, 1);
        assert_eq!(queue.system_calls(), 3, "a discard is done in the call");
        queue.context.reaping = Reaping::ByCall;
        push(&mut queue, Op::Flush, Payload::Length(0));
        queue.submit().unwrap();
        reap(&mut queue, 1);
        assert!(queue.system_calls() >= 5, "io_submit, io_getevents");
    }

    #[test]
    fn a_large_batch_starts_an_idle_device_early_and_else_is_one_system_call() {
        let folder = tempfile::tempdir().unwrap();
        let file = File::create(&folder.path().join("a"), 1 << 20, Allocation::Written).unwrap();
        let device = Device::new(file).unwrap();
        let mut queue = AioQueue::new(device.core().clone(), 64).unwrap();
        let push = |queue: &mut AioQueue, length: usize| {
            let payload = Payload::Buffer(Buffer::zeroed(length));
            queue.push(Request::new(device.index(), Op::Read, 0, payload, Tag(0))).unwrap();
            queue.in_kernel
        };
        let reap = |queue: &mut AioQueue, count| {
            let mut ended = 0;
            while ended < count {
                ended += queue.reap().is_some() as usize;
            }
        };
        let in_kernel: Vec<_> = (0..17).map(|_| push(&mut queue, 4096)).collect();
        assert_eq!((in_kernel[14], in_kernel[15], in_kernel[16]), (0, 16, 16));
        assert_eq!(push(&mut queue, 128 << 10), 16);
        queue.submit().unwrap();
        assert_eq!((queue.in_kernel, queue.system_calls()), (18, 2));
        // The device has work, so 32 requests of 64 KiB share a call.
        reap(&mut queue, 17);
        assert!((0..32).all(|_| push(&mut queue, 64 << 10) == 1));
        queue.submit().unwrap();
        assert_eq!((queue.in_kernel, queue.system_calls()), (33, 3));
        reap(&mut queue, 33);
    }

    #[test]
    fn memory_that_is_read_only_is_not_read_into() {
        let folder = tempfile::tempdir().unwrap();
        let file = File::create(&folder.path().join("a"), 1 << 20, Allocation::Written).unwrap();
        let device = Device::new(file).unwrap();
        let mut queue = AioQueue::new(device.core().clone(), 1).unwrap();
        let memory = || "read only".lend_for_write().unwrap();
        for payload in [Payload::Buffer(memory()), Payload::Buffers(Box::new([memory()]))] {
            queue.push(Request::new(device.index(), Op::Read, 0, payload, Tag(0))).unwrap();
            queue.submit().unwrap();
            let completion = queue.reap().expect("it was refused at once");
            assert_eq!(completion.result, Err(Errno::INVAL));
            assert!(completion.request.segments().eq([b"read only"]));
        }
    }

    #[test]
    fn a_device_that_is_no_file_is_refused() {
        let device = Device::new(crate::backend::null::Null::new(4096)).unwrap();
        assert!(matches!(device.core().backend().kernel_target(), KernelTarget::Nop));
        let error = AioQueue::new(device.core().clone(), 4).err().unwrap();
        assert_eq!(error.kind(), io::ErrorKind::Unsupported);
    }

    #[test]
    fn an_impossible_depth_is_explained() {
        let error = Context::new(u32::MAX >> 4).err().expect("too many").to_string();
        assert!(error.contains("aio-max-nr") || error.contains("not possible"), "{error}");
    }
}
