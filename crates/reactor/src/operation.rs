//! An operation: an `async fn` that always runs to its end on the reactor that
//! started it, owns what it needs until then, and may be asked to stop.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use uringfs_device::{Core, DeviceIndex, Op, Payload, Request, Tag};

use crate::completed::{Completed, Fate, Token};
use crate::handle::{Outcome, OutcomeCell};
use crate::in_flight::{Answer, CellIndex, Waiter};
use crate::io::tag_of_cell;
use crate::options::CompletionMode;
use crate::quiescence::Epoch;
use crate::reactor::{Due, Inner, quiescence};
use crate::task::TaskKind;
use crate::timer::TimerKey;

/// Who asked for an operation.
#[derive(Clone, Debug)]
pub enum Asker {
    /// A caller that reaps tokens.
    Token(Token),
    /// A caller that awaits.
    Cell(OutcomeCell),
}

/// What the reactor knows of an operation that has not ended.
pub(crate) struct OperationState {
    asker: Asker,
    /// Set when it is to stop, with what it will answer.
    stop: Option<Errno>,
    /// Some of it has been handed to a queue.
    issued: bool,
    deadline: Option<TimerKey>,
    task: u32,
}

/// The operations of one reactor.
pub(crate) struct Operations {
    states: Vec<Option<OperationState>>,
    free: Vec<u32>,
}

impl Operations {
    pub(crate) fn new() -> Operations {
        Operations { states: Vec::new(), free: Vec::new() }
    }

    fn open(&mut self, state: OperationState) -> u32 {
        match self.free.pop() {
            Some(place) => {
                self.states[place as usize] = Some(state);
                place
            }
            None => {
                self.states.push(Some(state));
                (self.states.len() - 1) as u32
            }
        }
    }

    fn get(&mut self, place: u32) -> &mut OperationState {
        self.states[place as usize].as_mut().expect("an operation is known until it ends")
    }

    fn close(&mut self, place: u32) -> OperationState {
        self.free.push(place);
        self.states[place as usize].take().expect("an operation ends once")
    }

    fn find(&self, matches: impl Fn(&Asker) -> bool) -> Vec<u32> {
        let matches = |state: &Option<OperationState>| {
            state.as_ref().is_some_and(|state| matches(&state.asker))
        };
        (0..self.states.len() as u32)
            .filter(|place| matches(&self.states[*place as usize]))
            .collect()
    }
}

/// What an operation's `async fn` works with.
pub struct Operation {
    inner: Rc<Inner>,
    place: u32,
    device: DeviceIndex,
    /// Where it is counted for quiescence; absent while it waits for a lock.
    mark: Option<u8>,
}

impl Inner {
    /// Starts an operation on `device` for `asker`: its body begins at once, is
    /// polled here and nowhere else, and ends with [`Operation::end`].
    pub fn start_operation<F>(
        self: &Rc<Inner>,
        asker: Asker,
        device: DeviceIndex,
        deadline: Option<Instant>,
        body: impl FnOnce(Operation) -> F,
    ) where
        F: Future<Output = ()> + 'static,
    {
        let state = OperationState { asker, stop: None, issued: false, deadline: None, task: 0 };
        let place = self.operations.borrow_mut().open(state);
        if let Some(at) = deadline {
            if at <= self.options.clock.now() {
                // Late before it begins: nothing of it reaches the device.
                self.operations.borrow_mut().get(place).stop = Some(Errno::TIMEDOUT);
            } else {
                let key = self.timers.borrow_mut().insert(at, Due::Deadline(place));
                self.operations.borrow_mut().get(place).deadline = Some(key);
            }
        }
        let mark = self.io.borrow_mut().state.begin(device);
        let body = body(Operation { inner: self.clone(), place, device, mark });
        let taken = self.tasks.borrow_mut().add(TaskKind::Operation, body);
        self.operations.borrow_mut().get(place).task = taken.place;
        self.poll_task(taken);
    }

    /// Asks every operation of this asker to stop at its next safe step.
    pub(crate) fn stop_operations(&self, matches: impl Fn(&Asker) -> bool, why: Errno) {
        let places = self.operations.borrow().find(matches);
        for place in places {
            self.stop_operation(place, why);
        }
    }

    pub(crate) fn stop_operation(&self, place: u32, why: Errno) {
        let fresh = {
            let mut operations = self.operations.borrow_mut();
            let state = operations.get(place);
            let fresh = state.stop.is_none();
            state.stop.get_or_insert(why);
            fresh
        };
        if fresh {
            let cells = self.io.borrow().state.cells.of_operation(place);
            for cell in cells {
                self.cancel_cell(cell);
            }
            let task = self.operations.borrow_mut().get(place).task;
            self.tasks.borrow_mut().make_ready(task);
            self.tell();
        }
    }

    /// Asks for what a cell waits for to end soon.
    pub(crate) fn cancel_cell(&self, cell: CellIndex) {
        self.io.borrow_mut().cancel(tag_of_cell(cell));
        self.cancel_wait(cell);
    }
}

impl Operation {
    /// What the operation answers when it has been asked to stop. Long operations
    /// ask between their steps; requests that were stopped answer it themselves.
    ///
    /// # Errors
    /// ECANCELED or ETIMEDOUT.
    pub fn check(&self) -> Result<(), Errno> {
        match self.inner.operations.borrow_mut().get(self.place).stop {
            Some(why) => Err(why),
            None => Ok(()),
        }
    }

