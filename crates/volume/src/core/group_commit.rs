//! Group commit: callers request a commit by number and wait; the commit thread commits for all of them. A thread that
//! finds no other commit in progress or waited for commits itself ([`GroupCommit::commit_in_place`]), so that no thread
//! has to wake.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::thread::JoinHandle;

use uringfs_device::Errno;
use uringfs_file::CommitFuture;
use uringfs_reactor::ForkDetector;
use uringfs_sync::{Condvar, Mutex};

use crate::error::Error;
use crate::records::overlay::CommitNumber;

/// The meeting point of waiters and those that commit.
#[derive(Default)]
pub(crate) struct GroupCommit {
    state: Mutex<GroupCommitState>,
    /// For the commit thread, and for [`Self::wait_until_paused`].
    changed: Condvar,
    /// In the child of a fork the commit thread is missing.
    fork: ForkDetector,
}

/// Why a commit failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CommitError {
    /// The catalog was full: nothing changed, and the next commit may succeed.
    CatalogFull(Errno),
    /// The state on the device is unknown.
    Stopped,
}

impl From<Error> for CommitError {
    fn from(_: Error) -> CommitError {
        CommitError::Stopped
    }
}

#[derive(Default)]
struct GroupCommitState {
    /// The last commit that was requested.
    requested: CommitNumber,
    /// The last commit that has begun: later changes go into the next.
    begun: CommitNumber,
    /// The last commit that has succeeded.
    durable: CommitNumber,
    /// The last commit for which the catalog was full, and the error. The next commit holds its changes.
    refused: Option<(CommitNumber, Errno)>,
    /// A commit has failed: no later change becomes durable.
    has_failed: bool,
    is_closing: bool,
    /// A commit is writing to the device. There is one at a time.
    is_committing: bool,
    /// No commit begins, except the last at the volume's end.
    is_paused: bool,
    /// Tasks and blocked threads, in the order of their arrival.
    waiters: BTreeMap<u64, (CommitNumber, Waker)>,
    /// Waiters that have arrived so far.
    arrivals: u64,
    /// Commits of callers.
    in_place: u64,
}

impl GroupCommit {
    /// True in the child of a fork: the volume is the parent's, and any of its locks may stay locked for ever.
    pub(crate) fn is_forked(&self) -> bool {
        self.fork.is_forked()
    }

    /// The commit that will hold a change made now.
    pub(crate) fn next(&self) -> CommitNumber {
        self.state.lock().begun + 1
    }

    /// Commits that their callers have made, without the commit thread.
    pub(crate) fn in_place(&self) -> u64 {
        self.state.lock().in_place
    }

    /// True after a failed commit: no change made now becomes durable. False in the child of a fork, which takes no lock.
    pub(crate) fn has_failed(&self) -> bool {
        !self.is_forked() && self.state.lock().has_failed
    }

    /// Stops the volume: earlier writes may be lost, and no later commit can prove that they are not.
    pub(crate) fn fail(&self) {
        let mut state = self.state.lock();
        state.has_failed = true;
        let waiters = std::mem::take(&mut state.waiters);
        self.changed.notify_all();
        drop(state);
        waiters.into_values().for_each(|(_, waker)| waker.wake());
    }

    /// The commit to wait for until the changes of `number` are durable; `None` if they are.
    pub(crate) fn commit_to_await(&self, number: CommitNumber) -> Option<CommitNumber> {
        let state = self.state.lock();
        match state.refused {
            // The wait for this number returns EIO.
            _ if state.has_failed => Some(CommitNumber::MAX),
            _ if state.durable >= number => None,
            Some((refused, _)) if refused >= number => Some(state.begun + 1),
            _ => Some(number),
        }
    }

