//! A thread's reactor: construction, `block_on`, what its thread calls, and drop.
//!
//! `event_loop::turn` has the work that needs no wait, `event_loop::sleep` the waits, `event_loop::attach` the devices.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::mem;
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::task::{Context, Poll};
use std::thread;
use std::time::{Duration, Instant};

use uringfs_buffer::set_visit_unreaped;
use uringfs_device::queue::calibrate::Calibration;
use uringfs_device::{Device, Errno};
use uringfs_ring::nvme::NvmeRing;
use uringfs_ring::{Features, fork_count, install_fork_handler};
use uringfs_sync::set_block_thread;

use crate::counters::{self, Counters};
use crate::event_loop::blocking::{block_thread, visit_unreaped};
use crate::event_loop::completions::Completions;
use crate::event_loop::core::{Current, DROPPED, FOREIGN, ReactorCore, ReactorMailbox};
use crate::event_loop::siblings::{self, Siblings};
use crate::event_loop::sleep::RECHECK_INTERVAL;
use crate::event_loop::waker::task_waker;
use crate::io::completion_worker::CompletionWorker;
use crate::io::dispatch::IoDispatch;
use crate::io::in_flight::{EpochRun, InFlight};
use crate::io::rings::make_rings;
use crate::io::route::QueueRoute;
use crate::local::LocalReactor;
use crate::options::{CompletionMode, ReactorOptions, Require};
use crate::tasks::batches::Batches;
use crate::tasks::completion::{Completion, Token};
use crate::tasks::task::{ROOT, Tasks};
use crate::tasks::timer::Timers;
use crate::tasks::waiters::WaitCells;
use crate::wake::mailbox::{Mailbox, Notify};
use crate::wake::message::Notifier;

/// How long a drop waits for locks that a sibling's operations hold, when it runs inside code of that sibling.
const SIBLING_TIMEOUT: Duration = Duration::from_secs(1);

/// One thread's reactor. Dropping it first finishes what is in flight.
///
/// A thread may have several reactors. Only one is turned at a time: while [`Reactor::block_on`] or [`Reactor::reap`]
/// of one waits, operations of the others make no progress and keep their locks. If an operation waits for a lock that
/// an operation of another reactor of the same thread holds, the wait never ends, unless it has a timeout. Drop is an
/// exception: it also turns the others, as often as needed. A drop inside a task, message or waker of another reactor
/// cannot turn that reactor. Such a drop waits one second, and until none of its own requests is in flight. Then it
/// cancels its remaining operations; those that wait for a lock end with ECANCELED.
///
/// ```
/// use std::cell::Cell;
/// use std::rc::Rc;
/// use std::time::Duration;
/// # use uringfs_reactor as uringfs;
/// use uringfs::{Reactor, ReactorOptions};
///
/// let reactor = Reactor::new(ReactorOptions::new())?;
/// println!("{}", reactor.tier());
/// // Tasks run on this thread, so they may share what is not `Sync`.
/// let sum = Rc::new(Cell::new(0));
/// let tasks: Vec<_> = (1..=3)
///     .map(|number| {
///         let sum = sum.clone();
///         reactor.spawn(async move { sum.set(sum.get() + number) })
///     })
///     .collect();
/// reactor.block_on(async {
///     reactor.sleep(Duration::from_millis(1)).await;
///     for task in tasks {
///         task.await.expect("no task panics");
///     }
/// });
/// assert_eq!(sum.get(), 6);
/// # Ok::<_, std::io::Error>(())
/// ```
pub struct Reactor {
    local: LocalReactor,
}

static NEXT_NUMBER: AtomicU16 = AtomicU16::new(0);

