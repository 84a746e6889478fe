//! Requests over io_uring: a [`Request`] as a [`Transfer`], and a queue with its
//! own ring for one device. A reactor instead carries the requests of all its
//! devices over its shared rings.

#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use uringfs_errno::Errno;
use uringfs_ring::{IoSegment, NextOp, Ring, RingOptions, Transfer, TransferMemory, Tries};

use crate::inner::DeviceInner;
use crate::interface::backend::KernelTarget;
use crate::interface::queue::{Queue, Ready};
use crate::request::{Durability, Op, Payload, Request, StepCompletion, Tag};

// SAFETY: a request owns its buffers. Their bytes keep their address when the
// buffer is moved, and no other code can access them meanwhile.
unsafe impl Transfer for Request {
    #[inline(always)]
    fn step(&self) -> NextOp<'_> {
        let memory = match &self.payload {
            Payload::Buffer(buffer) => {
                TransferMemory::Single(IoSegment::from_buffer(buffer, self.done() as u32))
            }
            Payload::Buffers(buffers) => TransferMemory::Vectored {
                buffers,
                skip: self.done(),
                length: self.length() - self.done(),
            },
            Payload::Length(_) => return NextOp::Flush,
        };
        let offset = self.address + self.done();
        match (self.op, self.durability) {
            (Op::Read, _) => NextOp::Read(offset, memory),
            (Op::Write, Durability::Volatile) => NextOp::Write(offset, memory),
            (Op::Write, Durability::Durable) => NextOp::WriteDurably(offset, memory),
            (Op::Flush | Op::Discard | Op::WriteZeroes, _) => NextOp::Flush,
        }
    }

    #[inline(always)]
    fn file(&self) -> u32 {
        self.device.get() as u32
    }

    #[inline(always)]
    fn length(&self) -> u32 {
        match self.payload {
            Payload::Length(_) => 0,
            Payload::Buffer(_) | Payload::Buffers(_) => self.remaining() as u32,
        }
    }

    #[inline]
    fn tries(&self) -> Tries {
        Request::tries(self)
    }
}

/// True for operations that a ring executes: reads, writes and flushes. Zeroing has no request
/// that does not block, and discards have none before Linux 6.12 (`BLOCK_URING_CMD_DISCARD`,
/// which is not used): the back end executes both in a call.
#[inline]
pub fn supports(op: Op) -> bool {
    matches!(op, Op::Read | Op::Write | Op::Flush)
}

/// Puts a device into a ring's file table, at the device's index.
///
/// # Errors
/// `Unsupported` when the kernel cannot access the device's bytes; the errors of
/// [`Ring::install`].
pub fn install(ring: &mut Ring<Request>, core: &DeviceInner) -> io::Result<()> {
    let index = core.index().get() as u32;
    match core.backend().kernel_target() {
        KernelTarget::Descriptor(file) => ring.install(index, file),
        KernelTarget::Nop => ring.install_nop(index),
        KernelTarget::Nvme(..) | KernelTarget::InProcess => Err(io::Error::new(
            io::ErrorKind::Unsupported,
            format!("{}: the kernel cannot reach it", core.backend().description()),
        )),
    }
}

/// A queue with its own ring. Used only for calibration and tests.
#[derive(Debug)]
pub struct RingQueue {
    ring: Ring<Request>,
    core: Arc<DeviceInner>,
    /// The most requests in flight.
    depth: usize,
    /// Pushed and not submitted: the device has not begun them.
    pushed: VecDeque<Request>,
    /// Completed requests. Those that the ring does not support are executed in the call.
    ended: VecDeque<StepCompletion>,
    /// System calls of the requests that the ring does not support.
    performed_calls: u64,
    /// Submitting waits for a completion, in the same call.
    waits: bool,
}

/// The longest wait of a submission for a completion.
const MAX_WAIT: Duration = Duration::from_secs(1);

impl RingQueue {
    /// Creates a ring for one device.
    ///
    /// # Errors
    /// In one line why there is no ring, or why it cannot access the device.
    pub fn new(core: Arc<DeviceInner>, options: &RingOptions) -> io::Result<RingQueue> {
        let mut ring = Ring::new(options)?;
        install(&mut ring, &core)?;
        let depth = options.transfers as usize;
        let (pushed, ended) = (VecDeque::new(), VecDeque::new());
        Ok(RingQueue { ring, core, depth, pushed, ended, performed_calls: 0, waits: false })
    }

    /// A queue whose submissions also wait for a completion, in one system call: as a reactor waits that has nothing but
    /// the ring to wait for.
    pub fn waiting(self) -> RingQueue {
        RingQueue { waits: true, ..self }
    }
}

impl Queue for RingQueue {
    fn push(&mut self, request: Request) -> Result<(), Request> {
        if self.in_flight() >= self.depth {
            return Err(request);
        }
        self.pushed.push_back(request);
        Ok(())
    }

    fn submit(&mut self) -> Result<(), Errno> {
        while let Some(mut request) = self.pushed.pop_front() {
            let has_memory = !matches!(request.payload, Payload::Length(_));
            let result = if matches!(request.op, Op::Read | Op::Write) != has_memory {
                Err(Errno::INVAL)
            } else if supports(request.op) {
                match self.ring.push(request) {
                    Ok(()) => continue,
                    Err(request) => {
                        self.pushed.push_front(request);
                        break;
                    }
                }
            } else {
                self.performed_calls += self.core.calls_to_perform();
                self.core.perform(&mut request)
            };
            self.ended.push_back(StepCompletion { request, result });
        }
        if self.waits && self.ended.is_empty() && self.ring.transfers_in_flight() > 0 {
            return self.ring.enter(1, Some(MAX_WAIT));
        }
        self.ring.silence();
        self.ring.enter(0, None)
    }

    fn reap(&mut self) -> Option<StepCompletion> {
        if self.ended.is_empty() {
            let ended = &mut self.ended;
            self.ring.reap(|request, result| {
                ended.push_back(StepCompletion { request: request.take(), result: result.get() });
            });
        }
        self.ended.pop_front()
    }

    fn in_flight(&self) -> usize {
        self.pushed.len() + self.ring.transfers_in_flight() + self.ended.len()
    }

    fn system_calls(&self) -> u64 {
        self.ring.counters().enters + self.performed_calls
    }

    fn cancel(&mut self, tag: Tag) {
        for mut request in std::mem::take(&mut self.pushed) {
            if request.tag == tag {
                request.cancel();
                self.ended.push_back(StepCompletion { request, result: Err(Errno::CANCELED) });
            } else {
                self.pushed.push_back(request);
            }
        }
        self.ring.cancel(|request| request.cancel_if_tagged(tag));
    }

    fn ready(&self) -> Ready<'_> {
        // The notifier may have fired earlier, for completions that `submit` has found.
        if !self.ended.is_empty() || self.ring.has_completed() {
            Ready::Now
        } else if self.ring.transfers_in_flight() == 0 {
            Ready::Never
        } else {
            // A new notifier reports only completions after its creation. So the first
            // call, and one without a notifier, lets the caller poll again.
            let is_new = !self.ring.has_notifier();
            match self.ring.notifier() {
                Ok(notifier) if !is_new => Ready::Readable(notifier),
                _ => Ready::Now,
            }
        }
    }
}
