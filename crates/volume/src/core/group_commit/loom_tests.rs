//! All interleavings of waiters and the commit thread, searched by loom: no waiter is woken too early, and none
//! waits for ever.

use super::*;
use loom::sync::atomic::{AtomicU64, Ordering::SeqCst};
use loom::thread;
use std::task::{Context, Wake};

/// A counter of changes, and how many of them are durable.
#[derive(Default)]
struct Device {
    group_commit: Arc<GroupCommit>,
    changes: AtomicU64,
    durable: AtomicU64,
    commits: AtomicU64,
}

impl Device {
    /// One commit with the given outcome. There is one at a time.
    fn commit(&self, outcome: Result<(), CommitError>) -> Result<(), CommitError> {
        assert_eq!(self.commits.fetch_add(1, SeqCst), 0);
        let ended = self.commit_alone(outcome);
        self.commits.fetch_sub(1, SeqCst);
        ended
    }

    fn commit_alone(&self, outcome: Result<(), CommitError>) -> Result<(), CommitError> {
        self.group_commit.begin();
        let taken = self.changes.load(SeqCst);
        outcome?;
        self.durable.store(taken, SeqCst);
        Ok(())
    }

    /// Makes a change and waits until it is durable.
    fn change_and_sync(&self, wait: fn(&Device) -> Result<(), Errno>) -> Result<(), Errno> {
        let mine = self.changes.fetch_add(1, SeqCst) + 1;
        let synced = wait(self);
        assert!(synced.is_err() || self.durable.load(SeqCst) >= mine, "it was not durable");
        synced
    }
}

/// Leaves the commit to the commit thread.
fn by_thread(device: &Device) -> Result<(), Errno> {
    wait(&device.group_commit, device.group_commit.next())
}

/// Commits itself if it can.
fn in_place(device: &Device) -> Result<(), Errno> {
    in_place_with(device, Ok(()))
}

/// The same, and fails.
fn failing_in_place(device: &Device) -> Result<(), Errno> {
    in_place_with(device, Err(CommitError::Stopped))
}

fn in_place_with(device: &Device, outcome: Result<(), CommitError>) -> Result<(), Errno> {
    let number = device.group_commit.next();
    device.group_commit.commit_in_place(number, |_| device.commit(outcome));
    wait(&device.group_commit, number)
}

fn wait(group_commit: &Arc<GroupCommit>, number: CommitNumber) -> Result<(), Errno> {
    let mut commit = group_commit.clone().wait(number);
    let woken = Arc::new(Woken::default());
    let waker = woken.clone().into();
    loop {
        match commit.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(outcome) => return outcome,
            Poll::Pending => woken.wait(),
        }
    }
}

#[derive(Default)]
struct Woken {
    is_woken: Mutex<bool>,
    changed: Condvar,
}

impl Woken {
    fn wait(&self) {
        let mut is_woken = self.is_woken.lock();
        while !std::mem::take(&mut *is_woken) {
            self.changed.wait(&mut is_woken);
        }
    }
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        *self.is_woken.lock() = true;
        self.changed.notify_all();
    }
}

/// Searches the interleavings of `what` with a commit thread whose first commit ends with `first`; then closes.
fn model(first: Result<(), CommitError>, what: fn(&Arc<Device>)) {
    model_by(loom::model::Builder::new(), first, what);
}

fn model_by(builder: loom::model::Builder, first: Result<(), CommitError>, what: fn(&Arc<Device>)) {
    builder.check(move || {
        let device = Arc::new(Device::default());
        let shared = device.clone();
        let mut outcome = Some(first);
        let commits =
            move || shared.group_commit.run(|_| shared.commit(outcome.take().unwrap_or(Ok(()))));
        let commit_thread = thread::spawn(commits);
        what(&device);
        device.group_commit.close();
        // The outcome of the last commit is not part of these tests.
        let _ = commit_thread.join().unwrap();
    });
}

#[test]
fn loom_a_woken_waiter_has_its_change_in_an_ended_commit() {
    model(Ok(()), |device| {
        let shared = device.clone();
        let other = thread::spawn(move || assert_eq!(shared.change_and_sync(by_thread), Ok(())));
        assert_eq!(device.change_and_sync(by_thread), Ok(()));
        other.join().unwrap();
    });
}

