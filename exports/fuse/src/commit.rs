//! [`CommitTimer`]: makes changes durable some seconds after the first that is not, so that a crash loses no more than those.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// Calls a function some time after the first change since its last call. Without changes it uses no processor time.
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

    /// Calls `commit` after changes, until [`Self::stop`].
    pub(crate) fn run(&self, commit: impl Fn()) {
        let mut stopped = self.stopped.lock();
        while !*stopped {
            if !self.is_due.load(Ordering::Relaxed) {
                self.changed.wait(&mut stopped);
                continue;
            }
            self.changed.wait_while_for(&mut stopped, |stopped| !*stopped, self.interval);
            if *stopped {
                return;
            }
            // A change that is noted from here on asks for the next commit.
            self.is_due.store(false, Ordering::SeqCst);
            drop(stopped);
            commit();
            stopped = self.stopped.lock();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{TryRecvError, channel};
    use std::thread;

    use super::*;

    #[test]
    fn a_change_is_committed_once_and_the_next_again() {
        let timer = CommitTimer::new(Duration::from_millis(1));
        let (committed, commits) = channel();
        thread::scope(|scope| {
            scope.spawn(|| timer.run(move || committed.send(()).unwrap()));
            for _ in 0..3 {
                timer.note_change();
                commits.recv().unwrap();
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
    fn a_stop_ends_the_wait_for_the_interval() {
        let timer = CommitTimer::new(Duration::from_secs(3600));
        timer.note_change();
        thread::scope(|scope| {
            scope.spawn(|| timer.run(|| panic!("it was stopped before")));
            timer.stop();
        });
    }
}
