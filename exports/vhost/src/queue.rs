//! One queue while it runs: takes requests off the ring, starts them on the thread's reactor, and gives them back.
//!
//! While requests are in flight the thread reaps their completions and looks at the ring each time. Before it sleeps, it asks
//! the driver for a notification, which a task of the reactor waits for.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::mem;
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};
use std::vec;

use uringfs::buffer::SharedMemory;
use uringfs::device::Payload;
use uringfs::file::UncommittedChange;
use uringfs::reactor::{PollEvents, RequestKind};
use uringfs::{Buffer, Completion, Errno, Reactor, SubmitError, Token, Tokens};

use crate::abi::Status;
use crate::block::{Action, BlockRequest, RangeAction, RequestMemory, Transfer};
use crate::chain::{Broken, Chain};
use crate::disk::{PollCount, ServedDisk};
use crate::eventfd;
use crate::memory::GuestMemory;
use crate::ring::Ring;

/// How long a thread looks for the next request before it sleeps.
const SPIN: Duration = Duration::from_micros(50);

/// All that a queue needs to run.
#[derive(Debug)]
pub(crate) struct QueueStart {
    pub(crate) ring: Ring,
    pub(crate) memory: Arc<GuestMemory>,
    /// The result of [`GuestMemory::share`].
    pub(crate) shared: Arc<[SharedMemory]>,
    /// The driver notifies the device.
    pub(crate) kick: Arc<OwnedFd>,
    /// The device interrupts the driver. None for a driver that polls.
    pub(crate) call: Option<Arc<OwnedFd>>,
    /// The device reports that the queue is broken.
    pub(crate) error: Option<Arc<OwnedFd>>,
    /// Each write is durable when it ends.
    pub(crate) writes_through: bool,
}

/// Tells a queue to stop.
pub(crate) trait StopSignal {
    /// True once it is to stop.
    fn is_stopping(&self) -> bool;
    /// Wakes `waker` when it is to stop.
    fn register(&self, waker: &Waker);
}

/// A queue that runs on the reactor of this thread.
struct Queue {
    reactor: Rc<Reactor>,
    disk: Arc<ServedDisk>,
    /// Its place among the queues of the disk.
    number: usize,
    memory: Arc<GuestMemory>,
    shared: Arc<[SharedMemory]>,
    call: Option<Arc<OwnedFd>>,
    error: Option<Arc<OwnedFd>>,
    writes_through: bool,
    state: RefCell<QueueState>,
    /// Operations that the reactor has.
    started: Cell<usize>,
    /// Nothing more is taken from the ring.
    is_closed: Cell<bool>,
    /// Requests may be available for which no notification comes.
    has_more: Cell<bool>,
    /// The thread, while it waits for a first operation.
    idle: RefCell<Option<Waker>>,
}

struct QueueState {
    ring: Ring,
    chain: Chain,
    /// Requests in flight; their number is the token of their operations.
    slots: Vec<Option<InFlight>>,
    free: Vec<u16>,
    /// Operations that the reactor has refused for now.
    refused: VecDeque<(u16, Operation)>,
    /// When the last request was taken or given back.
    last_progress: Instant,
    /// The driver was asked to notify.
    is_notified: bool,
}

/// A request in flight.
struct InFlight {
    id: u16,
    descriptors: u16,
    status_address: u64,
    written: u32,
    kind: RequestKind,
    /// Bytes that it moves.
    bytes: u64,
    /// The same, until its operation has moved them.
    expected: u64,
    next: Next,
    /// It is a change of which the volume does not know yet: it is durable before the request is given back.
    uncommitted: Option<UncommittedChange>,
}

/// The work that follows when the operation of a request has succeeded.
enum Next {
    Nothing,
    Sync,
    Ranges { left: vec::IntoIter<RangeAction>, then_sync: bool },
}

