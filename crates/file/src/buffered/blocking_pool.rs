//! The blocking pool of `buffered.wait=thread`: each thread does one read at a time and sleeps until it is
//! done. A thread starts when a read finds none idle, and ends when it has been idle for a while.

use std::collections::VecDeque;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use uringfs_device::queue::QueueKind;
use uringfs_device::{Errno, Payload};
use uringfs_reactor::{OpResult, Reactor, ReactorOptions};
use uringfs_sync::Oneshot;

/// Threads at most. Further reads wait for an idle one.
const MAX_THREADS: usize = 256;
/// Idle time after which a thread ends.
const IDLE_TIMEOUT: Duration = Duration::from_secs(5);

/// A queued read.
struct Job {
    payload: Payload,
    read: Box<Read>,
    /// The queue kind of the requesting reactor.
    queue: QueueKind,
    result: Oneshot<OpResult>,
}

/// Does a read on a pool thread's reactor.
type Read = dyn FnOnce(&Reactor, Payload) -> OpResult + Send;

#[derive(Default)]
struct Pool {
    jobs: VecDeque<Job>,
    threads: usize,
    idle: usize,
}

static POOL: Mutex<Option<Pool>> = Mutex::new(None);
static WORK: Condvar = Condvar::new();

/// Does a read on a pool thread. Returns the memory and the result.
pub(crate) async fn read(
    payload: Payload,
    queue: QueueKind,
    read: impl FnOnce(&Reactor, Payload) -> OpResult + Send + 'static,
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
        let started = std::thread::Builder::new().name("uringfs-pool".into()).spawn(run_thread);
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
    let mut current = None;
    while let Some(Job { payload, read, queue, result }) = next_job() {
        let kept = current.take().filter(|(kind, _)| *kind == queue);
        let reactor = kept.map_or_else(
            || Reactor::new(ReactorOptions::new().queue(queue).depth(64)),
            |(_, reactor)| Ok(reactor),
        );
        let outcome = match reactor {
            Ok(reactor) => {
                let outcome = read(&reactor, payload);
                current = Some((queue, reactor));
                outcome
            }
            Err(error) => {
                let why = Errno::from_io_error(&error).unwrap_or(Errno::NOSYS);
                OpResult::not_started(why, payload)
            }
        };
        result.set(outcome);
    }
}

/// The next read. `None` after the idle timeout: the thread is no longer counted.
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
