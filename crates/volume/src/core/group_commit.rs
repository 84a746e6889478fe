//! Group commit: who wants to be durable says so and waits; one thread commits for all of them.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::thread::JoinHandle;

use rustix::io::Errno;
use uringfs_file::Commit;
use uringfs_reactor::ForkMark;
use uringfs_sync::{Condvar, Mutex};

use crate::error::Error;
use crate::records::overlay::CommitNumber;

/// Where those who wait and the thread that commits meet.
#[derive(Default)]
pub(crate) struct GroupCommit {
    state: Mutex<GroupCommitState>,
    changed: Condvar,
    /// In the child of a fork the thread that commits is missing.
    fork: ForkMark,
}

/// Why a commit did not happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CommitError {
    /// There is no room for it: nothing has changed, and the next may find some.
    Refused(Errno),
    /// What is on the device is unknown.
    Stopped,
}

impl From<Error> for CommitError {
    fn from(_: Error) -> CommitError {
        CommitError::Stopped
    }
}

#[derive(Default)]
struct GroupCommitState {
    /// The last commit that somebody wants.
    requested: CommitNumber,
    /// The last that has begun: changes made since are in the next.
    begun: CommitNumber,
    /// The last that has ended well.
    ended: CommitNumber,
    /// The last that was refused, and why. What it held is in the next.
    refused: Option<(CommitNumber, Errno)>,
    /// A commit has failed: nothing will be durable any more.
    has_failed: bool,
    is_closing: bool,
    /// Tasks, by the order in which they came.
    waiters: BTreeMap<u64, (CommitNumber, Waker)>,
    /// Those that came so far.
    arrivals: u64,
}

impl GroupCommit {
    /// True in the child of a fork: the volume is its parent's, and any lock of it may be held for ever.
    pub(crate) fn is_forked(&self) -> bool {
        self.fork.is_forked()
    }

    /// The commit that is going to hold a change made now.
    pub(crate) fn next(&self) -> CommitNumber {
        self.state.lock().begun + 1
    }

    /// True when a commit has failed: nothing that is changed now becomes durable.
    pub(crate) fn has_failed(&self) -> bool {
        self.state.lock().has_failed
    }

    /// Ends the volume: what was written may be lost, and no later commit can say that it is not.
    pub(crate) fn fail(&self) {
        let mut state = self.state.lock();
        state.has_failed = true;
        let waiters = std::mem::take(&mut state.waiters);
        self.changed.notify_all();
        drop(state);
        waiters.into_values().for_each(|(_, waker)| waker.wake());
    }

    /// The commit to wait for, so that what `number` was to hold is durable; none if it is.
    pub(crate) fn commit_to_await(&self, number: CommitNumber) -> Option<CommitNumber> {
        let state = self.state.lock();
        match state.refused {
            // To hear of it, whatever it holds.
            _ if state.has_failed => Some(CommitNumber::MAX),
            _ if state.ended >= number => None,
            Some((refused, _)) if refused >= number => Some(state.begun + 1),
            _ => Some(number),
        }
    }

    /// Asks for that commit, and waits until it has ended.
    ///
    /// # Errors
    /// ENOSPC when there was no room for it; EIO when it has failed, or one before it; ECHILD in the child of a fork.
    pub(crate) fn wait(&self, number: CommitNumber) -> Result<(), Errno> {
        if self.is_forked() {
            return Err(Errno::CHILD);
        }
        let mut state = self.state.lock();
        state.requested = state.requested.max(number);
        self.changed.notify_all();
        loop {
            match state.outcome(number) {
                Some(outcome) => return outcome,
                None => self.changed.wait(&mut state),
            }
        }
    }

    /// The same, for a task.
    pub(crate) fn wait_async(self: Arc<Self>, number: CommitNumber) -> Commit {
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
                    // Dropping a waker may run anything.
                    drop(state);
                    drop(last);
                    Poll::Pending
                }
            }
        }))
    }

    /// Asks for a commit that nobody waits for.
    pub(crate) fn request(&self, number: CommitNumber) {
        let mut state = self.state.lock();
        state.requested = state.requested.max(number);
        self.changed.notify_all();
    }

    /// Runs `commit` whenever one is wanted, until the volume is closed; then once more.
    ///
    /// # Errors
    /// Why what was changed last is in none that has ended well.
    fn run(&self, mut commit: impl FnMut(&Self) -> Result<(), CommitError>) -> Result<(), Errno> {
        let _fail_on_exit = FailOnExit(self);
        let mut state = self.state.lock();
        loop {
            while state.requested <= state.begun && !state.is_closing {
                self.changed.wait(&mut state);
            }
            let last = state.is_closing && state.requested <= state.begun;
            if last || state.has_failed {
                return match state.refused {
                    _ if state.has_failed => Err(Errno::IO),
                    Some((refused, errno)) if refused > state.ended => Err(errno),
                    _ => Ok(()),
                };
            }
            drop(state);
            let outcome = commit(self);
            state = self.state.lock();
            match outcome {
                // Unless a flush of somebody else's failed meanwhile.
                Ok(()) if !state.has_failed => state.ended = state.begun,
                Ok(()) => {}
                Err(CommitError::Refused(errno)) => state.refused = Some((state.begun, errno)),
                Err(CommitError::Stopped) => state.has_failed = true,
            }
            let done = if state.has_failed { CommitNumber::MAX } else { state.begun };
            let waiters = std::mem::take(&mut state.waiters).into_iter();
            let (ended, waiters) = waiters.partition(|(_, (number, _))| *number <= done);
            state.waiters = waiters;
            let ended: BTreeMap<u64, (CommitNumber, Waker)> = ended;
            self.changed.notify_all();
            drop(state);
            ended.into_values().for_each(|(_, waker)| waker.wake());
            state = self.state.lock();
        }
    }

    /// The commit under way takes no more changes: called with what it takes locked.
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
            _ if self.ended >= number => Some(Ok(())),
            _ if self.has_failed => Some(Err(Errno::IO)),
            Some((refused, errno)) if refused >= number => Some(Err(errno)),
            _ => None,
        }
    }
}

