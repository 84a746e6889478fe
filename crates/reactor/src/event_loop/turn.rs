//! The work of the loop between two waits; see `sleep` for the waits.
//!
//! - [`ReactorCore::run_rounds`] reads messages, fires timers, reaps completions, and polls the tasks that this made ready.
//! - [`ReactorCore::foreign_turn`] also submits, until nothing is left to do before the foreign loop sleeps.
//! - [`ReactorCore::collect`] also waits for completions of tokens, and [`ReactorCore::enter_fast`] does nothing else.

use std::mem;
use std::task::Poll;
use std::time::Duration;
use std::vec::Drain;

use uringfs_device::{Errno, Ready, Request};
use uringfs_ring::Ring;
use uringfs_ring::nvme::NvmeRing;

use crate::counters::Counter;
use crate::event_loop::core::{CLOSING, CONTRADICTED, Current, Message, ReactorCore, TimerEvent};
use crate::io::dispatch::IoDispatch;
use crate::tasks::task::{Delivery, RunningTask};
use crate::tasks::waiters::{WaitResult, Waiter};
use crate::wake::mailbox::Notify;

/// The maximum of rounds in a row. A task that wakes itself again and again then blocks neither the root task nor the
/// caller.
const MAX_ROUNDS: u32 = 64;
/// A foreign loop's turn that has read more messages leaves the rest to its next turn. Senders that are faster than this
/// thread would otherwise keep it.
const MAX_MESSAGES: u64 = 1024;

/// A turn for a foreign loop. When it ends by a panic, or too early, it notifies the loop that another turn is due.
struct ForeignTurn<'i> {
    reactor: &'i ReactorCore,
    is_due_again: bool,
}

impl Drop for ForeignTurn<'_> {
    fn drop(&mut self) {
        self.reactor.in_foreign_turn.set(false);
        if self.is_due_again && self.reactor.foreign_fd.get().is_some() {
            self.reactor.mailbox.notifier().notify();
        }
    }
}

/// Discards the task that is being polled, if the poll panics.
struct PollGuard<'i> {
    reactor: &'i ReactorCore,
    task: u32,
}

impl Drop for PollGuard<'_> {
    fn drop(&mut self) {
        self.reactor.tasks.borrow_mut().discard(self.task);
    }
}

/// Requests on their way to their operations. When one of these panics, the rest stay for the next turn.
struct ReturnedRequests<'i, 'r> {
    reactor: &'i ReactorCore,
    requests: Drain<'r, Request>,
}

impl Drop for ReturnedRequests<'_, '_> {
    fn drop(&mut self) {
        if self.requests.len() > 0 {
            self.reactor.io.borrow_mut().in_flight.returned.extend(&mut self.requests);
        }
    }
}

/// A wait of the thread's own, which announces that the reactor is awake. A foreign loop may sleep under the announcement
/// before, so it gets a turn afterwards.
pub(crate) struct OwnWait<'r> {
    reactor: &'r ReactorCore,
}

impl OwnWait<'_> {
    pub(crate) fn begin(reactor: &ReactorCore) -> OwnWait<'_> {
        reactor.mailbox.announce_awake();
        OwnWait { reactor }
    }
}

impl Drop for OwnWait<'_> {
    fn drop(&mut self) {
        self.reactor.request_turn();
    }
}

/// Messages that are being read. When the work of one panics, the rest go back into the mailbox.
struct UnreadMessages<'i, 'r> {
    reactor: &'i ReactorCore,
    messages: Drain<'r, Message>,
}

impl Drop for UnreadMessages<'_, '_> {
    fn drop(&mut self) {
        if self.messages.len() > 0 {
            self.reactor.mailbox.put_back(&mut self.messages);
        }
    }
}