impl Reactor {
    /// Makes a reactor for this thread. An operation that is awaited belongs to the reactor whose [`Self::block_on`],
    /// [`Self::turn`], [`Self::reap`] or [`LocalReactor::spawn`] runs the code that starts it; outside of these, to the thread's
    /// first reactor that a foreign event loop turns, which is one whose [`Self::fd`] or [`Self::turn`] was called. If
    /// there is none, a background reactor serves the operation: a reactor that nothing turns holds up no other executor.
    ///
    /// # Errors
    /// Unsupported, with the reason, when the machine does not have the tier that `ring.require` demands. EMFILE or
    /// ENFILE when no file descriptor is left.
    pub fn new(options: ReactorOptions) -> io::Result<Reactor> {
        // The fields may have been set without the methods.
        let (depth, max_waits) = (options.depth, options.max_waits);
        let options = options.depth(depth).max_waits(max_waits);
        let (ring, iopoll_ring) = make_rings(&options);
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
            batches: Batches::default(),
            completed: VecDeque::with_capacity(options.depth as usize),
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
            has_other_completions: false,
            ended_run: EpochRun::default(),
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
        install_fork_handler();
        let io = IoDispatch {
            forks: fork_count(),
            ring,
            has_more_rings: iopoll_ring.is_some(),
            iopoll_ring,
            nvme_ring: None,
            attachments,
            own_queue_devices,
            may_call: false,
            is_last_uncalled: false,
            held_calls: 0,
            detached_calls: 0,
            dropped_rings: Default::default(),
            in_flight,
        };
        let task_mailbox = mailbox.clone();
        let make_waker = move |task| task_waker(task, &task_mailbox);
        let inner = Rc::new_cyclic(|weak_self| ReactorCore {
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
            // The largest number stands for no reactor.
            number: NEXT_NUMBER.fetch_add(1, Ordering::Relaxed) % u16::MAX,
            options,
        });
        siblings::register(&inner);
        set_block_thread(block_thread);
        set_visit_unreaped(visit_unreaped);
        let reactor = Reactor { local: LocalReactor { inner } };
        if reactor.local.inner.ring_status.is_err() {
            // Create now what a wait needs, so that it cannot fail later.
            reactor.local.inner.register_epoll_sources()?;
        }
        Ok(reactor)
    }

    /// A handle for the reactor's tasks.
    pub fn local(&self) -> &LocalReactor {
        &self.local
    }

    /// The interface for operations.
    #[doc(hidden)]
    #[inline]
    pub fn inner(&self) -> &Rc<ReactorCore> {
        &self.local.inner
    }

