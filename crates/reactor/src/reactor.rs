//! One thread's loop: run what is ready, submit in one batch, reap, wake.

use std::cell::{Cell, OnceCell, RefCell};
use std::future::poll_fn;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use uringfs_buffer::Buffer;
use uringfs_device::queue::ring::carries;
use uringfs_device::{
    Clock, Core, Device, DeviceIndex, MAX_DEVICES, Op, Payload, Ready, Request, Tag,
};
use uringfs_ring::{Features, Ring, Wait, WaitHandle, fork_count, watch_forks};

use crate::attach::{self, Attachment};
use crate::completed::{Completed, Token};
use crate::counters::{self, Counter, Counters};
use crate::handle::OutcomeCell;
use crate::in_flight::{Answer, CellIndex, Cells, Waiter};
use crate::io::{Io, Lane, MAIL_TAG, Route, State, Way, tag_of_cell};
use crate::letters::{EventBell, Letter, Letterbox};
use crate::mailbox::{Bell, Mailbox};
use crate::operation::{Asker, CellFuture, Operations};
use crate::options::{CompletionMode, ReactorOptions, Require};
use crate::quiescence::{Domain, Tracker};
use crate::task::{NO_TASK, ROOT, Taken, TaskKind, Tasks, waker_of};
use crate::timer::{TimerKey, Timers};
use crate::watch::{Answered, Watch};
use crate::worker::Worker;

/// A wait for several completions looks around this often, so that mail and
/// other queues never wait for the slowest of a batch.
const BATCH_LOOK: Duration = Duration::from_millis(1);

/// What a moment brings.
pub(crate) enum Due {
    /// The cell's time has come.
    Cell(CellIndex),
    /// The wait's deadline has come.
    Wait(CellIndex),
    /// The operation's deadline has come.
    Deadline(u32),
}

/// A reactor, as its own tasks and operations see it.
pub struct Inner {
    itself: Weak<Inner>,
    pub(crate) options: ReactorOptions,
    pub(crate) io: RefCell<Io>,
    pub(crate) tasks: RefCell<Tasks>,
    pub(crate) timers: RefCell<Timers<Due>>,
    pub(crate) operations: RefCell<Operations>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) current_task: Cell<u32>,
    pub(crate) letterbox: Arc<Letterbox>,
    /// Why there is no ring.
    ring: Result<(), String>,
    watch: RefCell<Option<Watch>>,
    worker: RefCell<Option<Worker>>,
    /// Waits on descriptors under way, by cell, for cancelling.
    waits: RefCell<Vec<(CellIndex, WaitHandle)>>,
    letters: RefCell<Vec<Letter>>,
    root_woken: Cell<bool>,
    mail_watched: Cell<bool>,
    /// Set when somebody else's loop watches our descriptor.
    watched: OnceCell<OwnedFd>,
    /// A foreign loop's turn is under way.
    turning: Cell<bool>,
    /// Devices wait to be let go.
    closing: Cell<bool>,
    name: String,
}

/// One thread's reactor. Dropping it finishes what is in flight first.
pub struct Reactor {
    inner: Rc<Inner>,
}

thread_local! {
    static CURRENT: RefCell<Weak<Inner>> = const { RefCell::new(Weak::new()) };
}

/// Tells when what was in flight to a device has finished, on all reactors.
pub fn quiescence(device: DeviceIndex) -> &'static Domain {
    domain_at(device.get())
}

fn domain_at(place: usize) -> &'static Domain {
    static DOMAINS: [OnceLock<Domain>; MAX_DEVICES] = [const { OnceLock::new() }; MAX_DEVICES];
    DOMAINS[place].get_or_init(Domain::new)
}

/// The reactor of this thread, if it has one.
pub fn current() -> Option<Rc<Inner>> {
    CURRENT.with_borrow(Weak::upgrade)
}

