//! What one turn of the loop does: read mail, let moments happen, take what has
//! come back, poll what became ready by it. It never waits; see `sleep`.

use std::mem;
use std::task::Poll;
use std::time::Duration;
use std::vec::Drain;

use rustix::io::Errno;
use uringfs_device::{Ready, Request};
use uringfs_ring::Ring;

use crate::counters::Counter;
use crate::event_loop::core::{CLOSING, Current, Due, Inner, Letter};
use crate::io::dispatch::{Io, State};
use crate::tasks::completion::Completed;
use crate::tasks::task::{Delivered, Taken};
use crate::tasks::waiters::{Answer, Waiter};
use crate::wake::mailbox::Bell;

/// How often a turn goes round at the most: a task that wakes itself for ever keeps neither the root waiting nor
/// whoever called.
const ROUNDS: u32 = 64;
/// A foreign loop's turn that has read more letters leaves the rest to the next: senders that are faster than this
/// thread would else keep it.
const MAX_LETTERS: u64 = 1024;

/// A foreign loop's turn. One that ends by a panic is made up for by another.
struct Turning<'i> {
    inner: &'i Inner,
    is_due_again: bool,
}

impl Drop for Turning<'_> {
    fn drop(&mut self) {
        self.inner.turning.set(false);
        if self.is_due_again && self.inner.watched.get().is_some() {
            self.inner.letterbox.bell().ring();
        }
    }
}

/// A task that is being polled: lost, should that panic.
struct Polled<'i> {
    inner: &'i Inner,
    place: u32,
}

impl Drop for Polled<'_> {
    fn drop(&mut self) {
        self.inner.tasks.borrow_mut().lose(self.place);
    }
}

/// Requests that are being left with their operations: one that panics keeps none from the others.
struct Returned<'i, 'r> {
    inner: &'i Inner,
    requests: Drain<'r, Request>,
}

impl Drop for Returned<'_, '_> {
    fn drop(&mut self) {
        if self.requests.len() > 0 {
            self.inner.io.borrow_mut().state.returned.extend(&mut self.requests);
        }
    }
}

/// The same of letters.
struct Letters<'i, 'r> {
    inner: &'i Inner,
    letters: Drain<'r, Letter>,
}

impl Drop for Letters<'_, '_> {
    fn drop(&mut self) {
        if self.letters.len() > 0 {
            self.inner.letterbox.put_back(&mut self.letters);
        }
    }
}

impl Inner {
    #[inline]
    pub(crate) fn reap(
        &self,
        min: usize,
        timeout: Option<Duration>,
        completed: &mut Vec<Completed>,
    ) -> Result<(), Errno> {
        self.check_process()?;
        if min == 0 && self.watched.get().is_some() {
            // A foreign loop may sleep after this: it has to be a whole turn.
            self.turn()?;
            take_completed(&mut self.io.borrow_mut().state.completed, completed);
            return Ok(());
        }
        if timeout.is_none() && self.is_quiet() && self.reap_quietly(min, completed)? {
            return Ok(());
        }
        self.check_not_running()?;
        let mut until = None;
        loop {
            self.progress();
            let got = {
                let io = &mut *self.io.borrow_mut();
                let got = io.state.completed.len();
                if io.state.has_waiting() {
                    // Before the caller takes the room with new requests.
                    io.push_backlog();
                }
                if got >= min || (got > 0 && got + self.outstanding(io) < min) {
                    take_completed(&mut io.state.completed, completed);
                    let is_submitted = || {
                        io.own.is_empty() && io.ring.as_ref().is_none_or(|ring| ring.queued() == 0)
                    };
                    if min > 0 || is_submitted() {
                        return Ok(());
                    }
                }
                got
            };
            if min == 0 {
                self.submit()?;
                while self.progress() | self.io.borrow_mut().push_backlog() {
                    self.submit()?;
                    if self.has_ready() {
                        break;
                    }
                }
                take_completed(&mut self.io.borrow_mut().state.completed, completed);
                return Ok(());
            }
            if self.outstanding(&self.io.borrow()) == 0 {
                return Ok(());
            }
            if let Some(timeout) = timeout {
                let until = *until.get_or_insert_with(|| self.options.clock.after(timeout));
                if self.options.clock.now() >= until {
                    take_completed(&mut self.io.borrow_mut().state.completed, completed);
                    return Ok(());
                }
            }
            self.wait_unless_ready(min - got, until)?;
        }
    }