impl ReactorCore {
    /// Submits, and runs rounds until there are `min` completions of tokens, `timeout` has passed, or nothing is left to
    /// wait for. The completions stay in `in_flight.completed`.
    ///
    /// # Errors
    /// EDEADLK in code that the reactor runs.
    #[inline(never)]
    pub(crate) fn collect(&self, min: usize, timeout: Option<Duration>) -> Result<(), Errno> {
        if min == 0 && self.foreign_fd.get().is_some() {
            let _current = self.become_current();
            return self.foreign_turn();
        }
        self.check_not_reentrant()?;
        let _current = self.become_current();
        let _own_wait = OwnWait::begin(self);
        let (mut until, mut has_entered) = (None, false);
        loop {
            self.run_rounds();
            let got = {
                let io = &mut *self.io.borrow_mut();
                let got = io.in_flight.completed.len();
                if io.in_flight.has_backlog() {
                    // Before the caller fills the room with new requests.
                    io.push_backlog();
                }
                let outstanding = self.outstanding(io);
                if got >= min || (got > 0 && got + outstanding < min) {
                    let is_submitted = io.own_queue_devices.is_empty()
                        && io.queued() == 0
                        && (got > 0 || outstanding == 0);
                    if min > 0 || is_submitted {
                        return Ok(());
                    }
                }
                got
            };
            if min == 0 {
                self.submit()?;
                while self.run_rounds() | self.io.borrow_mut().push_backlog() {
                    self.submit()?;
                    if self.has_ready() {
                        break;
                    }
                }
                return Ok(());
            }
            if self.outstanding(&self.io.borrow()) == 0 {
                return Ok(());
            }
            if let Some(timeout) = timeout {
                let until = *until.get_or_insert_with(|| self.options.clock.after(timeout));
                if self.options.clock.now() >= until {
                    if has_entered {
                        return Ok(());
                    }
                    // Without a call the kernel neither gets nor completes requests.
                    self.submit()?;
                    has_entered = true;
                    continue;
                }
            }
            self.wait_unless_ready(min - got, until)?;
            has_entered = true;
        }
    }

    /// Makes this the thread's current reactor: its tasks use it for their operations.
    pub(crate) fn become_current(&self) -> Current {
        Current::set(&self.weak_self.upgrade().expect("the caller holds the reactor"))
    }

    /// True when tasks are ready. After [`Self::run_rounds`] it means that some of them wake themselves again and again.
    pub(crate) fn has_ready(&self) -> bool {
        self.tasks.borrow().has_ready()
    }

    /// # Errors
    /// EDEADLK in code that the reactor runs: it cannot run itself.
    pub(crate) fn check_not_reentrant(&self) -> Result<(), Errno> {
        if self.is_in_user_code() { Err(Errno::DEADLK) } else { Ok(()) }
    }

    /// True when all that may happen are completions: no message, timer, ready task or other reason for attention.
    #[inline(always)]
    pub(crate) fn only_requests_pending(&self) -> bool {
        !self.mailbox.has_messages()
            && self.attention.get() == 0
            && self.timers.borrow().is_empty()
            && !self.tasks.borrow().has_ready()
    }

    /// False when a round would only find what the kernel has completed meanwhile, which the next wait finds as well.
    #[inline]
    pub(crate) fn has_work_for_a_round(&self) -> bool {
        let io = self.io.borrow();
        !self.only_requests_pending()
            || !io.own_queue_devices.is_empty()
            || io.in_flight.has_ended_any()
    }

    /// Submits, and waits for `min` completions, when only requests on a ring are awaited: one system call. False, without
    /// one, when there is more to do, or completions are collected already.
    #[inline(always)]
    pub(crate) fn enter_fast(&self, min: usize) -> Result<bool, Errno> {
        if !self.only_requests_pending() {
            return Ok(false);
        }
        let io = &mut *self.io.borrow_mut();
        if !io.own_queue_devices.is_empty()
            || io.in_flight.has_backlog()
            || !io.in_flight.completed.is_empty()
            || io.in_flight.has_other_completions
        {
            return Ok(false);
        }
        io.in_flight.publish_epochs();
        if io.has_more_rings {
            self.enter_busy_ring(io, min)
        } else if self.call_alone(io, min) {
            Ok(true)
        } else if let Some(ring) = &mut io.ring {
            self.enter_main_ring(ring, min)
        } else {
            Ok(false)
        }
    }