impl Next {
    /// The operation that follows. It zeroes at most `max_zeroed` bytes.
    fn take(&mut self, max_zeroed: u64) -> Option<Operation> {
        let then_sync = match self {
            Next::Nothing => false,
            Next::Sync => true,
            Next::Ranges { left, then_sync } => {
                let part = left.as_mut_slice().first_mut();
                let part = part.and_then(|range| range.take_part(max_zeroed));
                match part.or_else(|| left.next()) {
                    Some(range) => return Some(Operation::Range(range)),
                    None => *then_sync,
                }
            }
        };
        *self = Next::Nothing;
        then_sync.then_some(Operation::Sync)
    }
}

/// An operation of the file.
enum Operation {
    Read(Transfer),
    Write(Transfer),
    Sync,
    Range(RangeAction),
}

/// Serves a queue until `stop` says so, and answers all of its requests. Returns the index at which the ring goes on.
pub(crate) fn run(
    reactor: &Rc<Reactor>,
    (disk, number): (&Arc<ServedDisk>, usize),
    start: QueueStart,
    stop: &impl StopSignal,
) -> u32 {
    let QueueStart { ring, memory, shared, kick, call, error, writes_through } = start;
    let size = ring.size();
    let queue = Rc::new(Queue {
        reactor: reactor.clone(),
        disk: disk.clone(),
        number,
        shared,
        memory,
        call,
        error,
        writes_through,
        state: RefCell::new(QueueState {
            ring,
            chain: Chain::default(),
            slots: (0..size).map(|_| None).collect(),
            free: (0..size).rev().collect(),
            refused: VecDeque::new(),
            last_progress: Instant::now(),
            is_notified: true,
        }),
        started: Cell::new(0),
        is_closed: Cell::new(false),
        has_more: Cell::new(false),
        idle: RefCell::new(None),
    });
    let (end_listening, ended) = end_signal();
    let listening = reactor.spawn(listen(queue.clone(), kick, ended));
    queue.serve(stop);
    queue.is_closed.set(true);
    queue.drain();
    end_listening.end();
    // It does not panic, and is not dropped before its end.
    let _ = reactor.block_on(listening);
    queue.state.borrow().ring.base()
}

/// Takes requests off the ring at each notification.
async fn listen(queue: Rc<Queue>, kick: Arc<OwnedFd>, ended: Rc<EndSignal>) {
    loop {
        let mut readable = pin!(queue.reactor.poll(&kick, PollEvents::IN, None));
        let woken = poll_fn(|context| match ended.poll(context) {
            Poll::Ready(()) => Poll::Ready(None),
            Poll::Pending => readable.as_mut().poll(context).map(Some),
        });
        match woken.await {
            None => return,
            Some(Err(_)) => queue.close(Broken("its notifications cannot be waited for")),
            Some(Ok(_)) => {}
        }
        if queue.is_closed.get() {
            return ended.wait().await;
        }
        eventfd::reset(&kick);
        queue.take_notified();
    }
}

impl Queue {
    fn serve(&self, stop: &impl StopSignal) {
        let mut completed = Vec::new();
        let mut comes_soon = false;
        let mut idle_since = None;
        while !stop.is_stopping() {
            self.take_new();
            self.interrupt();
            let last_progress = self.state.borrow().last_progress;
            if let Some(since) = idle_since.take_if(|since| last_progress > *since) {
                comes_soon = last_progress - since < SPIN;
            }
            if self.started.get() > 0 {
                if !self.reap(&mut completed) {
                    return;
                }
                continue;
            }
            let since = *idle_since.get_or_insert_with(Instant::now);
            if self.disk.disk.polling && comes_soon && since.elapsed() < SPIN {
                self.poll_once();
                continue;
            }
            let has_more = self.ask_for_notification();
            self.has_more.set(has_more);
            if !has_more {
                self.reactor.block_on(self.wait_for_work(stop));
            }
        }
    }

    /// Waits for completions. While requests come and go quickly, it looks for them instead. False if it cannot wait.
    fn reap(&self, completed: &mut Vec<Completion>) -> bool {
        let is_busy = self.disk.disk.polling && self.state.borrow().last_progress.elapsed() < SPIN;
        let min = match is_busy {
            true => 0,
            false if self.ask_for_notification() => 0,
            false => 1,
        };
        let reaped = self.reactor.reap(min, None, completed);
        if reaped.is_err() {
            self.close(Broken("the reactor cannot wait"));
        }
        if completed.is_empty() && is_busy {
            self.poll_once();
        }
        for completion in completed.drain(..) {
            self.complete(completion);
        }
        self.retry_refused();
        self.interrupt();
        reaped.is_ok()
    }

