//! An operation: an `async fn` that runs to its end on the reactor that started it.
//!
//! - [`ReactorCore::admit_operation`] puts it in the epoch, [`ReactorCore::start_operation`] starts it, [`Operation::end`]
//!   ends it.
//! - It owns what it needs until its end. A cancel or a deadline only makes it end earlier.

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use uringfs_device::queue::QueueKind;
use uringfs_device::{
    Clock, DeviceIndex, DeviceInner, Durability, Errno, Op, Payload, Request, Tag,
};
use uringfs_ring::Ring;

use crate::counters::Counter;
use crate::event_loop::core::{ReactorCore, TimerEvent};
use crate::io::dispatch::IoDispatch;
use crate::io::route::FastRoute;
use crate::io::submission_lock::SubmissionLock;
use crate::options::CompletionMode;
use crate::sync::domains::quiescence;
use crate::sync::quiescence::Epoch;
use crate::tasks::completion::Token;
use crate::tasks::op_result::{OpResult, ResultReceiver};
use crate::tasks::operation_state::{OperationState, Requester};
use crate::tasks::waiters::cell_tag;

/// The longest wait for what others have in flight. Longer than devices take for a request, errors included.
const QUIESCENCE_TIMEOUT: Duration = Duration::from_secs(30);

/// The kind, durability and address of a request.
#[derive(Clone, Copy, Debug)]
pub struct RequestSpec {
    /// The kind of request.
    pub op: Op,
    /// The durability that its completion guarantees.
    pub durability: Durability,
    /// The address of the first byte on the device, in bytes.
    pub address: u64,
}

/// The permit to start an operation, which is already in the epoch.
#[derive(Debug)]
#[must_use = "the operation is in the epoch until it has ended"]
pub struct AdmissionPermit {
    device: DeviceIndex,
    epoch_slot: Option<u16>,
}

/// The interface of a running operation, which its `async fn` owns.
#[derive(Debug)]
pub struct Operation {
    reactor: Rc<ReactorCore>,
    task: u32,
    device: DeviceIndex,
    /// Its epoch slot. Absent while it is outside the epoch, for example while it waits for a lock.
    epoch_slot: Option<u16>,
    /// At least one of its requests was handed to a queue.
    issued: Cell<bool>,
    /// Its requester has the result.
    ended: bool,
}

impl ReactorCore {
    /// See [`Operation::reactor_number`].
    #[inline]
    pub fn number(&self) -> u16 {
        self.number
    }

    /// Admits an operation on this device and puts it in the epoch. Attaches the device at its first use.
    /// [`Self::start_operation`] must follow, with a requester that wants the result.
    ///
    /// # Errors
    /// - ECHILD: this is the child of a fork.
    /// - ENODEV: the device was removed.
    /// - EAGAIN: as many operations with a token as `reactor.depth` allows have not ended.
    /// - The errors of [`Self::attach`].
    #[inline(always)]
    pub fn admit_operation(
        &self,
        device_inner: &Arc<DeviceInner>,
    ) -> Result<AdmissionPermit, Errno> {
        let is_full = self.tasks.borrow().with_tokens() >= self.options.depth as usize;
        self.admit(device_inner, is_full)
    }

    /// Admits an operation for a caller that awaits it. The depth does not apply: a task has no other way to wait for room than
    /// to await, and the requests wait in the backlog of the reactor.
    ///
    /// # Errors
    /// As [`Self::admit_operation`], without EAGAIN.
    #[inline(always)]
    pub fn admit_awaited(&self, device_inner: &Arc<DeviceInner>) -> Result<AdmissionPermit, Errno> {
        self.admit(device_inner, false)
    }