    /// Enters the one ring that has transfers in flight. False, without a system call, when there are several.
    #[inline(always)]
    fn enter_busy_ring(&self, io: &mut IoDispatch, missing: usize) -> Result<bool, Errno> {
        let commands = io.commands_in_flight();
        let IoDispatch { ring, iopoll_ring, nvme_ring, .. } = io;
        let polled = iopoll_ring.as_ref().map_or(0, Ring::transfers_in_flight);
        match (ring, iopoll_ring, nvme_ring) {
            (ring, Some(iopoll_ring), _) if polled > 0 && commands == 0 => {
                self.enter_iopoll_ring(iopoll_ring, ring.as_ref(), missing)
            }
            (ring, _, Some(nvme_ring)) if commands > 0 && polled == 0 => {
                self.enter_nvme_ring(nvme_ring, ring.as_ref(), missing)
            }
            (Some(ring), ..) if commands + polled == 0 => self.enter_main_ring(ring, missing),
            _ => Ok(false),
        }
    }

    /// Submits, and waits for `missing` completions. False, without a system call, when fewer are in flight on this
    /// ring, or when the thread may sleep and the ring does not watch the mailbox.
    #[inline(always)]
    fn enter_main_ring(&self, ring: &mut Ring<Request>, missing: usize) -> Result<bool, Errno> {
        let may_sleep = missing == 0 || self.mailbox_armed.get();
        if !may_sleep || ring.transfers_in_flight() < missing {
            return Ok(false);
        }
        if missing > 0 {
            self.enter_and_sleep(ring, missing)?;
        } else if ring.queued() > 0 || ring.in_flight() > 0 {
            ring.enter(0, None)?;
        }
        Ok(true)
    }

    /// The same on the IOPOLL ring, unless the `other` ring has something in flight. This thread polls for completions
    /// and does not sleep. It reads messages when the completions are there.
    #[inline(always)]
    fn enter_iopoll_ring(
        &self,
        iopoll_ring: &mut Ring<Request>,
        other: Option<&Ring<Request>>,
        missing: usize,
    ) -> Result<bool, Errno> {
        let armed = self.mailbox_armed.get() as usize;
        let is_other_busy = other.is_some_and(|ring| ring.in_flight() > armed);
        if is_other_busy || iopoll_ring.transfers_in_flight() < missing {
            return Ok(false);
        }
        iopoll_ring.enter(missing as u32, None)?;
        Ok(true)
    }

    /// The same on the ring of commands to NVMe namespaces. False also when the `other` ring does not watch the mailbox, or this
    /// one not the other.
    #[inline(always)]
    fn enter_nvme_ring(
        &self,
        nvme_ring: &mut NvmeRing<Request>,
        other: Option<&Ring<Request>>,
        missing: usize,
    ) -> Result<bool, Errno> {
        let armed = self.mailbox_armed.get() as usize;
        let is_other_busy = other.is_some_and(|ring| ring.in_flight() > armed || ring.queued() > 0);
        if is_other_busy || nvme_ring.transfers_in_flight() < missing {
            return Ok(false);
        }
        if missing == 0 || nvme_ring.is_polled() {
            nvme_ring.enter(missing as u32, None)?;
        } else if armed > 0 && nvme_ring.is_watching() {
            self.sleep_in_nvme_ring(nvme_ring, missing, None)?;
        } else {
            return Ok(false);
        }
        Ok(true)
    }

    /// Submits once per 64 polls of the root future without a wait in between, so that a task that wakes itself again and
    /// again does not hold up requests. If the submission fails, the next wait reports it.
    pub(crate) fn submit_periodically(&self, polls: u32) {
        const POLLS: u32 = 64;
        if polls.is_multiple_of(POLLS) {
            let _ = self.submit();
        }
    }

    pub(crate) fn submit(&self) -> Result<(), Errno> {
        self.check_process()?;
        let io = &mut *self.io.borrow_mut();
        io.in_flight.publish_epochs();
        if io.in_flight.has_backlog() {
            io.push_backlog();
        }
        if !io.own_queue_devices.is_empty() {
            self.submit_own(io)?;
        }
        self.enter_all(io)
    }