impl Reactor {
    /// A reactor for this thread. The first of a thread is the one that
    /// asynchronous operations use.
    ///
    /// # Errors
    /// When `ring.require` asks for a tier that the machine does not give, with
    /// the reason; when no descriptor is left.
    pub fn new(options: ReactorOptions) -> io::Result<Reactor> {
        let (ring, polled) = attach::make_rings(&options);
        check_tier(&options, ring.as_ref().err())?;
        let (ring, why) = match ring {
            Ok(ring) => (Some(ring), Ok(())),
            Err(error) => (None, Err(error.to_string())),
        };
        let wake_ring = match &ring {
            Some(ring) => Some(ring.descriptor().try_clone_to_owned()?),
            None => None,
        };
        let letterbox: Arc<Letterbox> = Arc::new(Mailbox::new(EventBell::new(wake_ring)?));
        let thread = std::thread::current();
        let name = thread.name().map_or_else(|| format!("{:?}", thread.id()), str::to_owned);
        let state = State {
            cells: Cells::new(),
            completed: Vec::with_capacity(options.depth as usize),
            backlog: Default::default(),
            lanes: Vec::new(),
            told: Vec::new(),
            woken: Vec::new(),
            for_worker: Vec::new(),
            at_worker: 0,
            mode: options.completion,
            mail_arrived: false,
            completed_inline: 0,
            resumed: 0,
        };
        let counters = Arc::new(Counters::default());
        counters::enlist(&counters);
        let worker = match options.completion {
            CompletionMode::Inline => None,
            CompletionMode::Worker => Some(Worker::start(letterbox.clone())?),
        };
        let (attachments, own) = (Vec::new(), Vec::new());
        watch_forks();
        let io = Io { forks: fork_count(), ring, polled, attachments, own, state };
        let inner = Rc::new_cyclic(|itself| Inner {
            itself: itself.clone(),
            io: RefCell::new(io),
            tasks: RefCell::new(Tasks::new(letterbox.clone())),
            timers: RefCell::new(Timers::new()),
            operations: RefCell::new(Operations::new()),
            counters,
            current_task: Cell::new(NO_TASK),
            letterbox,
            ring: why,
            watch: RefCell::new(None),
            worker: RefCell::new(worker),
            waits: RefCell::default(),
            letters: RefCell::default(),
            root_woken: Cell::new(false),
            mail_watched: Cell::new(false),
            watched: OnceCell::new(),
            turning: Cell::new(false),
            closing: Cell::new(false),
            name,
            options,
        });
        CURRENT.with_borrow_mut(|current| {
            if current.upgrade().is_none() {
                *current = Rc::downgrade(&inner);
            }
        });
        let reactor = Reactor { inner };
        if reactor.inner.ring.is_err() {
            // What every wait takes is there from the beginning.
            reactor.inner.watch_everything()?;
        }
        Ok(reactor)
    }

    /// What operations work with.
    #[inline]
    pub fn inner(&self) -> &Rc<Inner> {
        &self.inner
    }

    /// Runs a future to its end, and whatever else becomes ready meanwhile.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        let _current = Current::set(&self.inner);
        let mut future = pin!(future);
        let waker = waker_of(ROOT, &self.inner.letterbox);
        let mut context = Context::from_waker(&waker);
        self.inner.root_woken.set(true);
        loop {
            if self.inner.root_woken.replace(false)
                && let Poll::Ready(output) = future.as_mut().poll(&mut context)
            {
                return output;
            }
            self.inner.progress();
            if !self.inner.root_woken.get() {
                self.inner.wait_or_report(1, None);
                self.inner.progress();
            }
        }
    }

    /// Does what can be done without waiting, for a foreign event loop that
    /// watches [`Self::fd`]. Completions of tokens are then there to reap.
    ///
    /// # Errors
    /// When the kernel takes no requests at all.
    pub fn turn(&self) -> Result<(), Errno> {
        let _current = Current::set(&self.inner);
        self.inner.turning.set(true);
        let turned = self.inner.turn();
        self.inner.turning.set(false);
        turned
    }

    /// Readable when [`Self::turn`] has something to do.
    ///
    /// # Errors
    /// When no descriptor is left.
    pub fn fd(&self) -> io::Result<BorrowedFd<'_>> {
        self.inner.watch_everything()?;
        if self.inner.watched.get().is_none() {
            let watch = self.inner.watch.borrow();
            let watch = watch.as_ref().expect("it was just made");
            let _ = self.inner.watched.set(watch.descriptor().try_clone_to_owned()?);
            // What had completed before nobody will be told of: a turn is due.
            self.inner.letterbox.bell().ring();
        }
        Ok(self.inner.watched.get().expect("it was just set").as_fd())
    }

    /// Hands everything that was pushed to the devices.
    ///
    /// # Errors
    /// When the kernel takes no requests at all; ECHILD in the child of a fork.
    pub fn submit(&self) -> Result<(), Errno> {
        self.inner.submit()
    }

    /// Moves the completions of token operations into `completed`, after waiting
    /// until there are at least `min` or `timeout` has passed; what was pushed
    /// is submitted by the same call. Waits for no more than is in flight.
    ///
    /// # Errors
    /// When the kernel takes no requests at all; ECHILD in the child of a fork.
    #[inline]
    pub fn reap(
        &self,
        min: usize,
        timeout: Option<Duration>,
        completed: &mut Vec<Completed>,
    ) -> Result<(), Errno> {
        self.inner.reap(min, timeout, completed)
    }

    /// Asks for the operations with this token to end soon. Each still completes,
    /// once, and says what became of it. Never lost, however full the queues are.
    pub fn cancel(&self, token: Token) {
        self.inner.io.borrow_mut().cancel(Tag(token.get()));
        let is = |asker: &Asker| matches!(asker, Asker::Token(other) if *other == token);
        self.inner.stop_operations(is, Errno::CANCELED);
    }

    /// Runs a future on this reactor beside what it does otherwise. It is
    /// destroyed, unfinished or not, with the reactor.
    pub fn spawn(&self, future: impl Future<Output = ()> + 'static) {
        let taken = self.inner.tasks.borrow_mut().add(TaskKind::Spawned, future);
        self.inner.poll_task(taken);
    }

    /// Everything counted so far by this reactor.
    pub fn counters(&self) -> &Counters {
        self.inner.io.borrow().publish(&self.inner.counters);
        &self.inner.counters
    }

    /// Which tier this is, and why not a higher one.
    pub fn tier(&self) -> String {
        match (&self.inner.ring, Features::probe()) {
            (Ok(()), Ok(features)) if features.is_full() => "io_uring, every feature".into(),
            (Ok(()), Ok(features)) => {
                let dropped: Vec<_> = features
                    .list()
                    .iter()
                    .filter(|feature| !feature.is_kept())
                    .map(|feature| feature.name)
                    .collect();
                format!("io_uring, restricted: without {}", dropped.join(", "))
            }
            (Err(why), _) => format!("no io_uring: {why}"),
            (_, Err(why)) => format!("no io_uring: {why}"),
        }
    }

    /// Which queue serves `device` here, and why; attaches it if it was not.
    ///
    /// # Errors
    /// When no queue can.
    pub fn queue_of(&self, device: &Device) -> io::Result<(String, String)> {
        self.inner.attach(device.core())?;
        let io = self.inner.io.borrow();
        let attachment = io.attachments[device.index().get()].as_ref();
        let attachment = attachment.expect("it was just attached");
        let name = match &attachment.route {
            Route::Polled => "ring, polled".into(),
            Route::Ring => "ring".into(),
            Route::Own(_) if attachment.core.backend().own_queue(1).is_some() => "own".into(),
            Route::Own(_) => attachment.kind.to_string(),
        };
        Ok((name, attachment.reason.clone()))
    }

    /// Why memory is not registered, when it was refused.
    pub fn registration_refused(&self) -> Option<String> {
        self.inner.io.borrow().ring.as_ref().and_then(|ring| ring.registration().refused)
    }
}

