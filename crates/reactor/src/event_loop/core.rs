//! The state of a reactor, which its tasks and operations use, and the current reactor of a thread.

use std::cell::{Cell, OnceCell, RefCell};
use std::fmt;
use std::os::fd::OwnedFd;
use std::rc::{Rc, Weak};
use std::sync::Arc;

use uringfs_device::Errno;

use crate::counters::{Counter, Counters};
use crate::event_loop::wait_handles::WaitHandles;
use crate::io::completion_worker::CompletionWorker;
use crate::io::dispatch::IoDispatch;
use crate::io::poller::Poller;
use crate::options::ReactorOptions;
use crate::tasks::task::{ROOT, Tasks};
use crate::tasks::timer::Timers;
use crate::tasks::waiters::CellIndex;
use crate::wake::mailbox::Notify;
use crate::wake::message;

/// Work to run on a reactor's thread.
pub(crate) type Job = Box<dyn FnOnce(&Rc<ReactorCore>) + Send>;

/// A message to a reactor.
pub(crate) type Message = message::Message<Job>;

/// A reactor's mailbox.
pub(crate) type ReactorMailbox = message::ReactorMailbox<Job>;

/// The event of a timer.
pub(crate) enum TimerEvent {
    /// Complete the cell of a sleep.
    Sleep(CellIndex),
    /// Cancel the wait, whose deadline has come.
    WaitDeadline(CellIndex),
    /// Cancel the operation, whose deadline has come.
    OperationDeadline(u32),
}

/// The state of a reactor, shared with its tasks and operations.
pub struct ReactorCore {
    pub(crate) weak_self: Weak<ReactorCore>,
    pub(crate) options: ReactorOptions,
    pub(crate) io: RefCell<IoDispatch>,
    pub(crate) tasks: RefCell<Tasks>,
    pub(crate) timers: RefCell<Timers<TimerEvent>>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) mailbox: Arc<ReactorMailbox>,
    /// The reason why there is no ring.
    pub(crate) ring_status: Result<(), String>,
    pub(crate) poller: RefCell<Option<Poller>>,
    pub(crate) worker: RefCell<Option<CompletionWorker>>,
    pub(crate) waits: RefCell<WaitHandles>,
    pub(crate) messages: RefCell<Vec<Message>>,
    pub(crate) root_woken: Cell<bool>,
    pub(crate) mailbox_armed: Cell<bool>,
    /// The poller's descriptor, once a foreign event loop watches it.
    pub(crate) foreign_fd: OnceCell<OwnedFd>,
    /// A turn for a foreign loop is in progress.
    pub(crate) in_foreign_turn: Cell<bool>,
    /// Reasons against the fast reap, as bits: [`CLOSING`] when closed devices are still attached, [`CONTRADICTED`] when a
    /// queue is to be chosen again, [`USER_CODE`] when code that the reactor runs calls it, [`DROPPED`], [`FOREIGN`]. One
    /// byte, so that the hot path loads it once.
    pub(crate) attention: Cell<u8>,
    /// The thread is in [`Reactor::block_on`].
    pub(crate) in_block_on: Cell<bool>,
    pub(crate) name: String,
    /// See [`Operation::reactor_number`](crate::Operation::reactor_number).
    pub(crate) number: u16,
}

impl fmt::Debug for ReactorCore {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_struct("ReactorCore").field("options", &self.options).finish_non_exhaustive()
    }
}

/// Set in [`ReactorCore::attention`] while closed devices are still attached.
pub(crate) const CLOSING: u8 = 1;
/// Set in [`ReactorCore::attention`] while code of users runs.
const USER_CODE: u8 = 2;
/// Set in [`ReactorCore::attention`] while the queue of a device is to be chosen again.
pub(crate) const CONTRADICTED: u8 = 4;
/// Set in [`ReactorCore::attention`] once the reactor was dropped: nothing new begins.
pub(crate) const DROPPED: u8 = 8;
/// Set in [`ReactorCore::attention`] once a foreign loop has the descriptor: it may sleep after any wait of the thread's
/// own.
pub(crate) const FOREIGN: u8 = 16;

