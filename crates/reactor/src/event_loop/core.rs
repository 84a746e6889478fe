//! The state of a reactor, as its own tasks and operations see it, and the
//! reactor that is the thread's current one.

use std::cell::{Cell, OnceCell, RefCell};
use std::os::fd::OwnedFd;
use std::rc::{Rc, Weak};
use std::sync::Arc;

use rustix::io::Errno;
use uringfs_ring::WaitHandle;

use crate::counters::{Counter, Counters};
use crate::io::completion_worker::CompletionWorker;
use crate::io::dispatch::IoDispatch;
use crate::io::poller::Poller;
use crate::options::ReactorOptions;
use crate::tasks::task::{ROOT, Tasks};
use crate::tasks::timer::Timers;
use crate::tasks::waiters::CellIndex;
use crate::wake::mailbox::Notify;
use crate::wake::message;

/// Work to do on a reactor's thread.
pub(crate) type Job = Box<dyn FnOnce(&Rc<Inner>) + Send>;

/// A message to a reactor.
pub(crate) type Message = message::Message<Job>;

/// A reactor's mailbox.
pub(crate) type ReactorMailbox = message::ReactorMailbox<Job>;

/// What a moment brings.
pub(crate) enum TimerEvent {
    /// The cell's time has come.
    Sleep(CellIndex),
    /// The wait's deadline has come.
    WaitDeadline(CellIndex),
    /// The operation's deadline has come.
    OperationDeadline(u32),
}

/// A reactor, as its own tasks and operations see it.
pub struct Inner {
    pub(crate) weak_self: Weak<Inner>,
    pub(crate) options: ReactorOptions,
    pub(crate) io: RefCell<IoDispatch>,
    pub(crate) tasks: RefCell<Tasks>,
    pub(crate) timers: RefCell<Timers<TimerEvent>>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) mailbox: Arc<ReactorMailbox>,
    /// Why there is no ring.
    pub(crate) ring_status: Result<(), String>,
    pub(crate) poller: RefCell<Option<Poller>>,
    pub(crate) worker: RefCell<Option<CompletionWorker>>,
    /// Waits on descriptors under way, by cell, for cancelling.
    pub(crate) waits: RefCell<Vec<(CellIndex, WaitHandle)>>,
    pub(crate) messages: RefCell<Vec<Message>>,
    pub(crate) root_woken: Cell<bool>,
    pub(crate) mailbox_armed: Cell<bool>,
    /// Set when somebody else's loop watches our descriptor.
    pub(crate) foreign_fd: OnceCell<OwnedFd>,
    /// A foreign loop's turn is under way.
    pub(crate) in_foreign_turn: Cell<bool>,
    /// Why a reap is no quiet one: devices wait to be let go, or it is called by what the reactor runs. One
    /// byte, so that the hot path looks at it once.
    pub(crate) attention: Cell<u8>,
    /// The thread is in [`Reactor::block_on`].
    pub(crate) in_block_on: Cell<bool>,
    pub(crate) name: String,
    /// See [`Operation::reactor_number`](crate::Operation::reactor_number).
    pub(crate) number: u16,
}

/// See [`Inner::attention`].
pub(crate) const CLOSING: u8 = 1;
const USER_CODE: u8 = 2;

/// While one of the reactor's tasks, messages or wakers runs.
pub(crate) struct UserCodeGuard<'i> {
    inner: &'i Inner,
    before: u8,
}

impl Drop for UserCodeGuard<'_> {
    fn drop(&mut self) {
        let others = self.inner.attention.get() & !USER_CODE;
        self.inner.attention.set(others | self.before);
    }
}

thread_local! {
    static CURRENT: RefCell<Weak<Inner>> = const { RefCell::new(Weak::new()) };
}

/// The reactor of this thread, if it has one.
pub fn current() -> Option<Rc<Inner>> {
    // None while the thread ends.
    CURRENT.try_with(|current| current.borrow().upgrade()).ok()?
}

/// Makes a reactor the thread's current one for a while.
pub(crate) struct Current {
    before: Weak<Inner>,
}

impl Current {
    /// The first reactor of a thread is its current one as long as it lives.
    pub(crate) fn set_first(inner: &Rc<Inner>) {
        CURRENT.with_borrow_mut(|current| {
            if current.upgrade().is_none() {
                *current = Rc::downgrade(inner);
            }
        });
    }

    pub(crate) fn set(inner: &Rc<Inner>) -> Current {
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
    /// Something was asked for outside a turn: a foreign loop that sleeps for
    /// this reactor has to give it one.
    pub fn ask_for_turn(&self) {
        if self.foreign_fd.get().is_some() && !self.in_foreign_turn.get() {
            self.mailbox.notifier().notify();
        }
    }

    /// True in the child of a fork, where the reactor is its parent's.
    pub fn is_forked(&self) -> bool {
        self.io.borrow().is_forked()
    }

    pub(crate) fn check_process(&self) -> Result<(), Errno> {
        if self.is_forked() { Err(Errno::CHILD) } else { Ok(()) }
    }

    /// Counts on this reactor.
    #[inline]
    pub fn count(&self, counter: Counter) {
        self.counters.add(counter, 1);
    }

    pub(crate) fn publish_counters(&self) {
        let waits = self.poller.borrow().as_ref().map_or(0, |poller| poller.system_calls);
        self.io.borrow().publish_counters(&self.counters, waits);
    }

    pub(crate) fn is_in_user_code(&self) -> bool {
        self.attention.get() & USER_CODE != 0
    }

    /// Something that belongs to users runs, until the guard is dropped.
    pub(crate) fn enter_user_code(&self) -> UserCodeGuard<'_> {
        let before = self.attention.get() & USER_CODE;
        self.attention.set(self.attention.get() | USER_CODE);
        UserCodeGuard { inner: self, before }
    }

    pub(crate) fn wake_task(&self, task: u32) {
        if task == ROOT {
            self.root_woken.set(true);
        } else {
            self.tasks.borrow_mut().make_ready(task);
        }
    }

    /// The same from wherever this thread is. False when only a message will do: a foreign loop that sleeps has to be
    /// told, or it is the tasks that are being looked at.
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