    pub(crate) fn foreign_turn(&self) -> Result<(), Errno> {
        self.check_process()?;
        self.check_not_reentrant()?;
        self.in_foreign_turn.set(true);
        let mut foreign_turn = ForeignTurn { reactor: self, is_due_again: true };
        foreign_turn.is_due_again = self.turn_until_idle()?;
        Ok(())
    }

    /// True when the turn stopped before everything was done.
    fn turn_until_idle(&self) -> Result<bool, Errno> {
        self.mailbox.announce_awake();
        self.mailbox.notifier().reset();
        if let Some(ring) = &self.io.borrow().ring {
            ring.silence();
        }
        if let Some(nvme_ring) = &self.io.borrow().nvme_ring {
            nvme_ring.silence();
        }
        let read = || self.counters.get(Counter::Messages);
        let begin = read();
        for _ in 0..MAX_ROUNDS {
            self.run_rounds();
            self.submit()?;
            let has_polled_task = self.run_rounds();
            let pushed = self.io.borrow_mut().push_backlog();
            if self.has_ready() || read() - begin > MAX_MESSAGES {
                break;
            }
            if pushed || has_polled_task || self.mailbox.has_messages() {
                continue;
            }
            if self.foreign_fd.get().is_none() {
                return Ok(false);
            }
            let mut again = self.io.borrow().has_unreported();
            // From here on the foreign loop sleeps for this reactor.
            self.register_epoll_sources()
                .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::MFILE))?;
            let now = self.options.clock.now();
            let io = self.io.borrow();
            let mut next = self.timers.borrow().next();
            for ready in io.own_queues_ready() {
                match ready {
                    Ready::Now => again = true,
                    Ready::At(at) | Ready::ReadableOrAt(_, at) => {
                        next = Some(next.map_or(at, |next| next.min(at)));
                    }
                    Ready::Never | Ready::Readable(_) => {}
                }
            }
            drop(io);
            if let Some(poller) = &mut *self.poller.borrow_mut() {
                poller.set_timer(next.map(|next| next.saturating_duration_since(now)))?;
                let mut ended = Vec::new();
                poller.wait(Some(Duration::ZERO), |cell, wait, result| {
                    ended.push((cell, wait, result));
                })?;
                let io = &mut *self.io.borrow_mut();
                again |= !ended.is_empty();
                for (cell, wait, result) in ended {
                    io.in_flight.complete_wait(cell, WaitResult::Descriptor(wait, result));
                }
            }
            if !again && self.mailbox.announce_sleep() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Requests and operations that have not completed.
    #[inline]
    pub(crate) fn outstanding(&self, io: &IoDispatch) -> usize {
        io.requests_in_flight() + self.tasks.borrow().operations()
    }

    /// Reads messages, fires timers, reaps completions, and polls the tasks that this made ready, for some rounds. Submits
    /// nothing and does not wait. True when a task was polled: it may have pushed requests.
    #[inline]
    pub(crate) fn run_rounds(&self) -> bool {
        let _running = self.enter_user_code();
        for round in 0..MAX_ROUNDS {
            if self.mailbox.has_messages() {
                self.read_messages();
            }
            if !self.timers.borrow().is_empty() {
                self.fire_timers();
            }
            let (returned, has_waiters) = {
                let io = &mut *self.io.borrow_mut();
                io.reap_queues();
                if !io.in_flight.for_worker.is_empty() {
                    self.send_to_worker(io);
                }
                if io.in_flight.mailbox_notified {
                    io.in_flight.mailbox_notified = false;
                    self.mailbox_armed.set(false);
                    self.mailbox.notifier().reset();
                }
                let has_waiters =
                    !io.in_flight.to_wake.is_empty() || !io.in_flight.tasks_to_wake.is_empty();
                (!io.in_flight.returned.is_empty(), has_waiters)
            };
            if has_waiters {
                self.wake_waiters();
            }
            if returned {
                self.resume_operations();
            }
            if self.attention.get() & (CLOSING | CONTRADICTED) != 0 {
                self.detach_closed();
                self.choose_again();
            }
            let ready = self.has_ready();
            if ready {
                self.run_ready();
            }
            if !ready && !returned {
                return round > 0;
            }
        }
        true
    }