fn check_tier(options: &ReactorOptions, ring: Option<&io::Error>) -> io::Result<()> {
    let refuse = |why: String| {
        let text = format!("ring.require: {why}");
        Err(io::Error::new(io::ErrorKind::Unsupported, text))
    };
    match (options.require, ring) {
        (Require::Any, _) | (Require::Ring, None) => Ok(()),
        (Require::Ring | Require::Full, Some(error)) => refuse(error.to_string()),
        (Require::Full, None) => match Features::probe() {
            Ok(features) => match features.list().iter().find(|feature| !feature.is_kept()) {
                None => Ok(()),
                Some(feature) => {
                    let why = feature.state.clone().err().unwrap_or_default();
                    refuse(format!("{} is missing: {why}", feature.name))
                }
            },
            Err(why) => refuse(why),
        },
    }
}

/// Makes a reactor the thread's current one for a while.
struct Current {
    before: Weak<Inner>,
}

impl Current {
    fn set(inner: &Rc<Inner>) -> Current {
        let before =
            CURRENT.with_borrow_mut(|current| std::mem::replace(current, Rc::downgrade(inner)));
        Current { before }
    }
}

impl Drop for Current {
    fn drop(&mut self) {
        let before = std::mem::take(&mut self.before);
        CURRENT.with_borrow_mut(|current| {
            // The first reactor of a thread stays its current one.
            if before.strong_count() > 0 {
                *current = before;
            }
        });
    }
}

impl Inner {
    /// Issues a token operation that is one request, without a task: counts it
    /// in, asks `place` for its address on the device, which reads the map, and
    /// pushes it.
    ///
    /// # Errors
    /// The reason that `place` gave, or [`Counter::SimpleFull`] when the queue
    /// has no room or does not serve the device; with the buffer.
    #[inline(always)]
    pub fn push_simple(
        &self,
        device: DeviceIndex,
        op: Op,
        buffer: Buffer,
        tag: Tag,
        place: impl FnOnce(&Buffer) -> Result<u64, Counter>,
    ) -> Result<(), (Buffer, Counter)> {
        let io = &mut *self.io.borrow_mut();
        let Some(mark) = io.state.begin(device) else {
            return Err((buffer, Counter::SimpleFull));
        };
        let address = match place(&buffer) {
            Ok(address) => address,
            Err(reason) => {
                io.state.end(device, mark);
                return Err((buffer, reason));
            }
        };
        let mut request = Request::new(device, op, address, Payload::Buffer(buffer), tag);
        request.mark = mark;
        match io.push_now(request) {
            Ok(()) => Ok(()),
            Err(request) => pushed_back(io, request),
        }
    }