    #[inline(always)]
    fn admit(
        &self,
        device_inner: &Arc<DeviceInner>,
        is_full: bool,
    ) -> Result<AdmissionPermit, Errno> {
        let device = device_inner.index();
        let mut io = self.io.borrow_mut();
        if io.is_forked() {
            return Err(Errno::CHILD);
        }
        if device_inner.is_closed() {
            return Err(Errno::NODEV);
        }
        if is_full {
            return Err(Errno::AGAIN);
        }
        match io.in_flight.devices.get_mut(device.get()) {
            Some(device_slot) if device_slot.fast_route != FastRoute::Closed => {
                device_slot.tracker.begin_operation();
                Ok(AdmissionPermit { device, epoch_slot: Some(device_slot.tracker.enter()) })
            }
            _ => {
                drop(io);
                let permit = self.attach_and_admit(device_inner)?;
                self.io.borrow().in_flight.devices[device.get()].tracker.begin_operation();
                Ok(permit)
            }
        }
    }

    /// Admits an operation without a requester: it is started for [`Requester::Detached`]. The depth does not apply.
    ///
    /// # Errors
    /// As [`Self::admit_operation`], without ECHILD and EAGAIN.
    pub fn admit_detached(
        &self,
        device_inner: &Arc<DeviceInner>,
    ) -> Result<AdmissionPermit, Errno> {
        if device_inner.is_closed() {
            return Err(Errno::NODEV);
        }
        self.attach_and_admit(device_inner)
    }

    #[cold]
    #[inline(never)]
    fn attach_and_admit(&self, device_inner: &Arc<DeviceInner>) -> Result<AdmissionPermit, Errno> {
        let device = device_inner.index();
        self.attach(device_inner)
            .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        Ok(AdmissionPermit {
            device,
            epoch_slot: self.io.borrow_mut().in_flight.enter_epoch(device),
        })
    }

    /// Starts an operation for `requester`. Its body begins at once, is polled only by this reactor, and must end with
    /// [`Operation::end`].
    #[inline(always)]
    pub fn start_operation<F>(
        self: &Rc<ReactorCore>,
        permit: AdmissionPermit,
        requester: Requester,
        deadline: Option<Instant>,
        body: impl FnOnce(Operation) -> F,
    ) where
        F: Future<Output = ()> + 'static,
    {
        self.count(Counter::SlowPath);
        let state =
            OperationState { requester, cancelled: None, deferred_cancel: None, deadline: None };
        let running = self.tasks.borrow_mut().allocate(Some(state));
        if let Some(at) = deadline {
            self.set_deadline(running.index, at);
        }
        let AdmissionPermit { device, epoch_slot } = permit;
        let (reactor, task, issued) = (self.clone(), running.index, Cell::new(false));
        let operation = Operation { reactor, task, device, epoch_slot, issued, ended: false };
        self.poll_task(running.with_future(body(operation)));
    }

    #[cold]
    #[inline(never)]
    fn set_deadline(&self, task: u32, at: Instant) {
        if at <= self.options.clock.now() {
            // The deadline is in the past: nothing of the operation reaches the device.
            self.tasks.borrow_mut().operation(task).cancelled = Some(Errno::TIMEDOUT);
        } else {
            let key = self.timers.borrow_mut().insert(at, TimerEvent::OperationDeadline(task));
            self.tasks.borrow_mut().operation(task).deadline = Some(key);
        }
    }

    /// Requests cancellation of the operation whose result goes to `receiver`.
    pub fn cancel_awaited(&self, receiver: &ResultReceiver) {
        let transfer = self.io.borrow().in_flight.cells.find_transfer(receiver);
        if let Some(transfer) = transfer {
            self.io.borrow_mut().cancel(cell_tag(transfer));
            return self.wake_waiters();
        }
        let is = |requester: &Requester| matches!(requester, Requester::Future(sender) if sender.is_for(receiver));
        self.cancel_operations(is, Errno::CANCELED);
    }

    /// Requests cancellation of the operations with this token.
    pub fn cancel_token(&self, token: Token) {
        self.io.borrow_mut().cancel(Tag(token.get()));
        let is =
            |requester: &Requester| matches!(requester, Requester::Token(other) if *other == token);
        self.cancel_operations(is, Errno::CANCELED);
    }

    /// Cancels every operation whose requester `matches`, at its next safe step.
    pub(crate) fn cancel_operations(&self, matches: impl Fn(&Requester) -> bool, why: Errno) {
        let tasks = self.tasks.borrow().find_operations(|state| matches(&state.requester));
        for task in tasks {
            self.cancel_operation(task, why);
        }
    }