    /// Runs a future to its end, and meanwhile whatever else becomes ready.
    ///
    /// # Panics
    /// - In code that this reactor runs, another `block_on` included. Await the future there.
    /// - When the future can never end: in the child of a fork, and when the kernel takes no requests at all.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.run_until(future).unwrap_or_else(|error| panic!("the reactor cannot wait: {error}"))
    }

    /// [`Self::block_on`] with an error instead of the last panic.
    ///
    /// # Errors
    /// The reason why the future can never end.
    pub(crate) fn run_until<F: Future>(&self, future: F) -> Result<F::Output, Errno> {
        let _guard = BlockOnGuard::begin(&self.local.inner);
        let _current = Current::set(&self.local.inner);
        let mut future = pin!(future);
        let waker = task_waker(ROOT, &self.local.inner.mailbox);
        let mut context = Context::from_waker(&waker);
        self.local.inner.root_woken.set(true);
        let mut polls = 0;
        loop {
            if self.local.inner.root_woken.replace(false)
                && let Poll::Ready(output) = future.as_mut().poll(&mut context)
            {
                return Ok(output);
            }
            // A root task that wakes itself gets to no wait, which would find what has completed.
            if self.local.inner.root_woken.get() || self.local.inner.has_work_for_a_round() {
                self.local.inner.run_rounds();
            }
            if !self.local.inner.root_woken.get() {
                self.local.inner.check_process()?;
                // The usual wait is here to the instruction: see `Ring::enter`.
                if self.local.inner.enter_fast(1)? {
                    self.local.inner.mailbox.announce_awake();
                } else {
                    self.local.inner.wait_unless_ready(1, None)?;
                }
                self.local.inner.run_rounds();
                polls = 0;
            } else {
                polls += 1;
                self.local.inner.submit_periodically(polls);
            }
        }
    }

    /// Does what needs no wait, for a foreign event loop that watches [`Self::fd`]. Afterwards completions of tokens can
    /// be reaped.
    ///
    /// # Errors
    /// Any error of the kernel when it takes no requests at all. ECHILD in the child of a fork. EDEADLK in code that this
    /// reactor runs.
    pub fn turn(&self) -> Result<(), Errno> {
        Current::set_first(&self.local.inner);
        let _current = Current::set(&self.local.inner);
        self.local.inner.foreign_turn()
    }

    /// A descriptor that is readable when [`Self::turn`] has something to do.
    ///
    /// # Errors
    /// EMFILE or ENFILE when no file descriptor is left.
    pub fn fd(&self) -> io::Result<BorrowedFd<'_>> {
        self.local.inner.register_epoll_sources()?;
        if self.local.inner.foreign_fd.get().is_none() {
            let poller = self.local.inner.poller.borrow();
            let poller = poller.as_ref().expect("register_epoll_sources made the poller");
            let _ = self.local.inner.foreign_fd.set(poller.descriptor().try_clone_to_owned()?);
            let attention = &self.local.inner.attention;
            attention.set(attention.get() | FOREIGN);
            Current::set_first(&self.local.inner);
            // Its eventfd wakes the loop. A message to the ring does so once: a turn without requests does not enter the
            // ring, and behind what the kernel keeps for that it signals nothing more.
            self.local.inner.mailbox.notifier().forget_ring();
            // Nothing reports what completed before the descriptor existed: a turn is due.
            self.local.inner.mailbox.notifier().notify();
        }
        Ok(self.local.inner.foreign_fd.get().expect("it was set above").as_fd())
    }

    /// Hands all pushed requests to the devices.
    ///
    /// # Errors
    /// Any error of the kernel when it takes no requests at all. ECHILD in the child of a fork.
    pub fn submit(&self) -> Result<(), Errno> {
        self.local.inner.submit()
    }

    /// Submits what was pushed, waits until there are at least `min` completions of token operations or `timeout` has
    /// passed, and moves all completions into `completed`. Waits for no more completions than are in flight.
    ///
    /// # Errors
    /// Any error of the kernel when it takes no requests at all. ECHILD in the child of a fork. EDEADLK in code that this
    /// reactor runs.
    #[inline]
    pub fn reap(
        &self,
        min: usize,
        timeout: Option<Duration>,
        completed: &mut Vec<Completion>,
    ) -> Result<(), Errno> {
        self.local.inner.reap(min, timeout, completed)
    }

    /// As [`Self::reap`], but each completion is taken where the kernel has put it, when the iterator gets there. That
    /// saves a copy of each. Completions that are not taken stay for the next call. New operations may start during the
    /// iteration; their completions come with the next call at the latest.
    ///
    /// ```
    /// # mod uringfs {
    /// #     pub use uringfs_reactor::*;
    /// # }
    /// use uringfs::{Reactor, ReactorOptions};
    ///
    /// let reactor = Reactor::new(ReactorOptions::new())?;
    /// // Nothing was started, so there is nothing to wait for.
    /// for completion in reactor.completions(1, None)? {
    ///     println!("{}: {:?}", completion.token().get(), completion.result());
    /// }
    /// # Ok::<_, std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Self::reap`]. An error during the iteration ends it, and the next call returns the error.
    #[inline(always)]
    pub fn completions(
        &self,
        min: usize,
        timeout: Option<Duration>,
    ) -> Result<Completions<'_>, Errno> {
        self.local.inner.completions(min, timeout)
    }

    /// Requests cancellation of the operations with this token. Each still completes, once, and its completion says
    /// what became of it. A cancel reaches the operation's requests even if the queues are full. A command to an NVMe
    /// namespace ends when its controller ends it; then no more of the request is sent. A cancel does not reach a request
    /// that the completion worker or a thread of a queue holds: if that request's current step ends short, the rest is
    /// still issued.
    pub fn cancel(&self, token: Token) {
        self.local.inner.cancel_token(token);
    }

    /// This reactor's counters, up to date.
    pub fn counters(&self) -> &Counters {
        self.local.inner.publish_counters();
        &self.local.inner.counters
    }

    /// The tier of this reactor, and why it is not a higher one: what the kernel lets it use. The queue of a device may
    /// be another one, since it is chosen by measurement: see [`Self::queue_of`].
    pub fn tier(&self) -> String {
        match (&self.local.inner.ring_status, Features::probe()) {
            (Ok(()), Ok(features)) if features.is_full() => "io_uring, every feature".into(),
            (Ok(()), Ok(features)) => {
                let dropped: Vec<_> = features
                    .list()
                    .iter()
                    .filter(|feature| !feature.is_enabled())
                    .map(|feature| feature.name)
                    .collect();
                format!("io_uring, restricted: without {}", dropped.join(", "))
            }
            (Err(why), _) => format!("no io_uring: {why}"),
            (_, Err(why)) => format!("no io_uring: {why}"),
        }
    }

    /// The name of the queue that serves `device` here, and the reason for the choice. Attaches the device if necessary.
    ///
    /// # Errors
    /// When no queue can serve it.
    pub fn queue_of(&self, device: &Device) -> io::Result<(String, String)> {
        self.local.inner.attach(device.core())?;
        let io = self.local.inner.io.borrow();
        let attachment = io.attachments[device.index().get()].as_ref();
        let attachment = attachment.expect("attach has put it there");
        let name = match &attachment.route {
            QueueRoute::Polled => "ring, polled".into(),
            QueueRoute::Ring => "ring".into(),
            QueueRoute::Nvme if io.nvme_ring.as_ref().is_some_and(NvmeRing::is_polled) => {
                "nvme, polled".into()
            }
            QueueRoute::Nvme => "nvme".into(),
            QueueRoute::Own(_) if attachment.device_inner.backend().own_queue(1).is_some() => {
                "own".into()
            }
            QueueRoute::Own(_) => attachment.kind.to_string(),
        };
        Ok((name, attachment.reason.clone()))
    }

    /// The measurements by which the queue was chosen that serves `device` here. `None` if it was not chosen so, or if
    /// the device is not attached: see [`Self::queue_of`].
    pub fn calibration_of(&self, device: &Device) -> Option<Arc<Calibration>> {
        let io = self.local.inner.io.borrow();
        let attachment = io.attachments.get(device.index().get())?.as_ref()?;
        attachment.measured.as_ref().map(|measured| measured.calibration.clone())
    }

    /// The reason why the kernel refused to register memory, if it did.
    pub fn registration_refused(&self) -> Option<String> {
        let io = self.local.inner.io.borrow();
        let ring = io.ring.as_ref().and_then(|ring| ring.registration().refused);
        ring.or_else(|| io.nvme_ring.as_ref().and_then(|ring| ring.registration().refused))
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
            Ok(features) => match features.list().iter().find(|feature| !feature.is_enabled()) {
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

/// Marks the thread as inside [`Reactor::block_on`]. Afterwards a foreign loop needs a turn: its sleep is announced no more.
struct BlockOnGuard<'i> {
    reactor: &'i ReactorCore,
}

impl BlockOnGuard<'_> {
    fn begin(reactor: &ReactorCore) -> BlockOnGuard<'_> {
        let is_nested = reactor.in_block_on.get() || reactor.is_in_user_code();
        assert!(
            !is_nested,
            "block_on was called from code that this reactor runs: await the future instead"
        );
        reactor.in_block_on.set(true);
        BlockOnGuard { reactor }
    }
}

