//! [`CommitTimer`]: makes changes durable some seconds after the first that is not, so that a crash loses no more than those.
//! It also runs while files without a name wait for their last close, so that their space becomes free.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// Calls a function some time after the first change since its last call, and as long as that returns true. Otherwise it uses
/// no processor time.
pub(crate) struct CommitTimer {
    interval: Duration,
    /// True from a change until the next call begins.
    is_due: AtomicBool,
    stopped: Mutex<bool>,
    changed: Condvar,
}

impl CommitTimer {
    pub(crate) fn new(interval: Duration) -> CommitTimer {
        CommitTimer {
            interval,
            is_due: AtomicBool::new(false),
            stopped: Mutex::new(false),
            changed: Condvar::new(),
        }
    }

    /// Notes a change that was made. If it is noted before, a commit in between takes the note and misses the change.
    pub(crate) fn note_change(&self) {
        if !self.is_due.load(Ordering::Relaxed) && !self.is_due.swap(true, Ordering::Relaxed) {
            // With the lock the timer either has not looked yet, or waits.
            let _stopped = self.stopped.lock();
            self.changed.notify_one();
        }
    }

    /// Ends [`Self::run`].
    pub(crate) fn stop(&self) {
        *self.stopped.lock() = true;
        self.changed.notify_one();
    }

    /// Calls `commit` after changes, until [`Self::stop`]; after each interval while it returns true. Its argument says
    /// whether there was a change.
    pub(crate) fn run(&self, commit: impl Fn(bool) -> bool) {
        let mut stopped = self.stopped.lock();
        let mut is_called_again = false;
        while !*stopped {
            if !is_called_again && !self.is_due.load(Ordering::Relaxed) {
                self.changed.wait(&mut stopped);
                continue;
            }
            self.changed.wait_while_for(&mut stopped, |stopped| !*stopped, self.interval);
            if *stopped {
                return;
            }
            // A change that is noted from here on asks for the next commit.
            let is_changed = self.is_due.swap(false, Ordering::SeqCst);
            drop(stopped);
            is_called_again = commit(is_changed);
            stopped = self.stopped.lock();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, TryRecvError, channel};
    use std::thread;

    use super::*;

    /// Sends the argument of each call.
    fn run_and_send(
        timer: &CommitTimer,
        calls: Sender<bool>,
        is_called_again: impl Fn(bool) -> bool,
    ) {
        timer.run(|is_changed| {
            calls.send(is_changed).unwrap();
            is_called_again(is_changed)
        });
    }

    #[test]
    fn a_change_is_committed_once_and_the_next_again() {
        let timer = CommitTimer::new(Duration::from_millis(1));
        let (committed, commits) = channel();
        thread::scope(|scope| {
            scope.spawn(|| run_and_send(&timer, committed, |_| false));
            for _ in 0..3 {
                timer.note_change();
                assert_eq!(commits.recv(), Ok(true));
            }
            timer.stop();
        });
        assert_eq!(
            commits.try_recv(),
            Err(TryRecvError::Disconnected),
            "nothing was left to commit"
        );
    }

    #[test]
    fn a_call_that_asks_for_another_gets_it() {
        let timer = CommitTimer::new(Duration::from_millis(1));
        let (committed, commits) = channel();
        thread::scope(|scope| {
            scope.spawn(|| run_and_send(&timer, committed, |is_changed| is_changed));
            timer.note_change();
            assert_eq!([commits.recv(), commits.recv()], [Ok(true), Ok(false)]);
            timer.stop();
        });
        assert_eq!(commits.try_recv(), Err(TryRecvError::Disconnected));
    }

    #[test]
    fn a_stop_ends_the_wait_for_the_interval() {
        let timer = CommitTimer::new(Duration::from_secs(3600));
        timer.note_change();
        thread::scope(|scope| {
            scope.spawn(|| timer.run(|_| panic!("it was stopped before")));
            timer.stop();
        });
    }
}