    /// Whether tasks are ready: after [`Self::progress`] that some of them wake themselves again and again.
    pub(crate) fn has_ready(&self) -> bool {
        self.tasks.borrow().has_ready()
    }

    /// # Errors
    /// EDEADLK inside of what the reactor runs: it cannot run itself.
    fn check_not_running(&self) -> Result<(), Errno> {
        if self.is_running() { Err(Errno::DEADLK) } else { Ok(()) }
    }

    /// True when there is nothing to do but to wait for requests.
    #[inline(always)]
    pub(crate) fn is_quiet(&self) -> bool {
        !self.letterbox.has_mail()
            && self.attention.get() == 0
            && self.timers.borrow().is_empty()
            && !self.tasks.borrow().has_ready()
    }

    /// Reaps when all that is waited for are requests on the ring: one system
    /// call, one look. False when there is more to do, which is then done the
    /// long way; what has come is kept.
    #[inline]
    pub(crate) fn reap_quietly(
        &self,
        min: usize,
        completed: &mut Vec<Completed>,
    ) -> Result<bool, Errno> {
        let io = &mut *self.io.borrow_mut();
        let missing = min.saturating_sub(io.state.completed.len());
        if !io.own.is_empty() || io.state.has_waiting() {
            return Ok(false);
        }
        io.state.settle();
        let entered = match &mut io.polled {
            Some(polled) if polled.transfers_in_flight() > 0 => {
                self.enter_polling(polled, io.ring.as_ref(), missing)?
            }
            _ => match &mut io.ring {
                Some(ring) => self.enter_quietly(ring, missing)?,
                None => false,
            },
        };
        if !entered {
            return Ok(false);
        }
        io.collect();
        let State { returned, told, woken, for_worker, mail_arrived, .. } = &io.state;
        let is_told = returned.is_empty() && told.is_empty() && woken.is_empty();
        let is_all = is_told && for_worker.is_empty() && !mail_arrived;
        if io.state.completed.len() < min || !is_all {
            return Ok(false);
        }
        take_completed(&mut io.state.completed, completed);
        Ok(true)
    }

    /// Submits, and waits for `missing` completions if they are all there is to wait for.
    #[inline(always)]
    fn enter_quietly(&self, ring: &mut Ring<Request>, missing: usize) -> Result<bool, Errno> {
        if !self.mail_watched.get() || ring.transfers_in_flight() < missing {
            return Ok(false);
        }
        if missing > 0 {
            self.enter_asleep(ring, missing)?;
        } else if ring.queued() > 0 || ring.in_flight() > 0 {
            ring.enter(0, None)?;
        }
        Ok(true)
    }

    /// The same on the ring that polls, when the `other` has nothing to tell. This
    /// thread looks for completions and does not sleep: mail is read when they are there.
    #[inline(always)]
    fn enter_polling(
        &self,
        polled: &mut Ring<Request>,
        other: Option<&Ring<Request>>,
        missing: usize,
    ) -> Result<bool, Errno> {
        let watches = self.mail_watched.get() as usize;
        let is_other_busy = other.is_some_and(|ring| ring.in_flight() > watches);
        if is_other_busy || polled.transfers_in_flight() < missing {
            return Ok(false);
        }
        polled.enter(missing as u32, None)?;
        Ok(true)
    }

    /// Submits once in so many polls without a wait: what wakes itself again and again holds up nobody's
    /// requests. If they cannot be submitted now, the next wait says so.
    pub(crate) fn submit_at_times(&self, polls: u32) {
        const POLLS: u32 = 64;
        if polls.is_multiple_of(POLLS) {
            let _ = self.submit();
        }
    }

