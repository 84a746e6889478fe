//! A reactor: what it is made of, and what its thread can ask of it. What a
//! turn does stands in `turn`, how it waits in `sleep`, its devices in `attach`.

use std::cell::{Cell, OnceCell, RefCell};
use std::io;
use std::mem;
use std::os::fd::{AsFd, BorrowedFd};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::task::{Context, Poll};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use uringfs_device::{Device, Tag};
use uringfs_ring::{Features, fork_count, watch_forks};

use crate::counters::{self, Counters};
use crate::event_loop::core::{Current, Inner, ReactorMailbox};
use crate::event_loop::siblings::{self, Siblings};
use crate::event_loop::sleep::RECHECK_INTERVAL;
use crate::event_loop::waker::task_waker;
use crate::io::completion_worker::CompletionWorker;
use crate::io::dispatch::{InFlight, IoDispatch};
use crate::io::rings::make_rings;
use crate::io::route::QueueRoute;
use crate::options::{CompletionMode, ReactorOptions, Require};
use crate::tasks::completion::{Completed, Token};
use crate::tasks::operation_state::Asker;
use crate::tasks::task::{ROOT, Tasks};
use crate::tasks::timer::Timers;
use crate::tasks::waiters::WaitCells;
use crate::wake::mailbox::{Mailbox, Notify};
use crate::wake::message::Notifier;

/// How long a reactor that goes inside of what another of its thread runs waits for what the other may hold.
const SIBLING_TIMEOUT: Duration = Duration::from_secs(1);

/// One thread's reactor. Dropping it finishes what is in flight first.
///
/// A thread may have several. Only one is turned at a time: while [`Reactor::block_on`] or [`Reactor::reap`] of one
/// waits, operations of the others stand still, and with them what they hold. A wait without a timeout for a lock
/// that an operation of another one holds never ends. Dropping is an exception: it turns the others, too, as
/// often as it takes. Inside of a task, a message or a waker of another one it cannot: after a second,
/// when none of its requests is in flight, it asks its operations to stop, and those that wait for a lock end with
/// ECANCELED.
pub struct Reactor {
    inner: Rc<Inner>,
}

static NEXT_NUMBER: AtomicU16 = AtomicU16::new(0);

impl Reactor {
    /// A reactor for this thread. The first of a thread is the one that
    /// asynchronous operations use.
    ///
    /// # Errors
    /// When `ring.require` asks for a tier that the machine does not give, with
    /// the reason; when no descriptor is left.
    pub fn new(options: ReactorOptions) -> io::Result<Reactor> {
        let (ring, polled) = make_rings(&options);
        check_tier(&options, ring.as_ref().err())?;
        let (ring, ring_status) = match ring {
            Ok(ring) => (Some(ring), Ok(())),
            Err(error) => (None, Err(error.to_string())),
        };
        let wake_ring = match &ring {
            Some(ring) => Some(ring.descriptor().try_clone_to_owned()?),
            None => None,
        };
        let mailbox: Arc<ReactorMailbox> = Arc::new(Mailbox::new(Notifier::new(wake_ring)?));
        let thread = thread::current();
        let name = thread.name().map_or_else(|| format!("{:?}", thread.id()), str::to_owned);
        let in_flight = InFlight {
            cells: WaitCells::new(),
            completed: Vec::with_capacity(options.depth as usize),
            returned: Vec::with_capacity(options.depth as usize),
            backlog: Default::default(),
            failures: Vec::new(),
            locked: Default::default(),
            devices: Vec::new(),
            to_wake: Vec::new(),
            tasks_to_wake: Vec::new(),
            for_worker: Vec::new(),
            at_worker: 0,
            mode: options.completion,
            mailbox_notified: false,
            has_ended_epoch: false,
            completed_inline: 0,
            resumed: 0,
        };
        let counters = Arc::new(Counters::default());
        counters::register(&counters);
        let worker = match options.completion {
            CompletionMode::Inline => None,
            CompletionMode::Worker => Some(CompletionWorker::start(mailbox.clone())?),
        };
        let (attachments, own_queue_devices) = (Vec::new(), Vec::new());
        watch_forks();
        let io = IoDispatch {
            forks: fork_count(),
            ring,
            polled,
            attachments,
            own_queue_devices,
            detached_calls: 0,
            in_flight,
        };
        let task_mailbox = mailbox.clone();
        let make_waker = move |task| task_waker(task, &task_mailbox);
        let inner = Rc::new_cyclic(|weak_self| Inner {
            weak_self: weak_self.clone(),
            io: RefCell::new(io),
            tasks: RefCell::new(Tasks::new(Box::new(make_waker))),
            timers: RefCell::new(Timers::new()),
            counters,
            mailbox,
            ring_status,
            poller: RefCell::new(None),
            worker: RefCell::new(worker),
            waits: RefCell::default(),
            messages: RefCell::default(),
            root_woken: Cell::new(false),
            mailbox_armed: Cell::new(false),
            foreign_fd: OnceCell::new(),
            in_foreign_turn: Cell::new(false),
            attention: Cell::new(0),
            in_block_on: Cell::new(false),
            name,
            // The last of all numbers is nobody's.
            number: NEXT_NUMBER.fetch_add(1, Ordering::Relaxed) % u16::MAX,
            options,
        });
        Current::set_first(&inner);
        siblings::register(&inner);
        let reactor = Reactor { inner };
        if reactor.inner.ring_status.is_err() {
            // What every wait takes is there from the beginning.
            reactor.inner.register_everything()?;
        }
        Ok(reactor)
    }