#[test]
fn loom_a_failure_reaches_every_waiter() {
    model(Err(CommitError::Stopped), |device| {
        let shared = device.clone();
        let other =
            thread::spawn(move || assert_eq!(shared.change_and_sync(by_thread), Err(Errno::IO)));
        assert_eq!(device.change_and_sync(by_thread), Err(Errno::IO));
        other.join().unwrap();
    });
}

#[test]
fn loom_a_failed_flush_elsewhere_ends_every_wait() {
    model(Ok(()), |device| {
        let shared = device.clone();
        let failing = thread::spawn(move || shared.group_commit.fail());
        let synced = device.change_and_sync(by_thread);
        assert!(synced.is_ok() || device.group_commit.has_failed());
        failing.join().unwrap();
        assert_eq!(device.change_and_sync(by_thread), Err(Errno::IO));
    });
}

#[test]
fn loom_a_refused_waiter_is_woken_and_the_next_commit_has_its_change() {
    let mut builder = loom::model::Builder::new();
    // Each further preemption takes ten times as long: six did not finish in twenty minutes.
    builder.preemption_bound = builder.preemption_bound.map(|bound| bound.min(5));
    model_by(builder, Err(CommitError::CatalogFull(Errno::NOSPC)), |device| {
        let shared = device.clone();
        let other = thread::spawn(move || shared.change_and_sync(by_thread));
        if device.change_and_sync(by_thread) == Err(Errno::NOSPC) {
            assert_eq!(device.change_and_sync(by_thread), Ok(()));
        }
        // In the same commit or in the next.
        let other = other.join().unwrap();
        assert!(other.is_ok() || other == Err(Errno::NOSPC));
    });
}

#[test]
fn loom_closing_with_a_waiter_and_a_dropped_one_ends_every_wait() {
    model(Ok(()), |device| {
        let shared = device.clone();
        let waiting = thread::spawn(move || shared.change_and_sync(by_thread));
        let mut given_up = device.group_commit.clone().wait(device.group_commit.next());
        let waker = Arc::new(Woken::default()).into();
        let _ = given_up.as_mut().poll(&mut Context::from_waker(&waker));
        drop(given_up);
        device.group_commit.close();
        let waited = waiting.join().unwrap();
        assert!(waited.is_ok() || waited == Err(Errno::IO));
    });
}

#[test]
fn loom_a_caller_and_the_commit_thread_contend_for_a_commit() {
    model(Ok(()), |device| {
        let shared = device.clone();
        let other = thread::spawn(move || assert_eq!(shared.change_and_sync(by_thread), Ok(())));
        assert_eq!(device.change_and_sync(in_place), Ok(()));
        other.join().unwrap();
    });
}

#[test]
fn loom_two_callers_contend_for_a_commit() {
    model(Ok(()), |device| {
        let shared = device.clone();
        let other = thread::spawn(move || assert_eq!(shared.change_and_sync(in_place), Ok(())));
        assert_eq!(device.change_and_sync(in_place), Ok(()));
        other.join().unwrap();
    });
}

#[test]
fn loom_a_failure_in_place_reaches_every_waiter_that_is_not_served() {
    model(Ok(()), |device| {
        let shared = device.clone();
        let other = thread::spawn(move || shared.change_and_sync(by_thread));
        let own = device.change_and_sync(failing_in_place);
        let other = other.join().unwrap();
        assert!([own, other].iter().all(|it| matches!(it, Ok(()) | Err(Errno::IO))));
        assert_eq!(device.group_commit.has_failed(), own.is_err() || other.is_err());
    });
}

#[test]
fn loom_closing_and_a_pause_wait_for_a_commit_in_place() {
    model(Ok(()), |device| {
        let shared = device.clone();
        let other = thread::spawn(move || shared.change_and_sync(in_place));
        device.group_commit.pause();
        device.group_commit.wait_until_paused();
        assert_eq!(device.commits.load(SeqCst), 0, "none may begin");
        device.group_commit.close();
        let waited = other.join().unwrap();
        assert!(waited.is_ok() || waited == Err(Errno::IO));
    });
}
