//! [`Freeze`]: the state of a volume that is frozen: everything is durable, and nothing writes to the device. The volume
//! thaws at its deadline, so that a program that froze it and died does not block writers forever.

use std::sync::Arc;
use std::thread;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};
use uringfs_device::Errno;
use uringfs_file::ChangeGate;

use crate::core::group_commit::GroupCommit;
use crate::error::{Error, ErrorKind};

/// Whether a volume is frozen.
#[derive(Default)]
pub(crate) struct Freeze {
    /// Every change goes through it.
    pub(crate) gate: ChangeGate,
    group_commit: Arc<GroupCommit>,
    state: Mutex<FreezeState>,
    ended: Condvar,
}

#[derive(Default)]
struct FreezeState {
    /// The number of freezes so far.
    begun: u64,
    /// The last of them has not ended.
    is_active: bool,
}

/// A freeze that has begun. Dropping it before [`Self::keep`] ends it.
pub(crate) struct Freezing {
    freeze: Arc<Freeze>,
    number: u64,
}

impl Freeze {
    pub(crate) fn new(group_commit: Arc<GroupCommit>) -> Freeze {
        Freeze { group_commit, ..Freeze::default() }
    }

    /// Holds back changes from now on, until [`Self::thaw`] or the deadline.
    ///
    /// # Errors
    /// EBUSY if it is frozen already; if no thread can be started.
    pub(crate) fn begin(self: &Arc<Freeze>, until: Instant) -> Result<Freezing, Error> {
        let number = {
            let mut state = self.state.lock();
            if state.is_active {
                return Err(Error::refused(Errno::BUSY, "the volume is frozen already"));
            }
            state.is_active = true;
            state.begun += 1;
            self.gate.close();
            state.begun
        };
        let freezing = Freezing { freeze: self.clone(), number };
        let freeze = self.clone();
        let timer = thread::Builder::new().name("uringfs-thaw".to_owned());
        timer.spawn(move || freeze.thaw_at(until, number)).map_err(Error::from)?;
        Ok(freezing)
    }

    /// Lets changes and commits in again. Returns whether it was frozen.
    pub(crate) fn thaw(&self) -> bool {
        let begun = self.state.lock().begun;
        self.end(begun)
    }

    fn end(&self, number: u64) -> bool {
        let held_back = {
            let mut state = self.state.lock();
            if !state.is_last(number) {
                return false;
            }
            state.is_active = false;
            self.ended.notify_all();
            self.group_commit.resume();
            self.gate.open()
        };
        held_back.into_iter().for_each(|waker| waker.wake());
        true
    }

    fn is_active(&self, number: u64) -> bool {
        self.state.lock().is_last(number)
    }

    fn thaw_at(&self, until: Instant, number: u64) {
        let mut state = self.state.lock();
        while state.is_last(number) {
            if self.ended.wait_until(&mut state, until).timed_out() {
                drop(state);
                self.end(number);
                return;
            }
        }
    }
}

impl FreezeState {
    fn is_last(&self, number: u64) -> bool {
        self.is_active && self.begun == number
    }
}

impl Freezing {
    /// True until it was thawed, by another thread or at its deadline.
    pub(crate) fn is_active(&self) -> bool {
        self.freeze.is_active(self.number)
    }

    /// Holds back commits, too. Everything is durable.
    ///
    /// # Errors
    /// ETIMEDOUT if it was thawed meanwhile; EIO if a commit has failed.
    pub(crate) fn keep(self) -> Result<(), Error> {
        let freeze = &self.freeze;
        {
            let state = freeze.state.lock();
            if state.is_last(self.number) {
                freeze.group_commit.pause();
            }
        }
        freeze.group_commit.wait_until_paused();
        if freeze.group_commit.has_failed() {
            return Err(Error::new(ErrorKind::Io(Errno::IO), "a commit has failed"));
        }
        match self.is_active() {
            true => {
                std::mem::forget(self);
                Ok(())
            }
            false => Err(thawed()),
        }
    }
}

impl Drop for Freezing {
    fn drop(&mut self) {
        self.freeze.end(self.number);
    }
}

/// The error of a freeze that ended before everything was durable.
pub(crate) fn thawed() -> Error {
    Error::refused(Errno::TIMEDOUT, "the volume thawed before everything was durable")
}