    /// What operations work with.
    #[inline]
    pub fn inner(&self) -> &Rc<Inner> {
        &self.inner
    }

    /// Runs a future to its end, and whatever else becomes ready meanwhile.
    ///
    /// # Panics
    /// Inside of what this reactor runs already, another `block_on` among it: await the future there. In the child
    /// of a fork, and when the kernel takes no requests at all: the future can never end.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.run_until(future).unwrap_or_else(|error| panic!("the reactor cannot wait: {error}"))
    }

    /// The same.
    ///
    /// # Errors
    /// Why the future can never end.
    pub(crate) fn run_until<F: Future>(&self, future: F) -> Result<F::Output, Errno> {
        let _guard = BlockOnGuard::begin(&self.inner);
        let _current = Current::set(&self.inner);
        let mut future = pin!(future);
        let waker = task_waker(ROOT, &self.inner.mailbox);
        let mut context = Context::from_waker(&waker);
        self.inner.root_woken.set(true);
        let mut polls = 0;
        loop {
            if self.inner.root_woken.replace(false)
                && let Poll::Ready(output) = future.as_mut().poll(&mut context)
            {
                return Ok(output);
            }
            self.inner.progress();
            if !self.inner.root_woken.get() {
                self.inner.check_process()?;
                self.inner.wait_unless_ready(1, None)?;
                self.inner.progress();
                polls = 0;
            } else {
                polls += 1;
                self.inner.submit_periodically(polls);
            }
        }
    }

    /// Does what can be done without waiting, for a foreign event loop that
    /// watches [`Self::fd`]. Completions of tokens are then there to reap.
    ///
    /// # Errors
    /// When the kernel takes no requests at all; ECHILD in the child of a fork; EDEADLK inside of what this reactor
    /// runs.
    pub fn turn(&self) -> Result<(), Errno> {
        let _current = Current::set(&self.inner);
        self.inner.turn()
    }

    /// Readable when [`Self::turn`] has something to do.
    ///
    /// # Errors
    /// When no descriptor is left.
    pub fn fd(&self) -> io::Result<BorrowedFd<'_>> {
        self.inner.register_everything()?;
        if self.inner.foreign_fd.get().is_none() {
            let poller = self.inner.poller.borrow();
            let poller = poller.as_ref().expect("it was just made");
            let _ = self.inner.foreign_fd.set(poller.descriptor().try_clone_to_owned()?);
            // What had completed before nobody will be told of: a turn is due.
            self.inner.mailbox.notifier().notify();
        }
        Ok(self.inner.foreign_fd.get().expect("it was just set").as_fd())
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
    /// When the kernel takes no requests at all; ECHILD in the child of a fork; EDEADLK inside of what this reactor
    /// runs.
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
        self.inner.cancel_operations(is, Errno::CANCELED);
    }

    /// Runs a future on this reactor beside what it does otherwise. It is
    /// destroyed, unfinished or not, with the reactor. Whoever turns the reactor panics when it does; the others go
    /// on with the next turn.
    pub fn spawn(&self, future: impl Future<Output = ()> + 'static) {
        let task = self.inner.tasks.borrow_mut().allocate(None);
        let _running = self.inner.enter_user_code();
        self.inner.poll_task(task.with_future(future));
    }

    /// Everything counted so far by this reactor.
    pub fn counters(&self) -> &Counters {
        self.inner.publish_counters();
        &self.inner.counters
    }

    /// Which tier this is, and why not a higher one.
    pub fn tier(&self) -> String {
        match (&self.inner.ring_status, Features::probe()) {
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
            QueueRoute::Polled => "ring, polled".into(),
            QueueRoute::Ring => "ring".into(),
            QueueRoute::Own(_) if attachment.core.backend().own_queue(1).is_some() => "own".into(),
            QueueRoute::Own(_) => attachment.kind.to_string(),
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

/// While a thread is in [`Reactor::block_on`].
struct BlockOnGuard<'i> {
    inner: &'i Inner,
}

impl BlockOnGuard<'_> {
    fn begin(inner: &Inner) -> BlockOnGuard<'_> {
        let is_nested = inner.in_block_on.get() || inner.is_in_user_code();
        assert!(!is_nested, "block_on inside of what this reactor runs: await the future instead");
        inner.in_block_on.set(true);
        BlockOnGuard { inner }
    }
}