    /// Hands a request to the device and answers it with the bytes done. Several
    /// may be under way at once. An operation that was asked to stop issues no more.
    pub fn request(&self, core: &Arc<Core>, mut request: Request) -> RequestFuture {
        let cell = self.inner.io.borrow_mut().state.cells.open(Some(self.place));
        request.tag = tag_of_cell(cell);
        let refused = match self.check() {
            Err(why) => Some((request, why)),
            Ok(()) => self.inner.issue_or_wait(core, request).err(),
        };
        if let Some((request, why)) = refused {
            let mut io = self.inner.io.borrow_mut();
            io.state.answer(cell, Answer::Request(request, Err(why)));
        }
        let cell = CellFuture { inner: self.inner.clone(), cell, by_task: true, taken: false };
        RequestFuture { cell, operation: self.place }
    }

    /// Waits this long, or until the operation is asked to stop.
    pub async fn sleep(&self, time: Duration) {
        let at = self.inner.options.clock.now() + time;
        let mut sleep = pin!(self.inner.sleep_until(at, Some(self.place)));
        // Being asked to stop polls the task.
        poll_fn(|context| match self.check() {
            Err(_) => Poll::Ready(()),
            Ok(()) => sleep.as_mut().poll(context),
        })
        .await;
    }

    /// Waits for a lock, or until the operation is asked to stop. Meanwhile it is
    /// not counted in: whoever holds the lock may be waiting for everything that is.
    ///
    /// # Errors
    /// ECANCELED or ETIMEDOUT.
    pub async fn wait_uncounted<T>(&mut self, wait: impl Future<Output = T>) -> Result<T, Errno> {
        self.count_out();
        let mut wait = pin!(wait);
        let ended = poll_fn(|context| match self.check() {
            Err(why) => Poll::Ready(Err(why)),
            Ok(()) => wait.as_mut().poll(context).map(Ok),
        })
        .await;
        self.count_in();
        ended
    }

    fn count_out(&mut self) {
        if let Some(mark) = self.mark.take() {
            let io = &mut *self.inner.io.borrow_mut();
            io.state.end(self.device, mark);
            io.settle();
        }
    }

    fn count_in(&mut self) {
        self.mark = self.inner.io.borrow_mut().state.begin(self.device);
    }

    /// Waits until everything that was in flight when `epoch` was retired has
    /// finished, this operation aside, or until it is asked to stop.
    ///
    /// # Errors
    /// ECANCELED or ETIMEDOUT.
    pub async fn wait_for_quiescence(&mut self, epoch: Epoch) -> Result<(), Errno> {
        self.count_out();
        let mut pause = Duration::from_micros(20);
        let stopped = loop {
            if quiescence(self.device).passed(epoch) {
                break Ok(());
            }
            if let Err(why) = self.check() {
                break Err(why);
            }
            // Nobody is told when an epoch passes: telling would cost every request a fence.
            self.sleep(pause).await;
            pause = (pause * 2).min(Duration::from_millis(1));
        };
        self.count_in();
        stopped
    }

    /// Counts something that happened.
    pub fn count(&self, counter: crate::Counter) {
        self.inner.counters.add(counter, 1);
    }

    /// Answers whoever asked: the last step of every operation.
    pub fn end(self, payload: Payload, result: Result<u64, Errno>) {
        let inner = &self.inner;
        let state = inner.operations.borrow_mut().close(self.place);
        if let Some(key) = state.deadline {
            inner.timers.borrow_mut().remove(key);
        }
        let result = match (result, state.stop) {
            // What a stopped request says is what the operation was told.
            (Err(Errno::CANCELED), Some(why)) => Err(why),
            (result, _) => result,
        };
        {
            let mut io = inner.io.borrow_mut();
            if let Some(mark) = self.mark {
                io.state.end(self.device, mark);
            }
            io.state.completed_inline += (io.state.mode == CompletionMode::Inline) as u64;
            if let Asker::Token(token) = state.asker {
                let tag = Tag(token.get());
                let mut request = Request::new(self.device, Op::Flush, 0, payload, tag);
                request.set_issued(state.issued);
                request.end(result);
                io.state.completed.push(Completed::of(request));
                return;
            }
        }
        if let Asker::Cell(cell) = state.asker {
            cell.set(Outcome { result, fate: Fate::of(result, state.issued), payload });
        }
    }
}

/// The answer of a cell, when it comes.
pub(crate) struct CellFuture {
    pub(crate) inner: Rc<Inner>,
    pub(crate) cell: CellIndex,
    /// Polled by an operation's task and nothing in between, so that the task
    /// itself is told, without a waker.
    pub(crate) by_task: bool,
    pub(crate) taken: bool,
}

impl CellFuture {
    pub(crate) fn poll_answer(&mut self, context: &mut Context<'_>) -> Poll<Answer> {
        let task = self.by_task.then(|| self.inner.current_task.get());
        let waiter = || Waiter::Waker(context.waker().clone());
        let answer = self.inner.io.borrow_mut().state.cells.poll(self.cell, task, waiter);
        match answer {
            Some(answer) => {
                self.taken = true;
                Poll::Ready(answer)
            }
            None => Poll::Pending,
        }
    }
}

/// The end of an operation's request: its memory, and the bytes done.
pub struct RequestFuture {
    cell: CellFuture,
    operation: u32,
}

impl Future for RequestFuture {
    type Output = (Payload, Result<u64, Errno>);

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.cell.poll_answer(context) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Answer::Request(request, result)) => {
                // Whether a queue has had it: it is not as if nothing had begun.
                let mut operations = self.cell.inner.operations.borrow_mut();
                operations.get(self.operation).issued |= request.is_issued();
                Poll::Ready((request.payload, result))
            }
            Poll::Ready(Answer::Wait(..) | Answer::Time) => {
                panic!("a request's cell answers a request")
            }
        }
    }
}

impl Drop for CellFuture {
    fn drop(&mut self) {
        if !self.taken && self.inner.io.borrow_mut().state.cells.forget(self.cell) {
            self.inner.cancel_cell(self.cell);
        }
    }
}
