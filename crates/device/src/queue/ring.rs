//! Requests over io_uring: what a [`Request`] asks of the kernel next, and a
//! queue with a ring of its own for one device. A reactor carries the requests
//! of all its devices over the one ring it has.

#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use rustix::io::Errno;
use uringfs_ring::{Memory, Ring, RingOptions, Step, Transfer};

use crate::device::{Core, Reach};
use crate::queue::{Queue, Ready};
use crate::request::{Completion, Durability, Op, Payload, Request, Tag};

// SAFETY: a request owns its buffers, whose bytes stay where they are when the
// buffer is moved, and nobody else can reach them while it does.
unsafe impl Transfer for Request {
    #[inline]
    fn step(&self) -> Step<'_> {
        let memory = match &self.payload {
            Payload::Buffer(buffer) => Memory::One { buffer, skip: self.done() as u32 },
            Payload::Buffers(buffers) => {
                Memory::Many { buffers, skip: self.done(), length: self.length() - self.done() }
            }
            Payload::Length(_) => return Step::Flush,
        };
        let offset = self.address + self.done();
        match (self.op, self.durability) {
            (Op::Read, _) => Step::Read(offset, memory),
            (Op::Write, Durability::Volatile) => Step::Write(offset, memory),
            (Op::Write, Durability::Durable) => Step::WriteDurably(offset, memory),
            (Op::Flush | Op::Discard | Op::WriteZeroes, _) => Step::Flush,
        }
    }

    #[inline]
    fn file(&self) -> u32 {
        self.device.get() as u32
    }
}

/// True for what a ring can carry: reads, writes and flushes. The kernel has
/// no request for the rest that does not block.
#[inline]
pub fn carries(op: Op) -> bool {
    matches!(op, Op::Read | Op::Write | Op::Flush)
}

/// Puts a device into a ring's table, at the place its index names.
///
/// # Errors
/// Unsupported when the kernel cannot reach the device's bytes; what
/// [`Ring::install`] says.
pub fn install(ring: &mut Ring<Request>, core: &Core) -> io::Result<()> {
    let place = core.index().get() as u32;
    match core.backend().reach() {
        Reach::Descriptor(file) => ring.install(place, file),
        Reach::Nothing => ring.install_nothing(place),
        Reach::Call => Err(io::Error::new(
            io::ErrorKind::Unsupported,
            format!("{}: the kernel cannot reach it", core.backend().description()),
        )),
    }
}

/// A queue over a ring of its own.
pub struct RingQueue {
    ring: Ring<Request>,
    core: Arc<Core>,
    /// What has completed, and what the ring does not carry, done in the call.
    ended: VecDeque<Completion>,
}

impl RingQueue {
    /// A ring for `core` alone.
    ///
    /// # Errors
    /// Why there is no ring, or why it cannot reach the device.
    pub fn new(core: Arc<Core>, options: &RingOptions) -> io::Result<RingQueue> {
        let mut ring = Ring::new(options)?;
        install(&mut ring, &core)?;
        Ok(RingQueue { ring, core, ended: VecDeque::new() })
    }
}

impl Queue for RingQueue {
    fn push(&mut self, mut request: Request) -> Result<(), Request> {
        if carries(request.op) {
            return self.ring.push(request);
        }
        let result = self.core.backend().perform(&mut request);
        self.ended.push_back(Completion { request, result });
        Ok(())
    }

    fn submit(&mut self) -> Result<(), Errno> {
        self.ring.silence();
        self.ring.enter(0, None)
    }

    fn reap(&mut self) -> Option<Completion> {
        if self.ended.is_empty() {
            let ended = &mut self.ended;
            self.ring.reap(
                |request, result| ended.push_back(Completion { request, result }),
                |_| unreachable!("this ring carries requests only"),
            );
        }
        self.ended.pop_front()
    }

    fn in_flight(&self) -> usize {
        self.ring.transfers_in_flight() + self.ended.len()
    }

    fn cancel(&mut self, tag: Tag) {
        self.ring.cancel(|request| {
            let matches = request.tag == tag;
            request.cancelled |= matches;
            matches
        });
    }

    fn ready(&self) -> Ready<'_> {
        if !self.ended.is_empty() {
            Ready::Now
        } else if self.ring.transfers_in_flight() == 0 {
            Ready::Never
        } else {
            // The notifier tells of what completes after it was made: at first,
            // and when none can be had, look again.
            let is_new = !self.ring.has_notifier();
            match self.ring.notifier() {
                Ok(notifier) if !is_new => Ready::Readable(notifier),
                _ => Ready::Now,
            }
        }
    }
}