    pub(crate) fn cancel_operation(&self, task: u32, why: Errno) {
        let tasks = &mut *self.tasks.borrow_mut();
        let OperationState { cancelled, deferred_cancel, .. } = tasks.operation(task);
        if let Some(deferred) = deferred_cancel {
            deferred.get_or_insert(why);
        } else if cancelled.is_none() {
            *cancelled = Some(why);
            let io = &mut *self.io.borrow_mut();
            tasks.requests(task).awaited().iter().for_each(|tag| io.cancel(*tag));
            tasks.make_ready(task);
        }
    }
}

impl Operation {
    /// The reason why this operation was cancelled, as an error. Long operations check between their steps. Requests that
    /// were cancelled end with an error of their own.
    ///
    /// # Errors
    /// ECANCELED after a cancel, ETIMEDOUT after the deadline.
    pub fn check_cancelled(&self) -> Result<(), Errno> {
        self.reactor.tasks.borrow_mut().operation(self.task).cancelled.map_or(Ok(()), Err)
    }

    /// True when `error` only reports that this operation was cancelled. A device may return the same errno to an
    /// operation that was not.
    pub fn is_cancellation(&self, error: Errno) -> bool {
        // Cancelled requests end with ECANCELED, whatever the reason.
        self.check_cancelled().is_err_and(|why| error == why || error == Errno::CANCELED)
    }