    /// The same for a read that somebody awaits.
    ///
    /// # Errors
    /// As [`Self::push_simple`].
    pub fn push_awaited(
        &self,
        device: DeviceIndex,
        op: Op,
        buffer: Buffer,
        cell: &OutcomeCell,
        place: impl FnOnce(&Buffer) -> Result<u64, Counter>,
    ) -> Result<(), (Buffer, Counter)> {
        let index = self.io.borrow_mut().state.cells.open_awaited(cell.clone());
        let pushed = self.push_simple(device, op, buffer, tag_of_cell(index), place);
        if pushed.is_err() {
            self.io.borrow_mut().state.cells.close(index);
        }
        pushed
    }

    /// True when this reactor serves the device already.
    #[inline]
    pub fn is_attached(&self, device: DeviceIndex) -> bool {
        self.io.borrow().attachments.get(device.get()).is_some_and(Option::is_some)
    }

    /// Something was asked for outside a turn: a foreign loop that sleeps for
    /// this reactor has to give it one.
    pub fn ask_for_turn(&self) {
        if self.watched.get().is_some() && !self.turning.get() {
            self.letterbox.bell().ring();
        }
    }

    /// True in the child of a fork, where the reactor is its parent's.
    pub fn is_forked(&self) -> bool {
        self.io.borrow().is_forked()
    }

    fn check_process(&self) -> Result<(), Errno> {
        if self.is_forked() { Err(Errno::CHILD) } else { Ok(()) }
    }

    /// True when no more operations are taken until some have ended.
    pub fn is_full(&self) -> bool {
        self.tasks.borrow().operations() >= self.options.depth as usize
    }

    /// Counts on this reactor.
    #[inline]
    pub fn count(&self, counter: Counter) {
        self.counters.add(counter, 1);
    }

    /// Asks what answers to this cell to end soon.
    pub fn cancel_by_cell(&self, cell: &OutcomeCell) {
        let simple = self.io.borrow().state.cells.of_outcome(cell);
        if let Some(simple) = simple {
            self.io.borrow_mut().cancel(tag_of_cell(simple));
            return self.tell();
        }
        let is = |asker: &Asker| matches!(asker, Asker::Cell(other) if other.is(cell));
        self.stop_operations(is, Errno::CANCELED);
    }

    /// A handle that other threads can send work by.
    pub fn remote(&self) -> Remote {
        Remote { letterbox: self.letterbox.clone() }
    }

    /// Puts a device into this reactor's tables, if it is not there.
    ///
    /// # Errors
    /// ENODEV when it has been removed; why no queue can serve it.
    pub fn attach(&self, core: &Arc<Core>) -> io::Result<()> {
        let place = core.index().get();
        if self.io.borrow().attachments.get(place).is_some_and(Option::is_some) {
            return Ok(());
        }
        if core.is_closed() {
            return Err(Errno::NODEV.into());
        }
        let polled = self.io.borrow().polled.is_some();
        let chosen = attach::choose(core, &self.options, &self.ring, polled)?;
        let by_ring = matches!(chosen.route, Route::Ring | Route::Polled);
        if !by_ring {
            // What waiting for its queue takes is there before anything is in flight.
            self.watch_everything()?;
        }
        {
            let io = &mut *self.io.borrow_mut();
            if by_ring {
                io.install(core)?;
            }
            if io.attachments.len() <= place {
                io.attachments.resize_with(place + 1, || None);
            }
            while io.state.lanes.len() <= place {
                let index = io.state.lanes.len();
                let tracker = Tracker::new(domain_at(index), self.name.clone());
                io.state.lanes.push(Lane { way: Way::Closed, tracker });
            }
            io.state.lanes[place].way =
                if matches!(chosen.route, Route::Ring) { Way::Ring } else { Way::Other };
            io.attachments[place] = Some(Attachment::new(core.clone(), chosen));
            if !by_ring {
                io.own.push(place);
            }
        }
        let letterbox = Arc::downgrade(&self.letterbox);
        core.on_close(Box::new(move |index| {
            // A reactor that is gone holds no device.
            if let Some(letterbox) = letterbox.upgrade() {
                let _ = letterbox.post_with(Letter::Detach(index), ring_bell);
            }
        }));
        Ok(())
    }

