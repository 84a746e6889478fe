//! Threads that wait in place of reactors, for `buffered.wait=thread`: each does one read at a time, and sleeps
//! until it is done. They are started when a read comes and none is free, and end when none has come for a while.

use std::collections::VecDeque;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;
use uringfs_device::Payload;
use uringfs_device::queue::QueueKind;
use uringfs_reactor::{Outcome, Reactor, ReactorOptions};
use uringfs_sync::Oneshot;

/// Threads at most; reads beyond wait for one.
const MAX_THREADS: usize = 256;
/// How long one stays without a read.
const IDLE_TIMEOUT: Duration = Duration::from_secs(5);

/// A read that is to be waited for.
struct Job {
    payload: Payload,
    read: Box<Read>,
    /// As the reactor has it that it was asked of.
    queue: QueueKind,
    result: Oneshot<Outcome>,
}

/// Does a read on a pool thread's reactor.
type Read = dyn FnOnce(&Reactor, Payload) -> Outcome + Send;

#[derive(Default)]
struct Pool {
    jobs: VecDeque<Job>,
    threads: usize,
    idle: usize,
}

static POOL: Mutex<Option<Pool>> = Mutex::new(None);
static WORK: Condvar = Condvar::new();

/// Has a thread do a read, and answers what became of it.
pub(crate) async fn read(
    payload: Payload,
    queue: QueueKind,
    read: impl FnOnce(&Reactor, Payload) -> Outcome + Send + 'static,
) -> (Payload, Result<u64, Errno>) {
    let result = Oneshot::default();
    let job = Job { payload, read: Box::new(read), queue, result: result.clone() };
    if let Err((payload, error)) = enqueue(job) {
        return (payload, Err(error));
    }
    let outcome = std::future::poll_fn(|context| result.poll(context)).await;
    (outcome.payload, outcome.result)
}

fn enqueue(job: Job) -> Result<(), (Payload, Errno)> {
    let mut guard = POOL.lock();
    let pool = guard.get_or_insert_default();
    if pool.idle <= pool.jobs.len() && pool.threads < MAX_THREADS {
        let started = std::thread::Builder::new().name("uringfs-waits".into()).spawn(run_thread);
        match started {
            Ok(_) => pool.threads += 1,
            Err(_) if pool.threads > 0 => {}
            Err(_) => return Err((job.payload, Errno::AGAIN)),
        }
    }
    pool.jobs.push_back(job);
    drop(guard);
    WORK.notify_one();
    Ok(())
}

fn run_thread() {
    let new_reactor = |queue| {
        let options = ReactorOptions { queue, depth: 64, ..ReactorOptions::default() };
        (queue, Reactor::new(options))
    };
    let mut own = None;
    while let Some(Job { payload, read, queue, result }) = next_job() {
        if own.as_ref().is_none_or(|(kind, _)| *kind != queue) {
            own = None;
        }
        let (_, reactor) = own.get_or_insert_with(|| new_reactor(queue));
        let outcome = match reactor {
            Ok(reactor) => read(reactor, payload),
            Err(_) => Outcome::refused(Errno::NOSYS, payload),
        };
        result.set(outcome);
    }
}

/// The next read; none when none has come for a while: the thread is counted no more.
fn next_job() -> Option<Job> {
    let mut guard = POOL.lock();
    loop {
        let pool = guard.get_or_insert_default();
        if let Some(job) = pool.jobs.pop_front() {
            return Some(job);
        }
        pool.idle += 1;
        let waited = WORK.wait_for(&mut guard, IDLE_TIMEOUT);
        let pool = guard.get_or_insert_default();
        pool.idle -= 1;
        if waited.timed_out() && pool.jobs.is_empty() {
            pool.threads -= 1;
            return None;
        }
    }
}