    /// Lets others run before the next look: the driver may need this processor.
    fn poll_once(&self) {
        let PollCount(polls) = &self.disk.polls[self.number];
        polls.store(polls.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        thread::yield_now();
    }

    /// Ends what is in flight.
    fn drain(&self) {
        let mut completed = Vec::new();
        while self.started.get() > 0 {
            let reaped = self.reactor.reap(1, None, &mut completed);
            completed.drain(..).for_each(|completion| self.complete(completion));
            self.retry_refused();
            if reaped.is_err() {
                return;
            }
        }
        self.interrupt();
    }

    /// Waits until an operation was started, or the queue is to stop.
    async fn wait_for_work(&self, stop: &impl StopSignal) {
        poll_fn(|context| {
            stop.register(context.waker());
            if stop.is_stopping() || self.started.get() > 0 || self.has_more.get() {
                return Poll::Ready(());
            }
            *self.idle.borrow_mut() = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
        *self.idle.borrow_mut() = None;
    }

    fn wake_idle(&self) {
        let idle = self.idle.borrow_mut().take();
        idle.into_iter().for_each(Waker::wake);
    }

    /// Takes what a notification has come for, and asks for the next.
    fn take_notified(&self) {
        self.take_new();
        self.interrupt();
        if self.ask_for_notification() {
            self.has_more.set(true);
        }
        self.wake_idle();
    }

    /// Starts the requests that are available now; at most as many as the ring has entries, so that a driver which adds more
    /// and more holds up nothing else.
    fn take_new(&self) {
        if self.memory.is_broken() {
            self.close(Broken("the guest's memory has shrunk"));
        }
        let state = &mut *self.state.borrow_mut();
        for _ in 0..state.ring.size() {
            if self.is_closed.get() {
                return;
            }
            match self.take_next(state) {
                Ok(true) => {}
                Ok(false) => return,
                Err(broken) => self.close(broken),
            }
        }
    }

    /// Starts the next request. False if there is none.
    fn take_next(&self, state: &mut QueueState) -> Result<bool, Broken> {
        if mem::take(&mut state.is_notified) {
            state.ring.set_notified(false)?;
        }
        if !state.ring.pop(&mut state.chain)? {
            return Ok(false);
        }
        state.last_progress = Instant::now();
        let memory = RequestMemory { guest: &self.memory, shared: &self.shared };
        let request = BlockRequest::parse(&mut state.chain, &memory, &self.disk)?;
        // With as many in flight as the ring has entries, the driver has given one twice.
        let slot = state.free.pop().ok_or(Broken("a chain is available twice"))?;
        let mut in_flight = InFlight {
            id: state.chain.id,
            descriptors: state.chain.descriptors,
            status_address: request.status_address,
            written: request.written,
            kind: RequestKind::Other,
            bytes: 0,
            expected: 0,
            next: Next::Nothing,
            uncommitted: None,
        };
        let (file, uncommitted) = (&self.disk.disk.file, self.disk.uncommitted.as_ref());
        let operation = match request.action {
            Action::Read(transfer) => {
                in_flight.kind = RequestKind::Read;
                in_flight.bytes = bytes_of(&transfer);
                Ok(Operation::Read(transfer))
            }
            Action::Write(transfer) => {
                in_flight.kind = RequestKind::Write;
                in_flight.bytes = bytes_of(&transfer);
                in_flight.uncommitted = uncommitted.and_then(|changes| {
                    changes.begin_write(file, transfer.offset, in_flight.bytes)
                });
                if self.writes_through || in_flight.uncommitted.is_some() {
                    in_flight.next = Next::Sync;
                }
                Ok(Operation::Write(transfer))
            }
            Action::Flush => {
                in_flight.kind = RequestKind::Flush;
                Ok(Operation::Sync)
            }
            Action::Ranges(ranges) => {
                // A discard that is lost leaves the old content, which is as good as any.
                let is_zeroing = !matches!(ranges.first(), None | Some(RangeAction::Discard(..)));
                if is_zeroing {
                    in_flight.uncommitted =
                        uncommitted.and_then(|changes| changes.begin_change(file));
                }
                let is_durable = self.writes_through || in_flight.uncommitted.is_some();
                let then_sync = is_zeroing && is_durable;
                in_flight.next = Next::Ranges { left: ranges.into_iter(), then_sync };
                in_flight.next.take(self.disk.max_zeroed).ok_or(Status::Ok)
            }
            Action::Done(status) => Err(status),
        };
        in_flight.expected = in_flight.bytes;
        state.slots[usize::from(slot)] = Some(in_flight);
        match operation {
            Ok(operation) => self.start(state, slot, operation),
            Err(status) => self.finish(state, slot, status),
        }
        Ok(true)
    }

    /// Starts an operation of a request, or ends the request.
    fn start(&self, state: &mut QueueState, slot: u16, operation: Operation) {
        match self.submit(operation, Token::new(slot.into())) {
            Ok(()) => self.started.set(self.started.get() + 1),
            Err((Errno::AGAIN, Some(operation))) if self.started.get() > 0 => {
                state.refused.push_back((slot, operation));
            }
            Err((errno, _)) => self.finish(state, slot, status_of(errno)),
        }
    }

    fn retry_refused(&self) {
        let state = &mut *self.state.borrow_mut();
        for _ in 0..state.refused.len() {
            let (slot, operation) = state.refused.pop_front().expect("counted");
            self.start(state, slot, operation);
        }
    }

    /// Starts an operation.
    ///
    /// # Errors
    /// Why the reactor refuses it, and the operation if it may be repeated.
    fn submit(&self, operation: Operation, token: Token) -> Result<(), (Errno, Option<Operation>)> {
        let (reactor, file) = (&self.reactor, &self.disk.disk.file);
        match operation {
            Operation::Read(Transfer { mut buffers, offset }) => {
                let started = match single(&mut buffers) {
                    Some(buffer) => reactor.read_at(file, buffer, offset, token),
                    None => reactor.start(file.read_vectored_at(buffers, offset), token),
                };
                started.map_err(|refused| {
                    let (errno, transfer) = transfer_again(refused, offset);
                    (errno, transfer.map(Operation::Read))
                })
            }
            Operation::Write(Transfer { mut buffers, offset }) => {
                let started = match single(&mut buffers) {
                    Some(buffer) => reactor.write_at(file, buffer, offset, token),
                    None => reactor.start(file.write_vectored_at(buffers, offset), token),
                };
                started.map_err(|refused| {
                    let (errno, transfer) = transfer_again(refused, offset);
                    (errno, transfer.map(Operation::Write))
                })
            }
            Operation::Sync => {
                let started = reactor.start(file.sync_data(), token);
                started.map_err(|refused| (refused.error, Some(Operation::Sync)))
            }
            Operation::Range(range) => {
                let op = match range {
                    RangeAction::Discard(offset, length) => file.discard(offset, length),
                    RangeAction::Zero(offset, length) => file.write_zeroes(offset, length),
                    RangeAction::Punch(offset, length) => file.punch_hole(offset, length),
                };
                let started = reactor.start(op, token);
                started.map_err(|refused| (refused.error, Some(Operation::Range(range))))
            }
        }
    }

    /// An operation of a request has ended.
    fn complete(&self, completion: Completion) {
        self.started.set(self.started.get() - 1);
        let slot = completion.token().get() as u16;
        let result = completion.result();
        // The kernel is done with the guest's memory before the guest knows.
        drop(completion);
        let state = &mut *self.state.borrow_mut();
        state.last_progress = Instant::now();
        let in_flight = state.slots[usize::from(slot)].as_mut().expect("it is in flight");
        let expected = mem::take(&mut in_flight.expected);
        let status = match result {
            Err(errno) => status_of(errno),
            Ok(moved) if expected > 0 && moved != expected => Status::Error,
            Ok(_) => Status::Ok,
        };
        let next = match status {
            Status::Ok => in_flight.next.take(self.disk.max_zeroed),
            _ => None,
        };
        match next {
            // It may be one of very many.
            Some(Operation::Range(_)) if self.disk.is_stopping.load(Ordering::Acquire) => {
                self.finish(state, slot, Status::Error);
            }
            Some(operation) => self.start(state, slot, operation),
            None => self.finish(state, slot, status),
        }
    }

    /// Gives a request back to the driver.
    fn finish(&self, state: &mut QueueState, slot: u16, status: Status) {
        let in_flight = state.slots[usize::from(slot)].take().expect("it is in flight");
        let InFlight { id, descriptors, status_address, written, kind, bytes, uncommitted, .. } =
            in_flight;
        if let (Status::Ok, Some(change)) = (status, uncommitted) {
            change.committed();
        }
        // First: a driver that has its request back may ask for the counts.
        let moved = (status == Status::Ok).then_some(bytes);
        self.disk.counters[self.number].count(kind, moved);
        // It was mapped when the request was taken.
        let _ = self.memory.write(status_address, &[status as u8]);
        let written = if status == Status::Ok { written } else { 1 };
        state.ring.push_used(id, descriptors, written);
        state.free.push(slot);
    }

    /// Interrupts the driver if it wants that.
    fn interrupt(&self) {
        if self.state.borrow_mut().ring.needs_interrupt()
            && let Some(call) = &self.call
        {
            eventfd::signal(call);
        }
    }

    /// Asks the driver to notify. True if requests are available, and no notification comes for them.
    fn ask_for_notification(&self) -> bool {
        if self.is_closed.get() {
            return false;
        }
        let state = &mut *self.state.borrow_mut();
        state.is_notified = true;
        state.ring.set_notified(true).unwrap_or_else(|broken| {
            self.close(broken);
            false
        })
    }

    /// Takes nothing more, and reports that to the front end.
    fn close(&self, Broken(why): Broken) {
        if !self.is_closed.replace(true) {
            tracing::warn!(why, "the queue of a disk is broken");
            self.error.iter().for_each(|error| eventfd::signal(error));
        }
    }
}

fn bytes_of(transfer: &Transfer) -> u64 {
    transfer.buffers.iter().map(|buffer| buffer.len() as u64).sum()
}

/// The only buffer.
fn single(buffers: &mut Vec<Buffer>) -> Option<Buffer> {
    if buffers.len() == 1 { buffers.pop() } else { None }
}

/// The transfer of a refused operation.
fn transfer_again(refused: SubmitError, offset: u64) -> (Errno, Option<Transfer>) {
    let transfer = match refused.payload {
        Payload::Buffer(buffer) => Some(Transfer { buffers: vec![buffer], offset }),
        Payload::Buffers(buffers) => Some(Transfer { buffers: buffers.into_vec(), offset }),
        Payload::Length(_) => None,
    };
    (refused.error, transfer)
}

fn status_of(errno: Errno) -> Status {
    match errno {
        Errno::OPNOTSUPP => Status::Unsupported,
        _ => Status::Error,
    }
}

/// Ends a task of the same thread.
#[derive(Default)]
struct EndSignal {
    has_ended: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

/// Ends the task when it is dropped, too.
struct EndGuard(Rc<EndSignal>);

fn end_signal() -> (EndGuard, Rc<EndSignal>) {
    let signal = Rc::new(EndSignal::default());
    (EndGuard(signal.clone()), signal)
}

impl EndSignal {
    fn poll(&self, context: &mut Context<'_>) -> Poll<()> {
        if self.has_ended.get() {
            return Poll::Ready(());
        }
        *self.waker.borrow_mut() = Some(context.waker().clone());
        Poll::Pending
    }

    async fn wait(&self) {
        poll_fn(|context| self.poll(context)).await;
    }
}

impl EndGuard {
    fn end(&self) {
        self.0.has_ended.set(true);
        let waker = self.0.waker.borrow_mut().take();
        waker.into_iter().for_each(Waker::wake);
    }
}

impl Drop for EndGuard {
    fn drop(&mut self) {
        self.end();
    }
}