impl Drop for BlockOnGuard<'_> {
    fn drop(&mut self) {
        self.inner.in_block_on.set(false);
    }
}

impl Inner {
    /// The kernel takes no more requests, and has not said what became of those it has: whoever waits is answered
    /// EIO. Rings and operations keep the memory; what they may still write to stays counted in for ever, and
    /// so does its device stay known.
    #[cold]
    fn abandon_in_flight(&self) {
        let operations = self.tasks.borrow_mut().take_requesters();
        let simple = {
            let io = &mut *self.io.borrow_mut();
            for (attachment, device) in io.attachments.iter_mut().zip(&mut io.in_flight.devices) {
                device.tracker.publish_ended();
                if device.tracker.is_active() {
                    device.tracker.keep_published();
                    mem::forget(attachment.take());
                }
            }
            io.in_flight.cells.take_transfers()
        };
        drop((operations, simple, self.mailbox.close()));
    }
}

impl Drop for Reactor {
    /// Finishes every operation and request, then lets go of devices. Futures
    /// that were spawned are destroyed first. What panics meanwhile does when all that is done.
    fn drop(&mut self) {
        let inner = &self.inner;
        if inner.is_forked() {
            // Everything in flight is the parent's, and so are the threads.
            let io = &mut *inner.io.borrow_mut();
            std::mem::forget(std::mem::take(&mut io.attachments));
            std::mem::forget(inner.worker.borrow_mut().take());
            return;
        }
        let mut panicked = Ok(());
        {
            let _current = Current::set(inner);
            let spawned = inner.tasks.borrow_mut().take_spawned();
            panicked = panicked.and(catch_unwind(AssertUnwindSafe(|| drop(spawned))));
            // What is asked from here on is given back: whoever goes on asking must not keep it here.
            inner.mailbox.refuse_offers();
            let begin = Instant::now();
            loop {
                let turned = catch_unwind(AssertUnwindSafe(|| {
                    inner.progress();
                    let is_outstanding = inner.outstanding(&inner.io.borrow()) > 0;
                    if is_outstanding { siblings::turn(inner) } else { Siblings::None }
                }));
                let siblings = match turned {
                    Ok(siblings) => siblings,
                    Err(panic) => {
                        // The others are brought to their end all the same.
                        panicked = panicked.and(Err(panic));
                        continue;
                    }
                };
                let is_moving = inner.io.borrow().requests_in_flight() > 0;
                if siblings == Siblings::Running && !is_moving && begin.elapsed() > SIBLING_TIMEOUT
                {
                    inner.cancel_operations(|_| true, Errno::CANCELED);
                }
                // Nothing says when a sibling has something to do.
                let is_alone = siblings == Siblings::None;
                let until = (!is_alone).then(|| inner.options.clock.after(RECHECK_INTERVAL));
                if inner.outstanding(&inner.io.borrow()) == 0 {
                    if inner.mailbox.close_if_empty() {
                        break;
                    }
                } else if inner.wait_unless_ready(1, until).is_err() {
                    inner.abandon_in_flight();
                    break;
                }
            }
        }
        inner.mailbox.notifier().forget_ring();
        inner.publish_counters();
        counters::retire(&inner.counters);
        let (attachments, devices) = {
            let io = &mut *inner.io.borrow_mut();
            io.own_queue_devices.clear();
            (mem::take(&mut io.attachments), mem::take(&mut io.in_flight.devices))
        };
        // Back ends of users are destroyed with them.
        drop((attachments, devices));
        if let Err(panic) = panicked
            && !thread::panicking()
        {
            resume_unwind(panic);
        }
    }
}

impl std::fmt::Debug for Reactor {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Reactor ({})", self.tier())
    }
}