    /// Issues a request to the device. The future returns it when it has ended. Several requests may be in flight at once.
    /// A cancelled operation issues no more: the request then ends with the reason.
    #[inline(always)]
    pub fn request(
        &self,
        device_inner: &Arc<DeviceInner>,
        spec: RequestSpec,
        payload: Payload,
    ) -> RequestFuture<'_> {
        let (tag, cancelled) = self.reactor.tasks.borrow_mut().open_request(self.task);
        match cancelled {
            None => self.issue(device_inner, spec, payload, tag),
            Some(why) => self.refuse(self.build_request(spec, payload, tag), why),
        }
        RequestFuture { operation: self, tag, taken: false }
    }

    /// [`Self::request`] with `lock` held while the request is handed to the kernel, and no longer.
    pub fn request_locked(
        &self,
        device_inner: &Arc<DeviceInner>,
        lock: &SubmissionLock,
        spec: RequestSpec,
        payload: Payload,
    ) -> RequestFuture<'_> {
        let (tag, cancelled) = self.reactor.tasks.borrow_mut().open_request(self.task);
        let request = self.build_request(spec, payload, tag);
        match cancelled.map_or_else(|| self.reactor.attach_for(device_inner), Err) {
            Ok(()) => self.reactor.io.borrow_mut().in_flight.locked.add(lock.clone(), request),
            Err(why) => self.refuse(request, why),
        }
        RequestFuture { operation: self, tag, taken: false }
    }

    #[inline(always)]
    fn build_request(&self, spec: RequestSpec, payload: Payload, tag: Tag) -> Request {
        let mut request = Request::new(self.device, spec.op, spec.address, payload, tag);
        request.durability = spec.durability;
        request
    }

    /// Pushes into the ring at once where that is the device's route, as it nearly always is.
    #[inline(always)]
    fn issue(
        &self,
        device_inner: &Arc<DeviceInner>,
        spec: RequestSpec,
        payload: Payload,
        tag: Tag,
    ) {
        let mut io = self.reactor.io.borrow_mut();
        let IoDispatch { ring, iopoll_ring, in_flight, .. } = &mut *io;
        if let Some(device_slot) = in_flight.devices.get(self.device.get())
            && matches!(spec.op, Op::Read | Op::Write)
            && let Some(sqe) =
                device_slot.fast_route.ring(ring, iopoll_ring).and_then(Ring::sqe_slot)
        {
            self.issued.set(true);
            let mut request = self.build_request(spec, payload, tag);
            request.set_issued(true);
            return sqe.push(request);
        }
        drop(io);
        self.issue_slow(device_inner, self.build_request(spec, payload, tag));
    }

    #[cold]
    #[inline(never)]
    fn issue_slow(&self, device_inner: &Arc<DeviceInner>, request: Request) {
        if let Err((request, why)) = self.reactor.issue_or_wait(device_inner, request) {
            self.refuse(request, why);
        }
    }

    /// Records whether a queue has had the request. Out of line, because a load of one byte here would copy the request
    /// in pieces.
    #[cold]
    #[inline(never)]
    fn note_issued(&self, request: &Request) {
        self.issued.set(request.is_issued());
    }

    #[cold]
    #[inline(never)]
    fn refuse(&self, mut request: Request, why: Errno) {
        request.end(Err(why));
        self.reactor.tasks.borrow_mut().requests(self.task).complete(request);
    }

    /// Sleeps for `time`, or until the operation is cancelled.
    pub async fn sleep(&self, time: Duration) {
        let at = self.reactor.options.clock.after(time);
        let mut sleep = pin!(self.reactor.sleep_until(at, Some(self.task)));
        // A cancel polls the task.
        poll_fn(|context| match self.check_cancelled() {
            Err(_) => Poll::Ready(()),
            Ok(()) => sleep.as_mut().poll(context),
        })
        .await;
    }

    /// Waits for a lock, or until the operation is cancelled. Meanwhile the operation is outside the epoch,
    /// because the owner of the lock may wait for everything in it.
    ///
    /// # Errors
    /// ECANCELED or ETIMEDOUT.
    pub async fn wait_outside_epoch<T>(
        &mut self,
        wait: impl Future<Output = T>,
    ) -> Result<T, Errno> {
        self.leave_epoch();
        let mut wait = pin!(wait);
        let ended = poll_fn(|context| match self.check_cancelled() {
            Err(why) => Poll::Ready(Err(why)),
            Ok(()) => wait.as_mut().poll(context).map(Ok),
        })
        .await;
        self.enter_epoch();
        ended
    }

    /// [`Self::wait_outside_epoch`] for at most `time`. `None` when the time has passed.
    ///
    /// # Errors
    /// ECANCELED or ETIMEDOUT.
    pub async fn wait_outside_epoch_timeout<T>(
        &mut self,
        wait: impl Future<Output = T>,
        time: Duration,
    ) -> Result<Option<T>, Errno> {
        self.leave_epoch();
        let ended = {
            let mut wait = pin!(wait);
            let mut sleep = pin!(
                self.reactor.sleep_until(self.reactor.options.clock.after(time), Some(self.task))
            );
            poll_fn(|context| match self.check_cancelled() {
                Err(why) => Poll::Ready(Err(why)),
                Ok(()) => match wait.as_mut().poll(context) {
                    Poll::Ready(ended) => Poll::Ready(Ok(Some(ended))),
                    Poll::Pending => sleep.as_mut().poll(context).map(|()| Ok(None)),
                },
            })
            .await
        };
        self.enter_epoch();
        ended
    }

    /// [`Self::wait_outside_epoch`] for a wait that cannot be abandoned: a cancel does not end it.
    pub async fn outside_epoch<T>(&mut self, wait: impl Future<Output = T>) -> T {
        self.leave_epoch();
        let ended = wait.await;
        self.enter_epoch();
        ended
    }

    /// Runs `work` that others rely on. A cancel takes effect after it has ended.
    pub async fn uncancellable<T>(&self, work: impl Future<Output = T>) -> T {
        self.state(|state| state.deferred_cancel = Some(None));
        let ended = work.await;
        self.state(|state| {
            state.cancelled = state.cancelled.or(state.deferred_cancel.take().flatten())
        });
        ended
    }

    fn state<T>(&self, change: impl FnOnce(&mut OperationState) -> T) -> T {
        change(self.reactor.tasks.borrow_mut().operation(self.task))
    }

    fn leave_epoch(&mut self) {
        if let Some(epoch_slot) = self.epoch_slot.take() {
            let io = &mut *self.reactor.io.borrow_mut();
            io.in_flight.leave_epoch(self.device, epoch_slot);
            io.in_flight.publish_epochs();
        }
    }

    fn enter_epoch(&mut self) {
        self.epoch_slot = self.reactor.io.borrow_mut().in_flight.enter_epoch(self.device);
    }

    /// Waits until every other request that was in flight when `epoch` was retired has ended, or until this operation is
    /// cancelled.
    ///
    /// # Errors
    /// ECANCELED or ETIMEDOUT. EBUSY after half a minute: for so long a reactor with something in flight was not turned, or
    /// the device did not complete a request. A warning (of `tracing`) names the reactor.
    pub async fn wait_for_quiescence(&mut self, epoch: Epoch) -> Result<(), Errno> {
        let until = self.reactor.options.clock.after(QUIESCENCE_TIMEOUT);
        if self.wait_for_quiescence_until(epoch, Some(until)).await? {
            return Ok(());
        }
        let holders = quiescence(self.device).holders(epoch).join(", ");
        tracing::warn!(
            "gave up after {} s: requests on device {} are still in flight, of {holders}; call `turn` or `reap` on these \
             reactors",
            QUIESCENCE_TIMEOUT.as_secs(),
            self.device.get()
        );
        Err(Errno::BUSY)
    }

    /// [`Self::wait_for_quiescence`] until `until` of the reactor's clock at the latest. True when the epoch has passed.
    ///
    /// # Errors
    /// ECANCELED or ETIMEDOUT.
    pub async fn wait_for_quiescence_until(
        &mut self,
        epoch: Epoch,
        until: Option<Instant>,
    ) -> Result<bool, Errno> {
        self.leave_epoch();
        let mut pause = Duration::from_micros(20);
        let ended = loop {
            if quiescence(self.device).passed(epoch) {
                break Ok(true);
            }
            if let Err(why) = self.check_cancelled() {
                break Err(why);
            }
            if until.is_some_and(|until| self.now() >= until) {
                break Ok(false);
            }
            // No event reports that an epoch has passed: notifying would cost every request a fence.
            self.sleep(pause).await;
            pause = (pause * 2).min(Duration::from_millis(1));
        };
        self.enter_epoch();
        ended
    }

    /// A number that distinguishes this reactor from the others of the process. Numbers repeat after 65,535 reactors.
    /// [`u16::MAX`] stands for no reactor.
    pub fn reactor_number(&self) -> u16 {
        self.reactor.number
    }

    /// The setting of the switch `device.queue`.
    pub fn queue_kind(&self) -> QueueKind {
        self.reactor.options.queue
    }

    /// True when the reactor has a virtual clock, which no other thread of the process follows.
    pub fn has_virtual_clock(&self) -> bool {
        matches!(self.reactor.options.clock, Clock::Virtual(_))
    }

    /// The current time of the reactor's clock.
    pub fn now(&self) -> Instant {
        self.reactor.options.clock.now()
    }

    /// Adds one to a counter of the reactor.
    pub fn count(&self, counter: Counter) {
        self.reactor.counters.add(counter, 1);
    }

    /// Adds `amount` to a counter of the reactor.
    pub fn count_many(&self, counter: Counter, amount: u64) {
        self.reactor.counters.add(counter, amount);
    }

    /// Starts another operation on this reactor. It has no requester, and cannot be cancelled. When the device was removed
    /// its body is dropped before it begins.
    pub fn spawn_detached<F>(
        &self,
        device_inner: &Arc<DeviceInner>,
        body: impl FnOnce(Operation) -> F,
    ) where
        F: Future<Output = ()> + 'static,
    {
        if let Ok(permit) = self.reactor.admit_detached(device_inner) {
            self.reactor.start_operation(permit, Requester::Detached, None, body);
        }
    }

    /// Returns the result to the requester: the last step of every operation.
    pub fn end(self, payload: Payload, result: Result<u64, Errno>) {
        self.end_releasing((), payload, result);
    }

    /// [`Self::end`] for an operation that holds `held`, such as its file. It is dropped outside the epoch, and before a
    /// caller in another thread has the result: that caller may at once need the file closed.
    pub fn end_releasing<T>(self, held: T, payload: Payload, result: Result<u64, Errno>) {
        let mut request = Request::new(self.device, Op::Flush, 0, payload, Tag(0));
        request.set_issued(self.issued.get());
        request.end(result);
        self.end_with_releasing(held, request);
    }

    /// [`Self::end_releasing`] with the result and the memory of its last request.
    #[inline(always)]
    pub fn end_with_releasing<T>(mut self, held: T, mut request: Request) {
        self.ended = true;
        let OperationState { requester, cancelled, deadline, .. } =
            self.reactor.tasks.borrow_mut().end_operation(self.task);
        if let Some(key) = deadline {
            self.reactor.timers.borrow_mut().remove(key);
        }
        if request.result().is_err() {
            self.set_failure(&mut request, cancelled);
        }
        let mut io = self.reactor.io.borrow_mut();
        let in_flight = &mut io.in_flight;
        if let Some(epoch_slot) = self.epoch_slot.take() {
            in_flight.leave_epoch(self.device, epoch_slot);
            // The operation may end in the call that started it, where no reap follows.
            in_flight.publish_epochs();
        }
        if !matches!(requester, Requester::Detached) {
            in_flight.devices[self.device.get()].tracker.end_operation();
        }
        in_flight.completed_inline += (in_flight.mode == CompletionMode::Inline) as u64;
        match requester {
            Requester::Token(token) => {
                request.tag = Tag(token.get());
                in_flight.complete_token(request);
            }
            Requester::Future(sender) => {
                drop(io);
                drop(held);
                sender.set(OpResult::from_request(request));
            }
            Requester::Detached => {}
        }
    }

    /// The body has panicked: the requester gets ENOTRECOVERABLE. The operation stays in the epoch until none of its
    /// requests is in flight.
    #[cold]
    #[inline(never)]
    fn abandon(&mut self) {
        if let Some(epoch_slot) = self.epoch_slot.take() {
            let mut tasks = self.reactor.tasks.borrow_mut();
            let epoch_hold = tasks.requests(self.task).hold_epoch((self.device, epoch_slot));
            drop(tasks);
            self.reactor.io.borrow_mut().leave_epochs(epoch_hold);
        }
        let operation = Operation {
            reactor: self.reactor.clone(),
            task: self.task,
            device: self.device,
            epoch_slot: None,
            issued: self.issued.clone(),
            ended: false,
        };
        operation.end(Payload::Length(0), Err(Errno::NOTRECOVERABLE));
    }

    /// Sets the result of a failed operation: the reason of the cancel instead of ECANCELED, and issued if any of its
    /// requests was.
    #[cold]
    #[inline(never)]
    fn set_failure(&self, request: &mut Request, cancelled: Option<Errno>) {
        let result = match (request.result(), cancelled) {
            (Err(Errno::CANCELED), Some(why)) => Err(why),
            (result, _) => result,
        };
        request.set_issued(self.issued.get());
        request.end(result);
    }
}