    /// Pushes a request, attaching its device at first use; with no room it waits.
    #[allow(clippy::result_large_err)] // the request goes back whole, memory included
    pub(crate) fn issue_or_wait(
        &self,
        core: &Arc<Core>,
        request: Request,
    ) -> Result<(), (Request, Errno)> {
        if let Err(error) = self.attach(core) {
            return Err((request, Errno::from_io_error(&error).unwrap_or(Errno::IO)));
        }
        let io = &mut *self.io.borrow_mut();
        if io.attachments[core.index().get()].as_ref().is_some_and(|one| one.closing) {
            return Err((request, Errno::NODEV));
        }
        let pushed = if carries(request.op) {
            io.push_now(request)
        } else {
            let mut request = request;
            request.issued = true;
            io.push(request)
        };
        if let Err(mut request) = pushed {
            self.count(Counter::Backlogged);
            request.issued = false;
            io.state.backlog.push_back(request);
        }
        Ok(())
    }

    /// Waits for a moment, or until the operation is asked to stop.
    pub(crate) async fn sleep_until(self: &Rc<Self>, at: Instant, operation: Option<u32>) {
        let cell = self.io.borrow_mut().state.cells.open(operation);
        let _timer = self.timer(at, Due::Cell(cell));
        let mut future =
            CellFuture { inner: self.clone(), cell, by_task: operation.is_some(), taken: false };
        poll_fn(|context| future.poll_answer(context)).await;
    }

    /// Has something happen at a moment, unless the guard is dropped before.
    pub(crate) fn timer(self: &Rc<Self>, at: Instant, due: Due) -> TimerGuard {
        let key = self.timers.borrow_mut().insert(at, due);
        TimerGuard { inner: self.clone(), key }
    }

    /// Begins to wait for a descriptor; cancelled when the future is dropped.
    pub(crate) fn wait_for(self: &Rc<Self>, wait: Wait) -> CellFuture {
        let cell = self.io.borrow_mut().state.cells.open(None);
        let begun = {
            let io = &mut *self.io.borrow_mut();
            match &mut io.ring {
                Some(ring) => match ring.push_wait(wait, cell as u64) {
                    Ok(handle) => {
                        self.waits.borrow_mut().push((cell, handle));
                        Ok(())
                    }
                    Err(wait) => Err((wait, Err(Errno::AGAIN))),
                },
                None => self.begin_by_epoll(cell, wait),
            }
        };
        if let Err((wait, result)) = begun {
            self.io.borrow_mut().state.answer(cell, Answer::Wait(wait, result));
        }
        CellFuture { inner: self.clone(), cell, by_task: false, taken: false }
    }

    pub(crate) fn cancel_wait(&self, cell: CellIndex) {
        let handle = {
            let mut waits = self.waits.borrow_mut();
            let place = waits.iter().position(|(other, _)| *other == cell);
            place.map(|place| waits.swap_remove(place).1)
        };
        let io = &mut *self.io.borrow_mut();
        if let (Some(handle), Some(ring)) = (handle, &mut io.ring) {
            ring.cancel_wait(handle);
        } else if let Some(watch) = &mut *self.watch.borrow_mut()
            && let Some(wait) = watch.cancel(cell)
        {
            io.state.answer(cell, Answer::Wait(wait, Err(Errno::CANCELED)));
        }
    }

    /// A wait has ended: there is nothing left to cancel.
    pub(crate) fn forget_wait(&self, cell: CellIndex) {
        self.waits.borrow_mut().retain(|(other, _)| *other != cell);
    }

    fn begin_by_epoll(&self, cell: CellIndex, wait: Wait) -> Result<(), Answered> {
        let mut watch = self.watch.borrow_mut();
        if watch.is_none() {
            match Watch::new() {
                Ok(made) => *watch = Some(made),
                Err(error) => return Err((wait, Err(error))),
            }
        }
        watch.as_mut().expect("it was just made").begin(cell, wait)
    }