    /// Requests a commit and waits until it has ended.
    ///
    /// # Errors
    /// ENOSPC when the catalog was full; EIO when this commit or an earlier one failed; ECHILD in the child of a fork.
    pub(crate) fn wait(self: Arc<Self>, number: CommitNumber) -> CommitFuture {
        let mut ticket = None;
        Box::pin(poll_fn(move |context| {
            if self.is_forked() {
                return Poll::Ready(Err(Errno::CHILD));
            }
            let mut state = self.state.lock();
            if state.requested < number {
                state.requested = number;
                self.changed.notify_all();
            }
            match state.outcome(number) {
                Some(outcome) => Poll::Ready(outcome),
                None => {
                    let ticket = *ticket.get_or_insert_with(|| {
                        state.arrivals += 1;
                        state.arrivals
                    });
                    let last = state.waiters.insert(ticket, (number, context.waker().clone()));
                    // Dropping a waker may run any code, so not under the lock.
                    drop(state);
                    drop(last);
                    Poll::Pending
                }
            }
        }))
    }

    /// Makes commit `number` in this thread, which blocks. Does nothing if another commit is in progress or waited
    /// for, or if none may begin: then the commit thread makes it. [`Self::wait`] returns how it has ended.
    pub(crate) fn commit_in_place(
        &self,
        number: CommitNumber,
        commit: impl FnOnce(&Self) -> Result<(), CommitError>,
    ) {
        if self.is_forked() {
            return;
        }
        {
            let mut state = self.state.lock();
            let is_next = number == state.begun + 1 && state.requested <= state.begun;
            let is_held_back = state.is_paused || state.is_closing || state.has_failed;
            if !is_next || is_held_back || state.is_committing {
                return;
            }
            state.requested = number;
            state.is_committing = true;
            state.in_place += 1;
        }
        // The panic hook has reported a panic; no waiter is acknowledged.
        let outcome = catch_unwind(AssertUnwindSafe(|| commit(self)));
        self.end(outcome.unwrap_or(Err(CommitError::Stopped)));
    }

    /// Requests a commit without waiting.
    pub(crate) fn request(&self, number: CommitNumber) {
        let mut state = self.state.lock();
        state.requested = state.requested.max(number);
        self.changed.notify_all();
    }

    /// Lets no commit begin until [`Self::resume`]. One that has begun goes on: see [`Self::wait_until_paused`].
    pub(crate) fn pause(&self) {
        self.state.lock().is_paused = true;
    }

    /// Waits until no commit writes to the device, or commits were resumed.
    pub(crate) fn wait_until_paused(&self) {
        let mut state = self.state.lock();
        while state.is_committing && state.is_paused && !state.has_failed {
            self.changed.wait(&mut state);
        }
    }

    /// Lets commits begin again.
    pub(crate) fn resume(&self) {
        self.state.lock().is_paused = false;
        self.changed.notify_all();
    }

    /// Runs `commit` whenever one is requested that no caller makes, until the volume is closed, and then once more.
    ///
    /// # Errors
    /// Why the last changes are in no successful commit.
    fn run(&self, mut commit: impl FnMut(&Self) -> Result<(), CommitError>) -> Result<(), Errno> {
        let _fail_on_exit = FailOnExit(self);
        loop {
            {
                let mut state = self.state.lock();
                while !state.is_due() {
                    self.changed.wait(&mut state);
                }
                let last = state.is_closing && state.requested <= state.begun;
                if last || state.has_failed {
                    return match state.refused {
                        _ if state.has_failed => Err(Errno::IO),
                        Some((refused, errno)) if refused > state.durable => Err(errno),
                        _ => Ok(()),
                    };
                }
                state.is_committing = true;
            }
            let outcome = commit(self);
            self.end(outcome);
        }
    }

    /// Ends the commit in progress, and wakes its waiters.
    fn end(&self, outcome: Result<(), CommitError>) {
        let mut state = self.state.lock();
        state.is_committing = false;
        match outcome {
            // Unless a flush failed elsewhere meanwhile.
            Ok(()) if !state.has_failed => state.durable = state.begun,
            Ok(()) => {}
            Err(CommitError::CatalogFull(errno)) => state.refused = Some((state.begun, errno)),
            Err(CommitError::Stopped) => state.has_failed = true,
        }
        let done = if state.has_failed { CommitNumber::MAX } else { state.begun };
        let waiters = std::mem::take(&mut state.waiters).into_iter();
        let (ended, waiters) = waiters.partition(|(_, (number, _))| *number <= done);
        state.waiters = waiters;
        let ended: BTreeMap<u64, (CommitNumber, Waker)> = ended;
        // The commit thread sleeps on if there is nothing to do: its wake would cost a caller more than the commit.
        if state.is_due() || state.is_paused {
            self.changed.notify_all();
        }
        drop(state);
        ended.into_values().for_each(|(_, waker)| waker.wake());
    }