    #[cold]
    pub(crate) fn send_to_worker(&self, io: &mut IoDispatch) {
        let completions = mem::take(&mut io.in_flight.for_worker);
        io.in_flight.at_worker += completions.len();
        self.counters.add(Counter::CompletedByWorker, completions.len() as u64);
        let worker = self.worker.borrow();
        worker.as_ref().expect("the worker was started with the reactor").send(completions);
    }

    /// Wakes the tasks and callers whose cells have a result.
    pub(crate) fn wake_waiters(&self) {
        {
            let (io, tasks) = (&mut *self.io.borrow_mut(), &mut *self.tasks.borrow_mut());
            for task in io.in_flight.tasks_to_wake.drain(..) {
                tasks.make_ready(task);
            }
        }
        loop {
            let waiter = self.io.borrow_mut().in_flight.to_wake.pop();
            match waiter {
                None => return,
                Some(Waiter::Waker(waker)) => waker.wake(),
                Some(Waiter::Result(sender, result)) => sender.set(result),
                Some(Waiter::None) => {}
            }
        }
    }

    /// Delivers requests that have ended to their operations, and polls these.
    fn resume_operations(&self) {
        let mut returned = mem::take(&mut self.io.borrow_mut().in_flight.returned);
        let mut each = ReturnedRequests { reactor: self, requests: returned.drain(..) };
        for request in each.requests.by_ref() {
            let delivered = self.tasks.borrow_mut().deliver(request);
            match delivered {
                Delivery::ToTask(task) => self.poll_task(task),
                Delivery::Stored => self.io.borrow_mut().in_flight.publish_epochs(),
                Delivery::Late(epoch_holds) => self.io.borrow_mut().leave_epochs(epoch_holds),
            }
        }
        drop(each);
        let in_flight = &mut self.io.borrow_mut().in_flight;
        returned.append(&mut in_flight.returned);
        in_flight.returned = returned;
    }

    /// Polls the tasks that are ready now. Those that become ready meanwhile wait for the next round.
    pub(crate) fn run_ready(&self) {
        let ready = self.tasks.borrow().ready();
        for _ in 0..ready {
            let task = self.tasks.borrow_mut().take_ready();
            let Some(task) = task else { return };
            self.poll_task(task);
        }
    }

    #[inline(always)]
    pub(crate) fn poll_task(&self, task: RunningTask) {
        let guard = PollGuard { reactor: self, task: task.index };
        // Dropped before the guard: if the poll panics, the future is destroyed before its place is freed.
        let mut task = task;
        match task.slot.poll() {
            Poll::Ready(()) => self.tasks.borrow_mut().finish(task),
            Poll::Pending => self.tasks.borrow_mut().put_back(task),
        }
        mem::forget(guard);
    }

    #[cold]
    pub(crate) fn fire_timers(&self) {
        let now = self.options.clock.now();
        loop {
            let event = self.timers.borrow_mut().take_due(now);
            match event {
                None => return,
                Some(TimerEvent::Sleep(cell)) => {
                    self.io.borrow_mut().in_flight.complete_wait(cell, WaitResult::Timer);
                }
                Some(TimerEvent::WaitDeadline(cell)) => self.cancel_wait(cell),
                Some(TimerEvent::OperationDeadline(operation)) => {
                    self.cancel_operation(operation, Errno::TIMEDOUT)
                }
            }
        }
    }

    #[cold]
    pub(crate) fn read_messages(&self) {
        let mut messages = mem::take(&mut *self.messages.borrow_mut());
        self.mailbox.take(&mut messages);
        let mut each = UnreadMessages { reactor: self, messages: messages.drain(..) };
        for message in each.messages.by_ref() {
            self.count(Counter::Messages);
            match message {
                Message::Wake(task) => self.wake_task(task),
                Message::FromWorker(completions) => {
                    self.io.borrow_mut().take_from_worker(completions);
                }
                Message::Detach(device) => self.detach(device),
                Message::Run(job) => {
                    let reactor = self.weak_self.upgrade().expect("the caller holds the reactor");
                    let _current = Current::set(&reactor);
                    job(&reactor);
                }
            }
        }
        drop(each);
        *self.messages.borrow_mut() = messages;
        self.detach_closed();
    }
}