impl Drop for Operation {
    #[inline]
    fn drop(&mut self) {
        if !self.ended {
            self.abandon();
        }
    }
}

/// Resolves to an operation's request when that has ended.
#[derive(Debug)]
pub struct RequestFuture<'a> {
    operation: &'a Operation,
    tag: Tag,
    taken: bool,
}

impl Future for RequestFuture<'_> {
    type Output = Request;

    #[inline(always)]
    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        let operation = self.operation;
        let ended = operation.reactor.tasks.borrow_mut().requests(operation.task).take(self.tag);
        // No waker is needed: when the request has ended its task is polled.
        let Some(request) = ended else { return Poll::Pending };
        self.taken = true;
        if !operation.issued.get() {
            operation.note_issued(&request);
        }
        Poll::Ready(request)
    }
}

impl Drop for RequestFuture<'_> {
    #[inline]
    fn drop(&mut self) {
        if !self.taken {
            self.forget();
        }
    }
}

impl RequestFuture<'_> {
    #[cold]
    #[inline(never)]
    fn forget(&mut self) {
        let Operation { reactor, task, .. } = self.operation;
        if reactor.tasks.borrow_mut().requests(*task).forget(self.tag) {
            reactor.io.borrow_mut().cancel(self.tag);
        }
    }
}
