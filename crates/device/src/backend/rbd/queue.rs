//! The queue of a reactor, or of a thread that performs requests one by one.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, poll};
use uringfs_buffer::Buffer;
use uringfs_errno::Errno;
use uringfs_rbd::{Completion, Completions, Memory, Op as RbdOp};

use super::opened::OpenedImage;
use crate::interface::queue::{Queue, Ready};
use crate::request::{Op, Payload, Request, StepCompletion, Tag};

/// A queue with a bounded number of requests in flight.
pub(super) struct RbdQueue {
    opened: Arc<OpenedImage>,
    completions: Completions<InFlight>,
    depth: usize,
    pushed: Vec<Request>,
    received: RefCell<Received>,
}

#[derive(Default)]
struct Received {
    /// Ended, and not reaped.
    ended: VecDeque<StepCompletion>,
    /// Requests that librbd has.
    outstanding: usize,
}

/// A request whose memory librbd has.
struct InFlight {
    request: Request,
    /// The request's own memory, while librbd has a copy.
    copied: Option<Payload>,
}

impl RbdQueue {
    /// A queue with at most `depth` requests in flight.
    pub(super) fn new(opened: Arc<OpenedImage>, depth: usize) -> Result<RbdQueue, Errno> {
        Ok(RbdQueue {
            opened,
            completions: Completions::new()?,
            depth,
            pushed: Vec::with_capacity(depth),
            received: RefCell::default(),
        })
    }

    /// Performs one step of a request, and waits for it.
    pub(super) fn perform(&mut self, request: Request) -> StepCompletion {
        if let Err(request) = self.push(request) {
            return StepCompletion { request, result: Err(Errno::AGAIN) };
        }
        self.submit_pushed();
        loop {
            if let Some(completion) = self.reap() {
                return completion;
            }
            if let Ready::Readable(event) = self.ready() {
                // Whatever comes of it, the queue looks again.
                let _ = poll(&mut [PollFd::new(&event, PollFlags::IN)], None);
            }
        }
    }

    fn submit_pushed(&mut self) {
        let received = self.received.get_mut();
        for request in self.pushed.drain(..) {
            if let Some(result) = self.opened.check(&request) {
                received.ended.push_back(StepCompletion { request, result });
                continue;
            }
            let (op, skip) = (op(&request), request.done());
            let (memory, in_flight) = take_memory(request);
            match self.opened.image.submit(op, memory, skip, in_flight, &self.completions) {
                Ok(()) => received.outstanding += 1,
                Err((errno, in_flight, memory)) => {
                    let errno = self.opened.note_error(errno);
                    let request = give_memory_back(in_flight, memory, 0);
                    received.ended.push_back(StepCompletion { request, result: Err(errno) });
                }
            }
        }
    }

    /// Takes what librbd's threads have sent.
    fn receive(&self) {
        let received = &mut *self.received.borrow_mut();
        while received.outstanding > 0
            && let Some(Completion { context, memory, result }) = self.completions.next()
        {
            received.outstanding -= 1;
            let result = self.opened.result(&context.request, result);
            let moved = result.unwrap_or(0);
            let request = give_memory_back(context, memory, moved);
            received.ended.push_back(StepCompletion { request, result });
        }
    }
}

/// The operation of a request's next step.
fn op(request: &Request) -> RbdOp {
    let (offset, length) = (request.address + request.done(), request.remaining());
    match request.op {
        Op::Read => RbdOp::Read(offset),
        Op::Write => RbdOp::Write(offset),
        Op::Flush => RbdOp::Flush,
        Op::Discard => RbdOp::Discard { offset, length },
        Op::WriteZeroes => RbdOp::WriteZeroes { offset, length },
    }
}

/// Takes the memory out of a request. Of memory that others change librbd gets a copy.
fn take_memory(mut request: Request) -> (Memory, InFlight) {
    let length = request.length();
    let copy = request.payload.is_shared().then(|| {
        let mut copy = Buffer::zeroed(length as usize);
        if request.op == Op::Write {
            request.payload.copy_to(0, &mut copy);
        }
        copy
    });
    let payload = mem::replace(&mut request.payload, Payload::Length(length));
    match (copy, payload) {
        (Some(copy), payload) => {
            (Memory::Single(copy), InFlight { request, copied: Some(payload) })
        }
        (None, Payload::Buffer(buffer)) => {
            (Memory::Single(buffer), InFlight { request, copied: None })
        }
        (None, Payload::Buffers(buffers)) => {
            (Memory::Several(buffers), InFlight { request, copied: None })
        }
        (None, Payload::Length(_)) => (Memory::None, InFlight { request, copied: None }),
    }
}

/// The request with its memory, after a step that has moved this many bytes.
fn give_memory_back(in_flight: InFlight, memory: Memory, moved: u32) -> Request {
    let InFlight { mut request, copied } = in_flight;
    match (copied, memory) {
        (Some(mut payload), Memory::Single(copy)) => {
            if request.op == Op::Read {
                let start = request.done() as usize;
                payload.copy_from(start as u64, &copy[start..start + moved as usize]);
            }
            request.payload = payload;
        }
        (_, Memory::Single(buffer)) => request.payload = Payload::Buffer(buffer),
        (_, Memory::Several(buffers)) => request.payload = Payload::Buffers(buffers),
        (_, Memory::None) => {}
    }
    request
}

impl Queue for RbdQueue {
    fn push(&mut self, request: Request) -> Result<(), Request> {
        if self.in_flight() >= self.depth {
            return Err(request);
        }
        self.pushed.push(request);
        Ok(())
    }

    fn submit(&mut self) -> Result<(), Errno> {
        self.submit_pushed();
        Ok(())
    }

    fn reap(&mut self) -> Option<StepCompletion> {
        if self.received.get_mut().ended.is_empty() {
            self.completions.take_signal();
            self.receive();
        }
        self.received.get_mut().ended.pop_front()
    }

    fn in_flight(&self) -> usize {
        let received = self.received.borrow();
        self.pushed.len() + received.outstanding + received.ended.len()
    }

    /// librbd cannot cancel. So this is for requests that it does not have.
    fn cancel(&mut self, tag: Tag) {
        for request in &mut self.pushed {
            request.cancel_if_tagged(tag);
        }
    }

    fn ready(&self) -> Ready<'_> {
        if self.received.borrow().ended.is_empty() && self.received.borrow().outstanding > 0 {
            self.completions.arm();
            self.receive();
        }
        let received = self.received.borrow();
        match (received.ended.is_empty(), received.outstanding) {
            (false, _) => Ready::Now,
            (true, 0) => Ready::Never,
            (true, _) => Ready::Readable(self.completions.event()),
        }
    }

    /// The library's are not known.
    fn system_calls(&self) -> u64 {
        self.completions.system_calls()
    }
}