/// The thread that commits. Dropped, it commits what is left, and ends.
pub(crate) struct CommitThread {
    group_commit: Arc<GroupCommit>,
    thread: Option<JoinHandle<()>>,
}

impl CommitThread {
    /// `lost` hears in the end why what was changed last is not durable, if so: nobody waits for it then.
    pub(crate) fn start(
        group_commit: Arc<GroupCommit>,
        commit: impl FnMut(&GroupCommit) -> Result<(), CommitError> + Send + 'static,
        lost: impl FnOnce(Errno) + Send + 'static,
    ) -> std::io::Result<CommitThread> {
        let its = group_commit.clone();
        let builder = std::thread::Builder::new().name("uringfs-commit".into());
        let thread = builder.spawn(move || its.run(commit).unwrap_or_else(lost))?;
        Ok(CommitThread { group_commit, thread: Some(thread) })
    }
}

/// No commit comes any more, be it that the volume was closed or that one panicked: nobody is to wait.
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
            // The parent's, which goes on with it.
            return std::mem::forget(thread);
        }
        self.group_commit.close();
        // That thread itself drops it, where whom it wakes held the last of the volume; it ends after
        // one more commit.
        if let Some(thread) = thread.filter(|it| it.thread().id() != std::thread::current().id()) {
            // A panic there has been said already; nothing of it was acknowledged.
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

    #[test]
    fn many_who_wait_share_commits_and_each_has_its_change_in_one() {
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
                        assert_eq!(group_commit.wait(group_commit.next()), Ok(()));
                        assert!(durable.load(Ordering::SeqCst) >= mine);
                    }
                });
            }
        });
        drop(commit_thread);
        assert_eq!(durable.load(Ordering::SeqCst), 800);
    }

    #[test]
    fn after_a_failure_nobody_is_told_that_all_is_well() {
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
        assert_eq!(group_commit.wait(first), Ok(()));
        assert_eq!(group_commit.wait(group_commit.next()), Err(Errno::IO));
        assert_eq!(group_commit.wait(group_commit.next()), Err(Errno::IO));
        assert_eq!(group_commit.wait(first), Ok(()));
        drop(commit_thread);
    }

    #[test]
    fn who_waits_for_a_refused_commit_is_told_and_the_next_holds_its_changes() {
        let group_commit = Arc::new(GroupCommit::default());
        let mut left = 2;
        let commit_thread = CommitThread::start(
            group_commit.clone(),
            move |group_commit| {
                group_commit.begin();
                left -= 1;
                if left > 0 { Err(CommitError::Refused(Errno::NOSPC)) } else { Ok(()) }
            },
            drop,
        );
        let first = group_commit.next();
        assert_eq!(group_commit.wait(first), Err(Errno::NOSPC));
        let second = group_commit.commit_to_await(first).unwrap();
        assert!(second > first);
        assert_eq!(group_commit.wait(second), Ok(()));
        assert_eq!((group_commit.commit_to_await(first), group_commit.wait(first)), (None, Ok(())));
        drop(commit_thread);
    }

    #[test]
    fn the_last_commit_that_fails_is_told_though_nobody_waits_for_it() {
        for (outcome, expected) in [
            (Ok(()), None),
            (Err(CommitError::Refused(Errno::NOSPC)), Some(Errno::NOSPC)),
            (Err(CommitError::Stopped), Some(Errno::IO)),
        ] {
            let (tell, told) = channel();
            let commit = move |group_commit: &GroupCommit| {
                group_commit.begin();
                outcome
            };
            let lost = move |errno| tell.send(errno).unwrap();
            drop(CommitThread::start(Arc::default(), commit, lost));
            assert_eq!(told.recv().ok(), expected);
        }
    }

    #[test]
    fn a_task_that_is_polled_again_and_again_waits_once() {
        let group_commit = Arc::new(GroupCommit::default());
        let mut commit = group_commit.clone().wait_async(group_commit.next());
        for _ in 0..100 {
            assert!(commit.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        }
        assert_eq!(group_commit.state.lock().waiters.len(), 1);
    }

    #[test]
    fn a_commit_that_panics_is_an_error_of_everyone_who_waits() {
        let group_commit = Arc::new(GroupCommit::default());
        let commit_thread =
            CommitThread::start(group_commit.clone(), |_| panic!("as a test does"), drop);
        assert_eq!(group_commit.wait(group_commit.next()), Err(Errno::IO));
        assert_eq!(group_commit.wait(group_commit.next()), Err(Errno::IO));
        drop(commit_thread);
    }

    /// Whom it wakes holds the last of a volume.
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
        let (tell, commits) = channel();
        let commit_thread = CommitThread::start(
            group_commit.clone(),
            move |group_commit| {
                tell.send(group_commit.begin()).unwrap();
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
        let mut commit = group_commit.clone().wait_async(group_commit.next());
        assert!(commit.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        assert!(was_dropped.recv().is_err());
        assert_eq!(commits.iter().collect::<Vec<_>>(), [1, 2]);
    }
}

#[cfg(all(test, loom))]
mod loom_tests;