    #[inline]
    fn reap(
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
    fn is_quiet(&self) -> bool {
        !self.letterbox.has_mail()
            && self.mail_watched.get()
            && !self.closing.get()
            && self.timers.borrow().is_empty()
            && !self.tasks.borrow().has_ready()
    }

    /// Reaps when all that is waited for are requests on the ring: one system
    /// call, one look. False when there is more to do, which is then done the
    /// long way; what has come is kept.
    #[inline]
    fn reap_quietly(&self, min: usize, completed: &mut Vec<Completed>) -> Result<bool, Errno> {
        let io = &mut *self.io.borrow_mut();
        let Some(ring) = &mut io.ring else { return Ok(false) };
        let missing = min.saturating_sub(io.state.completed.len());
        let by_ring = io.own.is_empty() && io.polled.is_none() && io.state.backlog.is_empty();
        if missing == 0 || !by_ring || ring.transfers_in_flight() < missing {
            return Ok(false);
        }
        self.enter_asleep(ring, missing)?;
        io.collect();
        let State { told, woken, for_worker, mail_arrived, .. } = &io.state;
        let is_all = told.is_empty() && woken.is_empty() && for_worker.is_empty() && !mail_arrived;
        if io.state.completed.len() < min || !is_all {
            return Ok(false);
        }
        take_completed(&mut io.state.completed, completed);
        Ok(true)
    }

    /// Submits, and waits for `wanted` completions of the ring or for mail.
    #[inline]
    fn enter_asleep(&self, ring: &mut Ring<Request>, wanted: usize) -> Result<(), Errno> {
        if !self.letterbox.announce_sleep() {
            return ring.enter(0, None);
        }
        let look = if wanted > 1 { Some(BATCH_LOOK) } else { None };
        let entered = ring.enter(wanted as u32, look);
        self.letterbox.announce_awake();
        entered
    }

    /// Operations whose completion is still to come.
    #[inline]
    fn outstanding(&self, io: &Io) -> usize {
        io.in_flight() + self.tasks.borrow().operations()
    }

    /// Reads mail, lets due moments happen, takes what has come back, and polls
    /// what became ready by it, without waiting for anything. True when a task
    /// was polled: it may have pushed requests.
    #[inline]
    pub(crate) fn progress(&self) -> bool {
        let mut polled = false;
        loop {
            if self.letterbox.has_mail() {
                self.read_mail();
            }
            if !self.timers.borrow().is_empty() {
                self.let_due_happen();
            }
            let told = {
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
                !io.state.told.is_empty() || !io.state.woken.is_empty()
            };
            if told {
                self.tell();
            }
            if self.closing.get() {
                self.detach_closed();
            }
            if !self.tasks.borrow().has_ready() {
                return polled;
            }
            self.run_ready();
            polled = true;
        }
    }

    #[cold]
    fn hand_over(&self, io: &mut Io) {
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

    fn wake_task(&self, task: u32) {
        if task == ROOT {
            self.root_woken.set(true);
        } else {
            self.tasks.borrow_mut().make_ready(task);
        }
    }

    /// Polls the tasks that are ready now; those that become ready wait for the next round.
    fn run_ready(&self) {
        let ready = self.tasks.borrow().ready();
        for _ in 0..ready {
            let taken = self.tasks.borrow_mut().take_ready();
            let Some(taken) = taken else { return };
            self.poll_task(taken);
        }
    }

    pub(crate) fn poll_task(&self, mut taken: Taken) {
        let before = self.current_task.replace(taken.place);
        let polled = taken.future.as_mut().poll(&mut Context::from_waker(&taken.waker));
        self.current_task.set(before);
        match polled {
            Poll::Ready(()) => self.tasks.borrow_mut().finish(taken),
            Poll::Pending => self.tasks.borrow_mut().put_back(taken),
        }
    }

    #[cold]
    fn let_due_happen(&self) {
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
    fn read_mail(&self) {
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

    /// The device takes no new requests here; it goes when its last has ended.
    fn detach(&self, device: DeviceIndex) {
        let io = &mut *self.io.borrow_mut();
        if let Some(Some(attachment)) = io.attachments.get_mut(device.get()) {
            attachment.closing = true;
            io.state.lanes[device.get()].way = Way::Closed;
        }
    }

    /// Lets go of closed devices that have nothing in flight.
    fn detach_closed(&self) {
        let io = &mut *self.io.borrow_mut();
        let backlog: Vec<usize> =
            io.state.backlog.iter().map(|request| request.device.get()).collect();
        // Which devices these belong to is not known until they are back.
        let at_worker = io.state.at_worker + io.state.for_worker.len() > 0;
        let mut waiting = false;
        for place in 0..io.attachments.len() {
            let Some(attachment) = &io.attachments[place] else { continue };
            if !attachment.closing {
                continue;
            }
            let by_ring = matches!(attachment.route, Route::Ring | Route::Polled);
            let mut busy = at_worker || attachment.own_in_flight() > 0 || backlog.contains(&place);
            // An operation may be between two requests.
            let tracker = &mut io.state.lanes[place].tracker;
            tracker.settle();
            busy |= tracker.is_active();
            if by_ring && !busy {
                for ring in [&mut io.ring, &mut io.polled].into_iter().flatten() {
                    busy |= ring.remove(place as u32) == Err(Errno::BUSY);
                }
            }
            if busy {
                waiting = true;
                continue;
            }
            if let Some(watch) = &mut *self.watch.borrow_mut() {
                // Its queues' descriptors are closed; their numbers may come again.
                watch.forget_lasting();
            }
            io.own.retain(|other| *other != place);
            io.attachments[place] = None;
        }
        self.closing.set(waiting);
    }

    fn submit(&self) -> Result<(), Errno> {
        self.check_process()?;
        let io = &mut *self.io.borrow_mut();
        if !io.state.backlog.is_empty() {
            io.push_backlog();
        }
        if !io.own.is_empty() {
            io.submit_own()?;
        }
        self.enter_all(io)
    }

    /// # Panics
    /// In the child of a fork, and when the kernel takes no requests at all:
    /// the future that is waited for can never end.
    fn wait_or_report(&self, wanted: usize, until: Option<Instant>) {
        let waited = self.check_process().and_then(|()| self.wait(wanted, until));
        if let Err(error) = waited {
            panic!("the reactor cannot wait: {error}");
        }
    }

    /// Submits what is pushed and sleeps until something has come back, mail
    /// has come, or the time has.
    #[inline]
    pub(crate) fn wait(&self, wanted: usize, until: Option<Instant>) -> Result<(), Errno> {
        let io = &mut *self.io.borrow_mut();
        let simple = io.own.is_empty() && io.polled.is_none() && io.state.backlog.is_empty();
        if simple
            && until.is_none()
            && self.mail_watched.get()
            && self.timers.borrow().is_empty()
            && let Some(ring) = &mut io.ring
            && ring.transfers_in_flight() > 0
        {
            let wanted = wanted.min(ring.transfers_in_flight());
            return self.enter_asleep(ring, wanted);
        }
        self.wait_for_anything(io, until)
    }

    #[inline(never)]
    fn wait_for_anything(&self, io: &mut Io, until: Option<Instant>) -> Result<(), Errno> {
        if !io.state.backlog.is_empty() {
            io.push_backlog();
        }
        io.submit_own()?;
        let mut until = [until, self.timers.borrow().next()].into_iter().flatten().min();
        let mut readable = io.ring.is_none();
        let mut now = false;
        for ready in io.own_ready() {
            match ready {
                Ready::Never => {}
                Ready::Now => now = true,
                Ready::At(at) => until = Some(until.map_or(at, |until| until.min(at))),
                Ready::Readable(_) => readable = true,
            }
        }
        if now {
            return self.enter_all(io);
        }
        if let Some(polled) = &mut io.polled
            && polled.transfers_in_flight() > 0
        {
            let alone = io.ring.as_ref().is_none_or(|ring| ring.transfers_in_flight() == 0);
            polled.enter(alone as u32, None)?;
            return match &mut io.ring {
                Some(ring) if !alone || ring.queued() > 0 => ring.enter(0, None),
                _ => Ok(()),
            };
        }
        let ring_busy = io.ring.as_ref().is_some_and(|ring| ring.transfers_in_flight() > 0);
        if let Clock::Virtual(clock) = &self.options.clock
            && !ring_busy
            && !readable
            && io.state.at_worker == 0
            && let Some(until) = until
        {
            clock.advance_to(until);
            return self.enter_all(io);
        }
        if !ring_busy && !readable && self.spin(until) {
            return self.enter_all(io);
        }
        let limit = until.map(|until| until.saturating_duration_since(self.options.clock.now()));
        if readable {
            return self.wait_by_epoll(io, limit);
        }
        let ring = io.ring.as_mut().expect("without a ring everything is by epoll");
        self.watch_mail(ring);
        if !self.letterbox.announce_sleep() {
            return ring.enter(0, None);
        }
        self.count(Counter::Sleeps);
        let entered = ring.enter(1, limit);
        self.letterbox.announce_awake();
        entered
    }

    /// Hands over what is pushed, and has the kernel finish what it deferred.
    fn enter_all(&self, io: &mut Io) -> Result<(), Errno> {
        for ring in [&mut io.ring, &mut io.polled].into_iter().flatten() {
            if ring.queued() > 0 || ring.in_flight() > 0 {
                ring.enter(0, None)?;
            }
        }
        Ok(())
    }

    /// Looks for mail for a while. Short, and once a sleep: an idle reactor sleeps.
    fn spin(&self, until: Option<Instant>) -> bool {
        let spin = Duration::from_micros(self.options.spin_us.into());
        if spin.is_zero() || matches!(self.options.clock, Clock::Virtual(_)) {
            return self.letterbox.has_mail();
        }
        let begin = Instant::now();
        let end = until.map_or(begin + spin, |until| until.min(begin + spin));
        loop {
            for _ in 0..50 {
                if self.letterbox.has_mail() {
                    return true;
                }
                std::hint::spin_loop();
            }
            if Instant::now() >= end {
                return false;
            }
        }
    }

    /// Has the ring wake us when the mailbox's bell is rung.
    fn watch_mail(&self, ring: &mut Ring<Request>) {
        if !self.mail_watched.get() {
            let Ok(file) = self.letterbox.bell().event().try_clone_to_owned() else { return };
            let events = rustix::event::PollFlags::IN;
            let wait = Wait::Poll { file: Arc::new(file), events };
            self.mail_watched.set(ring.push_wait(wait, MAIL_TAG).is_ok());
        }
    }

    fn wait_by_epoll(&self, io: &mut Io, limit: Option<Duration>) -> Result<(), Errno> {
        let mut watch = self.watch.borrow_mut();
        let watch = match &mut *watch {
            Some(watch) => watch,
            none => none.insert(Watch::new()?),
        };
        self.watch_all(watch, io)
            .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::MFILE))?;
        if let Some(ring) = &mut io.ring {
            // What completes from here on makes the notifier readable.
            ring.silence();
            ring.enter(0, None)?;
            if ring.has_completed() {
                return Ok(());
            }
        }
        // A queue may have found out only when it was asked what to watch.
        let now = io.own_ready().any(|ready| matches!(ready, Ready::Now));
        if now || !self.letterbox.announce_sleep() {
            return Ok(());
        }
        self.count(Counter::Sleeps);
        let state = &mut io.state;
        let waited =
            watch.wait(limit, |cell, wait, result| state.answer(cell, Answer::Wait(wait, result)));
        self.letterbox.announce_awake();
        self.letterbox.bell().silence();
        waited
    }

    fn watch_everything(&self) -> io::Result<()> {
        let mut watch = self.watch.borrow_mut();
        let watch = match &mut *watch {
            Some(watch) => watch,
            none => none.insert(Watch::new()?),
        };
        self.watch_all(watch, &self.io.borrow())
    }

    /// Has everything that may complete wake whoever waits on `watch`.
    fn watch_all(&self, watch: &mut Watch, io: &Io) -> io::Result<()> {
        watch.watch(self.letterbox.bell().event())?;
        if let Some(ring) = &io.ring {
            watch.watch(ring.notifier()?)?;
        }
        for ready in io.own_ready() {
            if let Ready::Readable(descriptor) = ready {
                watch.watch(descriptor)?;
            }
        }
        Ok(())
    }

    fn turn(&self) -> Result<(), Errno> {
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
}

/// No queue has taken a request of [`Inner::push_simple`].
#[cold]
fn pushed_back(io: &mut Io, request: Request) -> Result<(), (Buffer, Counter)> {
    io.state.end(request.device, request.mark);
    match request.payload {
        Payload::Buffer(buffer) => Err((buffer, Counter::SimpleFull)),
        Payload::Buffers(_) | Payload::Length(_) => unreachable!("it has one buffer"),
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

impl Drop for Reactor {
    /// Finishes every operation and request, then lets go of devices. Futures
    /// that were spawned are destroyed first.
    fn drop(&mut self) {
        let inner = &self.inner;
        if inner.is_forked() {
            // Everything in flight is the parent's, and so are the threads.
            let io = &mut *inner.io.borrow_mut();
            std::mem::forget(std::mem::take(&mut io.attachments));
            std::mem::forget(inner.worker.borrow_mut().take());
            return;
        }
        {
            let _current = Current::set(inner);
            let spawned = inner.tasks.borrow_mut().take_spawned();
            drop(spawned);
            loop {
                inner.progress();
                if inner.outstanding(&inner.io.borrow()) == 0 {
                    if inner.letterbox.close_if_empty() {
                        break;
                    }
                } else if inner.wait(1, None).is_err() {
                    // The kernel takes no more requests; the rings wait for theirs.
                    break;
                }
            }
        }
        inner.io.borrow().publish(&inner.counters);
        counters::retire(&inner.counters);
        let io = &mut *inner.io.borrow_mut();
        io.own.clear();
        io.attachments.clear();
        io.state.lanes.clear();
    }
}

/// A moment that is to come. Dropped before, nothing happens then.
pub(crate) struct TimerGuard {
    inner: Rc<Inner>,
    key: TimerKey,
}

impl TimerGuard {
    /// True when the moment has come.
    pub(crate) fn has_come(&self) -> bool {
        !self.inner.timers.borrow().contains(self.key)
    }
}

impl Drop for TimerGuard {
    fn drop(&mut self) {
        self.inner.timers.borrow_mut().remove(self.key);
    }
}

/// Sends work to a reactor from any thread.
#[derive(Clone)]
pub struct Remote {
    letterbox: Arc<Letterbox>,
}

impl Remote {
    /// Has `act` run on the reactor's thread. False when the reactor is gone.
    pub fn run(&self, act: impl FnOnce(&Rc<Inner>) + Send + 'static) -> bool {
        let letter = Letter::Run(Box::new(act));
        self.letterbox.post_with(letter, ring_bell).is_ok()
    }
}

/// Wakes by a message of our own ring when both sides have one, else by the eventfd.
fn ring_bell(bell: &EventBell) {
    if let (Some(target), Some(inner)) = (bell.owners_ring(), current())
        && let Ok(mut io) = inner.io.try_borrow_mut()
        && let Some(ring) = &mut io.ring
        && ring.push_message(target.as_fd())
        && ring.enter(0, None).is_ok()
    {
        return;
    }
    bell.ring();
}

impl std::fmt::Debug for Reactor {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Reactor ({})", self.tier())
    }
}
