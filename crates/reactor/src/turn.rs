//! What one turn of the loop does: read mail, let moments happen, take what has
//! come back, poll what became ready by it. It never waits; see `sleep`.

use std::task::Poll;
use std::time::Duration;

use rustix::io::Errno;
use uringfs_device::{Ready, Request};
use uringfs_ring::Ring;

use crate::completed::Completed;
use crate::counters::Counter;
use crate::in_flight::{Answer, Waiter};
use crate::io::{Io, State};
use crate::letters::Letter;
use crate::reactor::{Current, Due, Inner};
use crate::task::{ROOT, Taken};

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
                    if min > 0 || io.ring.as_ref().is_none_or(|ring| ring.queued() == 0) {
                        return Ok(());
                    }
                }
                got
            };
            if min == 0 {
                self.submit()?;
                while self.progress() | self.io.borrow_mut().push_backlog() {
                    self.submit()?;
                }
                take_completed(&mut self.io.borrow_mut().state.completed, completed);
                return Ok(());
            }
            if self.outstanding(&self.io.borrow()) == 0 {
                return Ok(());
            }
            if let Some(timeout) = timeout {
                let now = self.options.clock.now();
                let until = *until.get_or_insert(now + timeout);
                if now >= until {
                    take_completed(&mut self.io.borrow_mut().state.completed, completed);
                    return Ok(());
                }
            }
            self.wait(min - got, until)?;
        }
    }

    /// True when there is nothing to do but to wait for requests.
    #[inline(always)]
    pub(crate) fn is_quiet(&self) -> bool {
        !self.letterbox.has_mail()
            && !self.closing.get()
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
        self.letterbox.announce_awake();
        self.letterbox.bell().silence();
        if let Some(ring) = &self.io.borrow().ring {
            ring.silence();
        }
        loop {
            self.progress();
            self.submit()?;
            let polled = self.progress();
            let pushed = self.io.borrow_mut().push_backlog();
            if pushed || polled || self.tasks.borrow().has_ready() || self.letterbox.has_mail() {
                continue;
            }
            if self.watched.get().is_none() {
                return Ok(());
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
                return Ok(());
            }
        }
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
        let mut rounds = 0;
        loop {
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
            if self.closing.get() {
                self.detach_closed();
            }
            let ready = self.tasks.borrow().has_ready();
            if ready {
                self.run_ready();
            }
            if !ready && !returned {
                return rounds > 0;
            }
            rounds += 1;
            self.submit_at_times(rounds);
        }
    }

    #[cold]
    pub(crate) fn hand_over(&self, io: &mut Io) {
        let completions = std::mem::take(&mut io.state.for_worker);
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
                Some(Waiter::Outcome(cell, outcome)) => cell.set(outcome),
                Some(Waiter::Nobody) => {}
            }
        }
    }

    /// Leaves the requests that have ended with their operations, and polls these.
    fn resume_operations(&self) {
        let mut returned = std::mem::take(&mut self.io.borrow_mut().state.returned);
        for request in returned.drain(..) {
            let taken = self.tasks.borrow_mut().deliver(request);
            if let Some(taken) = taken {
                self.poll_task(taken);
            }
        }
        let state = &mut self.io.borrow_mut().state;
        returned.append(&mut state.returned);
        state.returned = returned;
    }

    pub(crate) fn wake_task(&self, task: u32) {
        if task == ROOT {
            self.root_woken.set(true);
        } else {
            self.tasks.borrow_mut().make_ready(task);
        }
    }

    /// The same from wherever this thread is. False when only a letter will do: a foreign loop that sleeps has to be
    /// told, or it is the tasks that are being looked at.
    pub(crate) fn wake_here(&self, task: u32) -> bool {
        if self.watched.get().is_some() && !self.turning.get() {
            return false;
        }
        if task == ROOT {
            self.root_woken.set(true);
            return true;
        }
        self.tasks.try_borrow_mut().map(|mut tasks| tasks.make_ready(task)).is_ok()
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
    pub(crate) fn poll_task(&self, mut taken: Taken) {
        match taken.home.poll() {
            Poll::Ready(()) => self.tasks.borrow_mut().finish(taken),
            Poll::Pending => self.tasks.borrow_mut().put_back(taken),
        }
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
        let mut letters = std::mem::take(&mut *self.letters.borrow_mut());
        self.letterbox.take(&mut letters);
        self.counters.add(Counter::Letters, letters.len() as u64);
        for letter in letters.drain(..) {
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
        *self.letters.borrow_mut() = letters;
        self.detach_closed();
    }
}

#[inline]
fn take_completed(from: &mut Vec<Completed>, into: &mut Vec<Completed>) {
    if into.is_empty() {
        std::mem::swap(from, into);
    } else {
        into.append(from);
    }
}