    /// Begins the commit: later changes go into the next. The caller holds the lock of what it commits.
    pub(crate) fn begin(&self) -> CommitNumber {
        let mut state = self.state.lock();
        state.begun += 1;
        state.begun
    }

    fn close(&self) {
        let mut state = self.state.lock();
        state.is_closing = true;
        state.requested = state.begun + 1;
        self.changed.notify_all();
    }
}

impl GroupCommitState {
    fn outcome(&self, number: CommitNumber) -> Option<Result<(), Errno>> {
        match self.refused {
            _ if self.durable >= number => Some(Ok(())),
            _ if self.has_failed => Some(Err(Errno::IO)),
            Some((refused, errno)) if refused >= number => Some(Err(errno)),
            _ => None,
        }
    }

    /// The commit thread has something to do.
    fn is_due(&self) -> bool {
        let may_begin = self.requested > self.begun && !self.is_paused;
        !self.is_committing && (may_begin || self.is_closing)
    }
}

/// The commit thread. Dropping it commits what is left and ends the thread.
pub(crate) struct CommitThread {
    group_commit: Arc<GroupCommit>,
    thread: Option<JoinHandle<()>>,
}

impl CommitThread {
    /// Starts the thread. It calls `lost` at its end if the last changes are not durable: no caller waits for them.
    pub(crate) fn start(
        group_commit: Arc<GroupCommit>,
        commit: impl FnMut(&GroupCommit) -> Result<(), CommitError> + Send + 'static,
        lost: impl FnOnce(Errno) + Send + 'static,
    ) -> std::io::Result<CommitThread> {
        let shared = group_commit.clone();
        let builder = std::thread::Builder::new().name("uringfs-commit".into());
        let thread = builder.spawn(move || shared.run(commit).unwrap_or_else(lost))?;
        Ok(CommitThread { group_commit, thread: Some(thread) })
    }
}

/// Wakes all waiters with an error when the thread ends, by closing or by a panic: no commit follows.
struct FailOnExit<'b>(&'b GroupCommit);

impl Drop for FailOnExit<'_> {
    fn drop(&mut self) {
        self.0.fail();
    }
}

