//! The state of a reactor, as its own tasks and operations see it, and the
//! reactor that is the thread's current one.

use std::cell::{Cell, OnceCell, RefCell};
use std::os::fd::OwnedFd;
use std::rc::{Rc, Weak};
use std::sync::Arc;

use rustix::io::Errno;
use uringfs_ring::WaitHandle;

use crate::counters::{Counter, Counters};
use crate::io::completion_worker::Worker;
use crate::io::dispatch::Io;
use crate::io::poller::Watch;
use crate::options::ReactorOptions;
use crate::tasks::task::{ROOT, Tasks};
use crate::tasks::timer::Timers;
use crate::tasks::waiters::CellIndex;
use crate::wake::mailbox::Bell;
use crate::wake::message;

/// Work to do on a reactor's thread.
pub(crate) type Act = Box<dyn FnOnce(&Rc<Inner>) + Send>;

/// A letter to a reactor.
pub(crate) type Letter = message::Letter<Act>;

/// A reactor's mailbox.
pub(crate) type Letterbox = message::Letterbox<Act>;

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
    pub(crate) itself: Weak<Inner>,
    pub(crate) options: ReactorOptions,
    pub(crate) io: RefCell<Io>,
    pub(crate) tasks: RefCell<Tasks>,
    pub(crate) timers: RefCell<Timers<Due>>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) letterbox: Arc<Letterbox>,
    /// Why there is no ring.
    pub(crate) ring: Result<(), String>,
    pub(crate) watch: RefCell<Option<Watch>>,
    pub(crate) worker: RefCell<Option<Worker>>,
    /// Waits on descriptors under way, by cell, for cancelling.
    pub(crate) waits: RefCell<Vec<(CellIndex, WaitHandle)>>,
    pub(crate) letters: RefCell<Vec<Letter>>,
    pub(crate) root_woken: Cell<bool>,
    pub(crate) mail_watched: Cell<bool>,
    /// Set when somebody else's loop watches our descriptor.
    pub(crate) watched: OnceCell<OwnedFd>,
    /// A foreign loop's turn is under way.
    pub(crate) turning: Cell<bool>,
    /// Why a reap is no quiet one: devices wait to be let go, or it is called by what the reactor runs. One
    /// byte, so that the hot path looks at it once.
    pub(crate) attention: Cell<u8>,
    /// The thread is in [`Reactor::block_on`].
    pub(crate) blocking: Cell<bool>,
    pub(crate) name: String,
    /// See [`Operation::reactor_number`](crate::Operation::reactor_number).
    pub(crate) number: u16,
}

/// See [`Inner::attention`].
pub(crate) const CLOSING: u8 = 1;
const RUNNING: u8 = 2;

/// While one of the reactor's tasks, letters or wakers runs.
pub(crate) struct Running<'i> {
    inner: &'i Inner,
    before: u8,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let others = self.inner.attention.get() & !RUNNING;
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
        if self.watched.get().is_some() && !self.turning.get() {
            self.letterbox.bell().ring();
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
        let waits = self.watch.borrow().as_ref().map_or(0, |watch| watch.system_calls);
        self.io.borrow().publish(&self.counters, waits);
    }

    pub(crate) fn is_running(&self) -> bool {
        self.attention.get() & RUNNING != 0
    }

    /// Something that belongs to users runs, until the guard is dropped.
    pub(crate) fn run(&self) -> Running<'_> {
        let before = self.attention.get() & RUNNING;
        self.attention.set(self.attention.get() | RUNNING);
        Running { inner: self, before }
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
}