    pub(crate) fn submit(&self) -> Result<(), Errno> {
        self.check_process()?;
        let io = &mut *self.io.borrow_mut();
        io.state.settle();
        if io.state.has_waiting() {
            io.push_backlog();
        }
        if !io.own.is_empty() {
            io.submit_own()?;
        }
        self.enter_all(io)
    }

    pub(crate) fn turn(&self) -> Result<(), Errno> {
        self.check_process()?;
        self.check_not_running()?;
        self.turning.set(true);
        let mut turning = Turning { inner: self, is_due_again: true };
        turning.is_due_again = self.turn_until_idle()?;
        Ok(())
    }

    /// True when it has not come to an end.
    fn turn_until_idle(&self) -> Result<bool, Errno> {
        self.letterbox.announce_awake();
        self.letterbox.bell().silence();
        if let Some(ring) = &self.io.borrow().ring {
            ring.silence();
        }
        let read = || self.counters.get(Counter::Letters);
        let begin = read();
        for _ in 0..ROUNDS {
            self.progress();
            self.submit()?;
            let polled = self.progress();
            let pushed = self.io.borrow_mut().push_backlog();
            if self.has_ready() || read() - begin > MAX_LETTERS {
                break;
            }
            if pushed || polled || self.letterbox.has_mail() {
                continue;
            }
            if self.watched.get().is_none() {
                return Ok(false);
            }
            // From here on the foreign loop sleeps for us.
            self.watch_everything()
                .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::MFILE))?;
            let now = self.options.clock.now();
            let io = self.io.borrow();
            let mut next = self.timers.borrow().next();
            let mut again = false;
            for ready in io.own_ready() {
                match ready {
                    Ready::Now => again = true,
                    Ready::At(at) => next = Some(next.map_or(at, |next| next.min(at))),
                    Ready::Never | Ready::Readable(_) => {}
                }
            }
            drop(io);
            if let Some(watch) = &mut *self.watch.borrow_mut() {
                watch.set_timer(next.map(|next| next.saturating_duration_since(now)))?;
                let mut ended = Vec::new();
                watch.wait(Some(Duration::ZERO), |cell, wait, result| {
                    ended.push((cell, wait, result));
                })?;
                let io = &mut *self.io.borrow_mut();
                again |= !ended.is_empty();
                for (cell, wait, result) in ended {
                    io.state.answer(cell, Answer::Wait(wait, result));
                }
            }
            if !again && self.letterbox.announce_sleep() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Operations whose completion is still to come.
    #[inline]
    pub(crate) fn outstanding(&self, io: &Io) -> usize {
        io.in_flight() + self.tasks.borrow().operations()
    }

