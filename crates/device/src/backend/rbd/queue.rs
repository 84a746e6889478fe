//! The queue of a reactor, or of a thread that performs requests one by one.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;

use uringfs_errno::Errno;
use uringfs_rbd::{Completion, Completions, Memory, Op as RbdOp};

use super::instance::Instance;
use super::opened::OpenedImage;
use super::renewal::{Fate, fate};
use super::waits::Waits;
use crate::interface::queue::{Queue, Ready};
use crate::request::{Op, Payload, Request, StepCompletion, Tag};

/// A queue with a bounded number of requests in flight.
pub(super) struct RbdQueue {
    /// Dropped before what may have the device's lease.
    received: RefCell<Received>,
    opened: Arc<OpenedImage>,
    completions: Completions<InFlight>,
    depth: usize,
    pushed: Vec<Request>,
    /// The renewal for whose end requests wait.
    awaited: Cell<Option<u64>>,
}

struct Received {
    /// The instance that this queue uses. `None` while librbd has no request, if others may replace it.
    instance: Option<Arc<Instance>>,
    /// Ended, and not reaped.
    ended: VecDeque<StepCompletion>,
    /// Requests that librbd has.
    outstanding: usize,
    /// Requests that the next instance executes again, with their numbers among the waits. They cannot be cancelled: what was
    /// executed of them is unknown.
    again: Vec<(Request, usize)>,
    waits: Waits,
}

/// A request whose memory librbd has.
struct InFlight {
    request: Request,
    /// The request's own memory, while librbd has a copy.
    shared: Option<Payload>,
    /// Of the instance that has it.
    generation: u64,
    /// Its number among the waits.
    number: usize,
}

impl RbdQueue {
    /// A queue with at most `depth` requests in flight.
    pub(super) fn new(opened: Arc<OpenedImage>, depth: usize) -> Result<RbdQueue, Errno> {
        let received = Received {
            instance: None,
            ended: VecDeque::new(),
            outstanding: 0,
            again: Vec::new(),
            waits: opened.waits.of_queue(),
        };
        Ok(RbdQueue {
            received: RefCell::new(received),
            opened,
            completions: Completions::new()?,
            depth,
            pushed: Vec::with_capacity(depth),
            awaited: Cell::new(None),
        })
    }

    fn submit_pushed(&mut self) {
        let has_instance = self.use_instance();
        let mut pushed = mem::take(&mut self.pushed);
        let again = mem::take(&mut self.received.get_mut().again);
        for (request, number) in again {
            self.submit_one(request, Some(number), has_instance);
        }
        for request in pushed.drain(..) {
            self.submit_one(request, None, has_instance);
        }
        if self.pushed.is_empty() {
            // Its memory is used again.
            self.pushed = pushed;
        }
        if !has_instance && self.waits_for_instance() {
            self.hold();
        }
        self.leave_if_idle();
    }

    /// Uses the device's instance from now on. False if there is none.
    fn use_instance(&mut self) -> bool {
        let Some(generation) = self.opened.generation() else { return false };
        self.received.get_mut().instance.take_if(|used| used.generation != generation);
        self.awaited.set(None);
        true
    }

    /// Leaves the instance while librbd has no request: it ends once another one has replaced it, also if this queue is idle.
    /// Without timeouts none replaces it.
    fn leave_if_idle(&self) {
        let received = &mut *self.received.borrow_mut();
        if received.outstanding == 0 && self.opened.target.request_timeout.is_some() {
            received.instance = None;
        }
    }

    /// Gives a request to the instance. One with a number has had one before.
    fn submit_one(&mut self, request: Request, number: Option<usize>, has_instance: bool) {
        let received = self.received.get_mut();
        let ended = match number {
            // It cannot be cancelled.
            Some(_) => self.opened.is_lost().then_some(Err(Errno::SHUTDOWN)),
            None => self.opened.check(&request),
        };
        if let Some(result) = ended {
            number.into_iter().for_each(|number| received.waits.end(number));
            received.ended.push_back(StepCompletion { request, result });
            return;
        }
        if !has_instance {
            match number {
                Some(number) => received.again.push((request, number)),
                None => self.pushed.push(request),
            }
            return;
        }
        let (op, skip) = (op(&request), request.done());
        let number = number.unwrap_or_else(|| received.waits.begin());
        let instance = received.instance.get_or_insert_with(|| self.opened.instance());
        let (memory, in_flight) = take_memory(request, instance.generation, number);
        match instance.image().submit(op, memory, skip, in_flight, &self.completions) {
            Ok(()) => received.outstanding += 1,
            Err((errno, in_flight, memory)) => self.fail(in_flight, memory, errno),
        }
    }

