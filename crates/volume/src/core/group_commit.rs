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
pub(crate) struct Board {
    state: Mutex<BoardState>,
    changed: Condvar,
    /// In the child of a fork the thread that commits is missing.
    fork: ForkMark,
}

/// Why a commit did not happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failed {
    /// There is no room for it: nothing has changed, and the next may find some.
    Refused(Errno),
    /// What is on the device is unknown.
    Stopped,
}

impl From<Error> for Failed {
    fn from(_: Error) -> Failed {
        Failed::Stopped
    }
}

#[derive(Default)]
struct BoardState {
    /// The last commit that somebody wants.
    wanted: CommitNumber,
    /// The last that has begun: changes made since are in the next.
    begun: CommitNumber,
    /// The last that has ended well.
    ended: CommitNumber,
    /// The last that was refused, and why. What it held is in the next.
    refused: Option<(CommitNumber, Errno)>,
    /// A commit has failed: nothing will be durable any more.
    failed: bool,
    closing: bool,
    /// Tasks, by the order in which they came.
    waiting: BTreeMap<u64, (CommitNumber, Waker)>,
    /// Those that came so far.
    came: u64,
}

impl Board {
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
        self.state.lock().failed
    }

    /// Ends the volume: what was written may be lost, and no later commit can say that it is not.
    pub(crate) fn fail(&self) {
        let mut state = self.state.lock();
        state.failed = true;
        let waiting = std::mem::take(&mut state.waiting);
        self.changed.notify_all();
        drop(state);
        waiting.into_values().for_each(|(_, waker)| waker.wake());
    }

    /// The commit to wait for, so that what `number` was to hold is durable; none if it is.
    pub(crate) fn pending(&self, number: CommitNumber) -> Option<CommitNumber> {
        let state = self.state.lock();
        match state.refused {
            // To hear of it, whatever it holds.
            _ if state.failed => Some(CommitNumber::MAX),
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
        state.wanted = state.wanted.max(number);
        self.changed.notify_all();
        loop {
            match state.outcome(number) {
                Some(outcome) => return outcome,
                None => self.changed.wait(&mut state),
            }
        }
    }

    /// The same, for a task.
    pub(crate) fn wait_in_task(self: Arc<Self>, number: CommitNumber) -> Commit {
        let mut place = None;
        Box::pin(poll_fn(move |context| {
            if self.is_forked() {
                return Poll::Ready(Err(Errno::CHILD));
            }
            let mut state = self.state.lock();
            if state.wanted < number {
                state.wanted = number;
                self.changed.notify_all();
            }
            match state.outcome(number) {
                Some(outcome) => Poll::Ready(outcome),
                None => {
                    let place = *place.get_or_insert_with(|| {
                        state.came += 1;
                        state.came
                    });
                    let last = state.waiting.insert(place, (number, context.waker().clone()));
                    // Dropping a waker may run anything.
                    drop(state);
                    drop(last);
                    Poll::Pending
                }
            }
        }))
    }

    /// Asks for a commit that nobody waits for.
    pub(crate) fn ask(&self, number: CommitNumber) {
        let mut state = self.state.lock();
        state.wanted = state.wanted.max(number);
        self.changed.notify_all();
    }

    /// Runs `commit` whenever one is wanted, until the volume is closed; then once more.
    ///
    /// # Errors
    /// Why what was changed last is in none that has ended well.
    fn serve(&self, mut commit: impl FnMut(&Self) -> Result<(), Failed>) -> Result<(), Errno> {
        let _end = End(self);
        let mut state = self.state.lock();
        loop {
            while state.wanted <= state.begun && !state.closing {
                self.changed.wait(&mut state);
            }
            let last = state.closing && state.wanted <= state.begun;
            if last || state.failed {
                return match state.refused {
                    _ if state.failed => Err(Errno::IO),
                    Some((refused, errno)) if refused > state.ended => Err(errno),
                    _ => Ok(()),
                };
            }
            drop(state);
            let outcome = commit(self);
            state = self.state.lock();
            match outcome {
                // Unless a flush of somebody else's failed meanwhile.
                Ok(()) if !state.failed => state.ended = state.begun,
                Ok(()) => {}
                Err(Failed::Refused(errno)) => state.refused = Some((state.begun, errno)),
                Err(Failed::Stopped) => state.failed = true,
            }
            let done = if state.failed { CommitNumber::MAX } else { state.begun };
            let waiting = std::mem::take(&mut state.waiting).into_iter();
            let (ended, waiting) = waiting.partition(|(_, (number, _))| *number <= done);
            state.waiting = waiting;
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
        state.closing = true;
        state.wanted = state.begun + 1;
        self.changed.notify_all();
    }
}

impl BoardState {
    fn outcome(&self, number: CommitNumber) -> Option<Result<(), Errno>> {
        match self.refused {
            _ if self.ended >= number => Some(Ok(())),
            _ if self.failed => Some(Err(Errno::IO)),
            Some((refused, errno)) if refused >= number => Some(Err(errno)),
            _ => None,
        }
    }
}

/// The thread that commits. Dropped, it commits what is left, and ends.
pub(crate) struct Committer {
    board: Arc<Board>,
    thread: Option<JoinHandle<()>>,
}

impl Committer {
    /// `lost` hears in the end why what was changed last is not durable, if so: nobody waits for it then.
    pub(crate) fn start(
        board: Arc<Board>,
        commit: impl FnMut(&Board) -> Result<(), Failed> + Send + 'static,
        lost: impl FnOnce(Errno) + Send + 'static,
    ) -> std::io::Result<Committer> {
        let its = board.clone();
        let builder = std::thread::Builder::new().name("uringfs-commit".into());
        let thread = builder.spawn(move || its.serve(commit).unwrap_or_else(lost))?;
        Ok(Committer { board, thread: Some(thread) })
    }
}

/// No commit comes any more, be it that the volume was closed or that one panicked: nobody is to wait.
struct End<'b>(&'b Board);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.fail();
    }
}