impl Drop for CommitThread {
    fn drop(&mut self) {
        let thread = self.thread.take();
        if self.group_commit.is_forked() {
            // The thread is the parent's and keeps running there.
            return std::mem::forget(thread);
        }
        self.group_commit.close();
        // The commit thread itself may drop this, if a task that it woke held the last clone of the volume. Then it
        // cannot join itself; it ends after one more commit.
        if let Some(thread) = thread.filter(|it| it.thread().id() != std::thread::current().id()) {
            // The panic hook has reported a panic there; no waiter was acknowledged.
            let _ = thread.join();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::task::{Context, Wake};

    use uringfs_sync::park_on;

    fn wait(group_commit: &Arc<GroupCommit>, number: CommitNumber) -> Result<(), Errno> {
        park_on(group_commit.clone().wait(number))
    }

    #[test]
    fn waiters_share_commits_and_each_gets_its_change_durable() {
        let group_commit = Arc::new(GroupCommit::default());
        let (changes, durable) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let (from, into) = (changes.clone(), durable.clone());
        let commit_thread = CommitThread::start(
            group_commit.clone(),
            move |group_commit| {
                group_commit.begin();
                into.store(from.load(Ordering::SeqCst), Ordering::SeqCst);
                Ok(())
            },
            drop,
        );
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..100 {
                        let mine = changes.fetch_add(1, Ordering::SeqCst) + 1;
                        assert_eq!(wait(&group_commit, group_commit.next()), Ok(()));
                        assert!(durable.load(Ordering::SeqCst) >= mine);
                    }
                });
            }
        });
        drop(commit_thread);
        assert_eq!(durable.load(Ordering::SeqCst), 800);
    }

    #[test]
    fn after_a_failed_commit_every_later_wait_fails() {
        let group_commit = Arc::new(GroupCommit::default());
        let mut left = 1;
        let commit_thread = CommitThread::start(
            group_commit.clone(),
            move |group_commit| {
                group_commit.begin();
                left -= 1;
                if left < 0 { Err(CommitError::Stopped) } else { Ok(()) }
            },
            drop,
        );
        let first = group_commit.next();
        assert_eq!(wait(&group_commit, first), Ok(()));
        assert_eq!(wait(&group_commit, group_commit.next()), Err(Errno::IO));
        assert_eq!(wait(&group_commit, group_commit.next()), Err(Errno::IO));
        assert_eq!(wait(&group_commit, first), Ok(()));
        drop(commit_thread);
    }

    #[test]
    fn a_refused_commit_fails_its_waiter_and_the_next_holds_its_changes() {
        let group_commit = Arc::new(GroupCommit::default());
        let mut left = 2;
        let commit_thread = CommitThread::start(
            group_commit.clone(),
            move |group_commit| {
                group_commit.begin();
                left -= 1;
                if left > 0 { Err(CommitError::CatalogFull(Errno::NOSPC)) } else { Ok(()) }
            },
            drop,
        );
        let first = group_commit.next();
        assert_eq!(wait(&group_commit, first), Err(Errno::NOSPC));
        let second = group_commit.commit_to_await(first).unwrap();
        assert!(second > first);
        assert_eq!(wait(&group_commit, second), Ok(()));
        assert_eq!(
            (group_commit.commit_to_await(first), wait(&group_commit, first)),
            (None, Ok(()))
        );
        drop(commit_thread);
    }

    #[test]
    fn a_failed_last_commit_is_reported_without_a_waiter() {
        for (outcome, expected) in [
            (Ok(()), None),
            (Err(CommitError::CatalogFull(Errno::NOSPC)), Some(Errno::NOSPC)),
            (Err(CommitError::Stopped), Some(Errno::IO)),
        ] {
            let (sender, receiver) = channel();
            let commit = move |group_commit: &GroupCommit| {
                group_commit.begin();
                outcome
            };
            let lost = move |errno| sender.send(errno).unwrap();
            drop(CommitThread::start(Arc::default(), commit, lost));
            assert_eq!(receiver.recv().ok(), expected);
        }
    }

    #[test]
    fn a_task_that_is_polled_again_is_one_waiter() {
        let group_commit = Arc::new(GroupCommit::default());
        let mut commit = group_commit.clone().wait(group_commit.next());
        for _ in 0..100 {
            assert!(commit.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        }
        assert_eq!(group_commit.state.lock().waiters.len(), 1);
    }

    #[test]
    fn a_pause_holds_back_commits_and_waits_for_the_one_under_way() {
        let group_commit = Arc::new(GroupCommit::default());
        let (begun, begins) = channel();
        let (end, ends) = channel();
        let commit_thread = CommitThread::start(
            group_commit.clone(),
            move |group_commit| {
                begun.send(group_commit.begin()).unwrap();
                let _ = ends.recv();
                Ok(())
            },
            drop,
        );
        group_commit.request(1);
        assert_eq!(begins.recv(), Ok(1));
        group_commit.pause();
        std::thread::scope(|scope| {
            let paused = scope.spawn(|| group_commit.wait_until_paused());
            assert!(!paused.is_finished());
            end.send(()).unwrap();
        });
        group_commit.request(2);
        assert!(begins.try_recv().is_err());
        group_commit.resume();
        assert_eq!(begins.recv(), Ok(2));
        // The last commit at the end of the volume is never held back.
        group_commit.pause();
        drop(end);
        drop(commit_thread);
        assert_eq!(begins.recv(), Ok(3));
    }

    #[test]
    fn a_commit_that_panics_fails_every_waiter() {
        let group_commit = Arc::new(GroupCommit::default());
        let commit_thread =
            CommitThread::start(group_commit.clone(), |_| panic!("planned by the test"), drop);
        assert_eq!(wait(&group_commit, group_commit.next()), Err(Errno::IO));
        assert_eq!(wait(&group_commit, group_commit.next()), Err(Errno::IO));
        drop(commit_thread);
    }

    #[test]
    fn a_caller_commits_itself_if_no_other_commit_is_waited_for() {
        let group_commit = Arc::new(GroupCommit::default());
        let tries = |number| {
            let mut has_committed = false;
            group_commit.commit_in_place(number, |group_commit| {
                assert_eq!(group_commit.begin(), number);
                // One is in progress: another caller leaves the next to the commit thread.
                group_commit.commit_in_place(number + 1, |_| panic!("it is in progress"));
                has_committed = true;
                Ok(())
            });
            has_committed
        };
        assert!(!tries(2), "the next commit is the first");
        assert!(tries(1));
        assert_eq!((wait(&group_commit, 1), group_commit.in_place()), (Ok(()), 1));
        assert!(!tries(1), "it has been made");
        group_commit.pause();
        assert!(!tries(2), "none may begin");
        group_commit.resume();
        let mut other = group_commit.clone().wait(2);
        assert!(other.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        assert!(!tries(2), "another caller has requested it");
    }

    #[test]
    fn a_commit_that_is_requested_beside_one_in_place_is_made_by_the_thread() {
        let group_commit = Arc::new(GroupCommit::default());
        let (sender, commits) = channel();
        let commit_thread = CommitThread::start(
            group_commit.clone(),
            move |group_commit| {
                sender.send(group_commit.begin()).unwrap();
                Ok(())
            },
            drop,
        );
        let mut other = group_commit.clone().wait(2);
        group_commit.commit_in_place(1, |group_commit| {
            group_commit.begin();
            assert!(other.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
            assert!(commits.try_recv().is_err(), "one commit at a time");
            Ok(())
        });
        assert_eq!((wait(&group_commit, 1), park_on(other)), (Ok(()), Ok(())));
        assert_eq!((commits.recv(), group_commit.in_place()), (Ok(2), 1));
        drop(commit_thread);
    }

    #[test]
    fn a_commit_in_place_that_panics_fails_every_waiter() {
        let group_commit = Arc::new(GroupCommit::default());
        group_commit.commit_in_place(1, |_| panic!("planned by the test"));
        assert!(group_commit.has_failed());
        assert_eq!(wait(&group_commit, 1), Err(Errno::IO));
        group_commit.commit_in_place(1, |_| unreachable!("none begins after a failure"));
    }

    /// A waker that holds the last clone of a volume.
    struct Holder {
        commit_thread: Mutex<Option<CommitThread>>,
        dropped: Mutex<Option<Sender<()>>>,
    }

    impl Wake for Holder {
        fn wake(self: Arc<Self>) {
            drop(self.commit_thread.lock().take());
            self.dropped.lock().take();
        }
    }

    #[test]
    fn dropped_by_its_own_thread_it_commits_once_more_and_ends() {
        let group_commit = Arc::new(GroupCommit::default());
        let (sender, commits) = channel();
        let commit_thread = CommitThread::start(
            group_commit.clone(),
            move |group_commit| {
                sender.send(group_commit.begin()).unwrap();
                Ok(())
            },
            drop,
        );
        let (dropped, was_dropped): (_, Receiver<()>) = channel();
        let holder = Arc::new(Holder {
            commit_thread: Mutex::new(Some(commit_thread.unwrap())),
            dropped: Mutex::new(Some(dropped)),
        });
        let waker = holder.into();
        let mut commit = group_commit.clone().wait(group_commit.next());
        assert!(commit.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        assert!(was_dropped.recv().is_err());
        assert_eq!(commits.iter().collect::<Vec<_>>(), [1, 2]);
    }
}

#[cfg(all(test, loom))]
mod loom_tests;