/// Marks that one of the reactor's tasks, messages or wakers runs.
pub(crate) struct UserCodeGuard<'i> {
    reactor: &'i ReactorCore,
    before: u8,
}

impl Drop for UserCodeGuard<'_> {
    fn drop(&mut self) {
        let others = self.reactor.attention.get() & !USER_CODE;
        self.reactor.attention.set(others | self.before);
    }
}

thread_local! {
    static CURRENT: RefCell<Weak<ReactorCore>> = const { RefCell::new(Weak::new()) };
}

/// This thread's current reactor: the one that runs this code, else the first that a foreign event loop turns.
pub fn current() -> Option<Rc<ReactorCore>> {
    // This fails while the thread's locals are destroyed.
    CURRENT.try_with(|current| current.borrow().upgrade()).ok()?
}

/// Makes a reactor the thread's current one until dropped.
pub(crate) struct Current {
    before: Weak<ReactorCore>,
}

impl Current {
    /// Makes it the current reactor if the thread has none. It stays so as long as it lives. For a reactor that a
    /// foreign loop turns: an await anywhere in that loop is then served by it.
    pub(crate) fn set_first(reactor: &Rc<ReactorCore>) {
        CURRENT.with_borrow_mut(|current| {
            if current.upgrade().is_none() {
                *current = Rc::downgrade(reactor);
            }
        });
    }

    pub(crate) fn set(reactor: &Rc<ReactorCore>) -> Current {
        let before =
            CURRENT.with_borrow_mut(|current| std::mem::replace(current, Rc::downgrade(reactor)));
        Current { before }
    }
}

impl Drop for Current {
    fn drop(&mut self) {
        CURRENT.set(std::mem::take(&mut self.before));
    }
}

impl ReactorCore {
    /// Wakes a foreign loop that sleeps for this reactor, so that it calls a turn. For requests made outside a turn.
    pub fn request_turn(&self) {
        if self.foreign_fd.get().is_some() && !self.in_foreign_turn.get() {
            self.mailbox.notifier().notify();
        }
    }

    /// True in the child of a fork: the reactor belongs to the parent.
    pub fn is_forked(&self) -> bool {
        self.io.borrow().is_forked()
    }

    pub(crate) fn check_process(&self) -> Result<(), Errno> {
        if self.is_forked() { Err(Errno::CHILD) } else { Ok(()) }
    }

    /// Adds one to a counter of this reactor.
    #[inline]
    pub fn count(&self, counter: Counter) {
        self.counters.add(counter, 1);
    }

    /// Adds `amount` to a counter of this reactor.
    #[inline]
    pub fn count_many(&self, counter: Counter, amount: u64) {
        self.counters.add(counter, amount);
    }

    pub(crate) fn publish_counters(&self) {
        let waits = self.poller.borrow().as_ref().map_or(0, |poller| poller.system_calls);
        self.io.borrow().publish_counters(&self.counters, waits);
    }

    pub(crate) fn is_in_user_code(&self) -> bool {
        self.attention.get() & USER_CODE != 0
    }

    /// Marks that code of users runs, until the guard is dropped.
    pub(crate) fn enter_user_code(&self) -> UserCodeGuard<'_> {
        let before = self.attention.get() & USER_CODE;
        self.attention.set(self.attention.get() | USER_CODE);
        UserCodeGuard { reactor: self, before }
    }

    pub(crate) fn wake_task(&self, task: u32) {
        if task == ROOT {
            self.root_woken.set(true);
        } else {
            self.tasks.borrow_mut().make_ready(task);
        }
    }

    /// [`Self::wake_task`] from anywhere in this thread. False when only a message wakes the task: a foreign loop sleeps and
    /// needs a notification, or the task table is borrowed.
    pub(crate) fn try_wake_local(&self, task: u32) -> bool {
        if self.foreign_fd.get().is_some() && !self.in_foreign_turn.get() {
            return false;
        }
        if task == ROOT {
            self.root_woken.set(true);
            return true;
        }
        self.tasks.try_borrow_mut().map(|mut tasks| tasks.make_ready(task)).is_ok()
    }
}