impl Drop for Committer {
    fn drop(&mut self) {
        let thread = self.thread.take();
        if self.board.is_forked() {
            // The parent's, which goes on with it.
            return std::mem::forget(thread);
        }
        self.board.close();
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
        let board = Arc::new(Board::default());
        let (changes, durable) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let (from, into) = (changes.clone(), durable.clone());
        let committer = Committer::start(
            board.clone(),
            move |board| {
                board.begin();
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
                        assert_eq!(board.wait(board.next()), Ok(()));
                        assert!(durable.load(Ordering::SeqCst) >= mine);
                    }
                });
            }
        });
        drop(committer);
        assert_eq!(durable.load(Ordering::SeqCst), 800);
    }

    #[test]
    fn after_a_failure_nobody_is_told_that_all_is_well() {
        let board = Arc::new(Board::default());
        let mut left = 1;
        let committer = Committer::start(
            board.clone(),
            move |board| {
                board.begin();
                left -= 1;
                if left < 0 { Err(Failed::Stopped) } else { Ok(()) }
            },
            drop,
        );
        let first = board.next();
        assert_eq!(board.wait(first), Ok(()));
        assert_eq!(board.wait(board.next()), Err(Errno::IO));
        assert_eq!(board.wait(board.next()), Err(Errno::IO));
        assert_eq!(board.wait(first), Ok(()));
        drop(committer);
    }

    #[test]
    fn who_waits_for_a_refused_commit_is_told_and_the_next_holds_its_changes() {
        let board = Arc::new(Board::default());
        let mut left = 2;
        let committer = Committer::start(
            board.clone(),
            move |board| {
                board.begin();
                left -= 1;
                if left > 0 { Err(Failed::Refused(Errno::NOSPC)) } else { Ok(()) }
            },
            drop,
        );
        let first = board.next();
        assert_eq!(board.wait(first), Err(Errno::NOSPC));
        let second = board.pending(first).unwrap();
        assert!(second > first);
        assert_eq!(board.wait(second), Ok(()));
        assert_eq!((board.pending(first), board.wait(first)), (None, Ok(())));
        drop(committer);
    }

    #[test]
    fn the_last_commit_that_fails_is_told_though_nobody_waits_for_it() {
        for (outcome, expected) in [
            (Ok(()), None),
            (Err(Failed::Refused(Errno::NOSPC)), Some(Errno::NOSPC)),
            (Err(Failed::Stopped), Some(Errno::IO)),
        ] {
            let (tell, told) = channel();
            let commit = move |board: &Board| {
                board.begin();
                outcome
            };
            let lost = move |errno| tell.send(errno).unwrap();
            drop(Committer::start(Arc::default(), commit, lost));
            assert_eq!(told.recv().ok(), expected);
        }
    }

    #[test]
    fn a_task_that_is_polled_again_and_again_waits_once() {
        let board = Arc::new(Board::default());
        let mut commit = board.clone().wait_in_task(board.next());
        for _ in 0..100 {
            assert!(commit.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        }
        assert_eq!(board.state.lock().waiting.len(), 1);
    }

    #[test]
    fn a_commit_that_panics_is_an_error_of_everyone_who_waits() {
        let board = Arc::new(Board::default());
        let committer = Committer::start(board.clone(), |_| panic!("as a test does"), drop);
        assert_eq!(board.wait(board.next()), Err(Errno::IO));
        assert_eq!(board.wait(board.next()), Err(Errno::IO));
        drop(committer);
    }

    /// Whom it wakes holds the last of a volume.
    struct Holder {
        committer: Mutex<Option<Committer>>,
        dropped: Mutex<Option<Sender<()>>>,
    }

    impl Wake for Holder {
        fn wake(self: Arc<Self>) {
            drop(self.committer.lock().take());
            self.dropped.lock().take();
        }
    }

    #[test]
    fn dropped_by_its_own_thread_it_commits_once_more_and_ends() {
        let board = Arc::new(Board::default());
        let (tell, commits) = channel();
        let committer = Committer::start(
            board.clone(),
            move |board| {
                tell.send(board.begin()).unwrap();
                Ok(())
            },
            drop,
        );
        let (dropped, was_dropped): (_, Receiver<()>) = channel();
        let holder = Arc::new(Holder {
            committer: Mutex::new(Some(committer.unwrap())),
            dropped: Mutex::new(Some(dropped)),
        });
        let waker = holder.into();
        let mut commit = board.clone().wait_in_task(board.next());
        assert!(commit.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        assert!(was_dropped.recv().is_err());
        assert_eq!(commits.iter().collect::<Vec<_>>(), [1, 2]);
    }
}

#[cfg(all(test, loom))]
mod loom_tests;