    /// Reads mail, lets due moments happen, takes what has come back, and polls
    /// what became ready by it, without waiting for anything. True when a task
    /// was polled: it may have pushed requests.
    #[inline]
    pub(crate) fn progress(&self) -> bool {
        let _running = self.run();
        for round in 0..ROUNDS {
            if self.letterbox.has_mail() {
                self.read_mail();
            }
            if !self.timers.borrow().is_empty() {
                self.let_due_happen();
            }
            let (returned, told) = {
                let io = &mut *self.io.borrow_mut();
                io.collect();
                if !io.state.for_worker.is_empty() {
                    self.hand_over(io);
                }
                if io.state.mail_arrived {
                    io.state.mail_arrived = false;
                    self.mail_watched.set(false);
                    self.letterbox.bell().silence();
                }
                let told = !io.state.told.is_empty() || !io.state.woken.is_empty();
                (!io.state.returned.is_empty(), told)
            };
            if told {
                self.tell();
            }
            if returned {
                self.resume_operations();
            }
            if self.attention.get() & CLOSING != 0 {
                self.detach_closed();
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
    pub(crate) fn hand_over(&self, io: &mut Io) {
        let completions = mem::take(&mut io.state.for_worker);
        io.state.at_worker += completions.len();
        self.counters.add(Counter::CompletedByWorker, completions.len() as u64);
        let worker = self.worker.borrow();
        worker.as_ref().expect("started with the reactor").hand_over(completions);
    }

    /// Wakes whoever waits for cells that have been answered.
    pub(crate) fn tell(&self) {
        {
            let (io, tasks) = (&mut *self.io.borrow_mut(), &mut *self.tasks.borrow_mut());
            for task in io.state.woken.drain(..) {
                tasks.make_ready(task);
            }
        }
        loop {
            let told = self.io.borrow_mut().state.told.pop();
            match told {
                None => return,
                Some(Waiter::Waker(waker)) => waker.wake(),
                Some(Waiter::Outcome(sender, outcome)) => sender.set(outcome),
                Some(Waiter::Nobody) => {}
            }
        }
    }

    /// Leaves the requests that have ended with their operations, and polls these.
    fn resume_operations(&self) {
        let mut returned = mem::take(&mut self.io.borrow_mut().state.returned);
        let mut each = Returned { inner: self, requests: returned.drain(..) };
        for request in each.requests.by_ref() {
            let delivered = self.tasks.borrow_mut().deliver(request);
            match delivered {
                Delivered::To(taken) => self.poll_task(taken),
                Delivered::Late(counted_in) => self.io.borrow_mut().count_out(counted_in),
            }
        }
        drop(each);
        let state = &mut self.io.borrow_mut().state;
        returned.append(&mut state.returned);
        state.returned = returned;
    }

    /// Polls the tasks that are ready now; those that become ready wait for the next round.
    pub(crate) fn run_ready(&self) {
        let ready = self.tasks.borrow().ready();
        for _ in 0..ready {
            let taken = self.tasks.borrow_mut().take_ready();
            let Some(taken) = taken else { return };
            self.poll_task(taken);
        }
    }

    #[inline(always)]
    pub(crate) fn poll_task(&self, taken: Taken) {
        let polled = Polled { inner: self, place: taken.place };
        // In this order: when that panics the future is destroyed, then its place given up.
        let mut taken = taken;
        match taken.home.poll() {
            Poll::Ready(()) => self.tasks.borrow_mut().finish(taken),
            Poll::Pending => self.tasks.borrow_mut().put_back(taken),
        }
        mem::forget(polled);
    }

    #[cold]
    pub(crate) fn let_due_happen(&self) {
        let now = self.options.clock.now();
        loop {
            let due = self.timers.borrow_mut().take_due(now);
            match due {
                None => return,
                Some(Due::Cell(cell)) => {
                    self.io.borrow_mut().state.answer(cell, Answer::Time);
                }
                Some(Due::Wait(cell)) => self.cancel_wait(cell),
                Some(Due::Deadline(operation)) => self.stop_operation(operation, Errno::TIMEDOUT),
            }
        }
    }

    #[cold]
    pub(crate) fn read_mail(&self) {
        let mut letters = mem::take(&mut *self.letters.borrow_mut());
        self.letterbox.take(&mut letters);
        let mut each = Letters { inner: self, letters: letters.drain(..) };
        for letter in each.letters.by_ref() {
            self.count(Counter::Letters);
            match letter {
                Letter::Wake(task) => self.wake_task(task),
                Letter::Completed(completions) => {
                    self.io.borrow_mut().collect_from_worker(completions);
                }
                Letter::Detach(device) => self.detach(device),
                Letter::Run(act) => {
                    let itself = self.itself.upgrade().expect("whoever calls holds it");
                    let _current = Current::set(&itself);
                    act(&itself);
                }
            }
        }
        drop(each);
        *self.letters.borrow_mut() = letters;
        self.detach_closed();
    }
}

#[inline]
fn take_completed(from: &mut Vec<Completed>, into: &mut Vec<Completed>) {
    if into.is_empty() {
        mem::swap(from, into);
    } else {
        into.append(from);
    }
}