    /// Ends a request with an error, or keeps it for the next instance.
    #[cold]
    fn fail(&self, in_flight: InFlight, memory: Memory, errno: Errno) {
        let (generation, number) = (in_flight.generation, in_flight.number);
        let request = give_memory_back(in_flight, memory, 0);
        let fate = fate(&self.opened, generation, errno);
        let received = &mut *self.received.borrow_mut();
        match fate {
            Fate::Ended(errno) => {
                received.waits.end(number);
                received.ended.push_back(StepCompletion { request, result: Err(errno) });
            }
            Fate::Again => {
                received.again.push((request, number));
                self.hold();
            }
        }
    }

    /// Lets the end of a renewal wake this queue.
    fn hold(&self) {
        let renewal = self.opened.renewal();
        if self.awaited.replace(Some(renewal)) != Some(renewal) {
            self.opened.wake_after_renewal(self.completions.waker());
        }
    }

    /// Whether there are requests for the next instance.
    fn waits_for_instance(&self) -> bool {
        !self.pushed.is_empty() || !self.received.borrow().again.is_empty()
    }

    fn is_held(&self) -> bool {
        self.awaited.get().is_some()
    }

    /// Takes what librbd's threads have sent.
    fn receive(&self) {
        while self.received.borrow().outstanding > 0
            && let Some(Completion { context, memory, result }) = self.completions.next()
        {
            let mut received = self.received.borrow_mut();
            received.outstanding -= 1;
            match self.opened.result(&context.request, result) {
                Ok(moved) => {
                    received.waits.end(context.number);
                    let request = give_memory_back(context, memory, moved);
                    received.ended.push_back(StepCompletion { request, result: Ok(moved) });
                }
                Err(errno) => {
                    drop(received);
                    self.fail(context, memory, errno);
                }
            }
        }
        self.leave_if_idle();
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
fn take_memory(mut request: Request, generation: u64, number: usize) -> (Memory, InFlight) {
    let shared = request.replace_shared();
    let length = request.length();
    let memory = match mem::replace(&mut request.payload, Payload::Length(length)) {
        Payload::Buffer(buffer) => Memory::Single(buffer),
        Payload::Buffers(buffers) => Memory::Several(buffers),
        Payload::Length(_) => Memory::None,
    };
    (memory, InFlight { request, shared, generation, number })
}

/// The request with its memory, after a step that has moved this many bytes.
fn give_memory_back(in_flight: InFlight, memory: Memory, moved: u32) -> Request {
    let InFlight { mut request, shared, .. } = in_flight;
    match memory {
        Memory::Single(buffer) => request.payload = Payload::Buffer(buffer),
        Memory::Several(buffers) => request.payload = Payload::Buffers(buffers),
        Memory::None => {}
    }
    if let Some(shared) = shared {
        request.restore_shared(shared, moved);
    }
    request
}

impl Drop for RbdQueue {
    /// A reactor may drop it right after its last request.
    fn drop(&mut self) {
        if self.opened.is_released() {
            self.opened.release_if_idle();
        }
    }
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
            if self.is_held() {
                self.submit_pushed();
            }
        }
        let ended = self.received.get_mut().ended.pop_front();
        if ended.is_none() && self.opened.is_released() {
            self.opened.release_if_idle();
        }
        ended
    }

    fn in_flight(&self) -> usize {
        let Received { ended, outstanding, again, .. } = &*self.received.borrow();
        self.pushed.len() + outstanding + again.len() + ended.len()
    }

    /// librbd cannot cancel. So this is for requests that it does not have and never had.
    fn cancel(&mut self, tag: Tag) {
        for request in &mut self.pushed {
            request.cancel_if_tagged(tag);
        }
        if self.is_held() {
            // They end now.
            self.submit_pushed();
        }
    }

    fn ready(&self) -> Ready<'_> {
        let waits = || self.received.borrow().outstanding > 0 || self.is_held();
        if self.received.borrow().ended.is_empty() && waits() {
            self.completions.arm();
            self.receive();
            if self.is_held() {
                // For the renewal of now, which may not be the one from before.
                self.hold();
            }
        }
        match self.received.borrow().ended.is_empty() {
            false => Ready::Now,
            true if self.is_held() && self.opened.generation().is_some() => Ready::Now,
            true if waits() => Ready::Readable(self.completions.event()),
            true => Ready::Never,
        }
    }

    /// The library's are not known.
    fn system_calls(&self) -> u64 {
        self.completions.system_calls()
    }
}