impl Drop for BlockOnGuard<'_> {
    fn drop(&mut self) {
        self.reactor.in_block_on.set(false);
        self.reactor.request_turn();
    }
}

impl ReactorCore {
    /// The kernel takes no more requests, and has not reported what became of those in flight: all callers that wait get
    /// EIO. Rings and operations keep the memory. The requests stay in the epoch forever, since they may still write, and
    /// for the same reason their devices keep their indexes.
    #[cold]
    fn abandon_in_flight(&self) {
        let operations = self.tasks.borrow_mut().take_requesters();
        let transfers = {
            let io = &mut *self.io.borrow_mut();
            io.in_flight.publish_epochs();
            for (attachment, device) in io.attachments.iter_mut().zip(&mut io.in_flight.devices) {
                device.tracker.publish_ended();
                if device.tracker.is_active() {
                    device.tracker.keep_published();
                    mem::forget(attachment.take());
                }
            }
            io.in_flight.cells.take_transfers()
        };
        drop((operations, transfers, self.mailbox.close()));
    }
}

impl Drop for Reactor {
    /// Drops spawned futures, finishes every operation and request, then releases the devices. A panic on the way is
    /// resumed at the end.
    fn drop(&mut self) {
        let inner = &self.local.inner;
        if inner.is_forked() {
            // Everything in flight belongs to the parent, and so do the threads.
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
            // From here on messages are given back: a sender that keeps posting must not keep the reactor alive.
            inner.mailbox.refuse_offers();
            let begin = Instant::now();
            loop {
                let turned = catch_unwind(AssertUnwindSafe(|| {
                    inner.run_rounds();
                    let is_outstanding = inner.outstanding(&inner.io.borrow()) > 0;
                    if is_outstanding { siblings::turn(inner) } else { Siblings::None }
                }));
                let siblings = match turned {
                    Ok(siblings) => siblings,
                    Err(panic) => {
                        // The other operations still run to their end.
                        panicked = panicked.and(Err(panic));
                        continue;
                    }
                };
                let is_moving = inner.io.borrow().requests_in_flight() > 0;
                if siblings == Siblings::Running && !is_moving && begin.elapsed() > SIBLING_TIMEOUT
                {
                    inner.cancel_operations(|_| true, Errno::CANCELED);
                }
                // No event reports that a sibling has something to do.
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
        inner.attention.set(inner.attention.get() | DROPPED);
        inner.mailbox.notifier().forget_ring();
        inner.publish_counters();
        counters::retire(&inner.counters);
        let (attachments, devices) = {
            let io = &mut *inner.io.borrow_mut();
            io.own_queue_devices.clear();
            (mem::take(&mut io.attachments), mem::take(&mut io.in_flight.devices))
        };
        // Dropping them also drops back ends of the user.
        drop((attachments, devices));
        if let Err(panic) = panicked
            && !thread::panicking()
        {
            resume_unwind(panic);
        }
    }
}

impl Deref for Reactor {
    type Target = LocalReactor;

    fn deref(&self) -> &LocalReactor {
        &self.local
    }
}

impl std::fmt::Debug for Reactor {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Reactor ({})", self.tier())
    }
}
