//! The blocking pool of `buffered.wait=thread`: each thread does one read at a time and sleeps until it is
//! done. A thread starts when a read finds none idle, and ends when it has been idle for a while.

use std::collections::VecDeque;
// Not parking_lot's: its sleeping threads stand in a list of the process, which in the child of a fork leads to memory that is
// gone.
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use uringfs_device::queue::QueueKind;
use uringfs_device::{Errno, Payload};
use uringfs_reactor::{ForkDetector, OpResult, Reactor, ReactorOptions};
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

/// The pool of one process.
#[derive(Default)]
struct Pool {
    state: Mutex<PoolState>,
    /// Wakes an idle thread.
    work: Condvar,
    process: ForkDetector,
}

#[derive(Default)]
struct PoolState {
    jobs: VecDeque<Job>,
    threads: usize,
    idle: usize,
}

static POOL: Mutex<Option<Arc<Pool>>> = Mutex::new(None);

/// The pool of this process. The child of a fork has none of its parent's threads, so it begins with an empty pool.
fn pool_of_process() -> Arc<Pool> {
    let mut current = lock(&POOL);
    match &*current {
        Some(pool) if !pool.process.is_forked() => pool.clone(),
        _ => {
            let pool = Arc::<Pool>::default();
            // Not dropped: its jobs and their memory are the parent's.
            std::mem::forget(current.replace(pool.clone()));
            pool
        }
    }
}

/// Locks also after a panic: nothing under these locks leaves its data half changed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Does a read on a pool thread. Returns the memory and the result.
pub(crate) async fn read(
    payload: Payload,
    queue: QueueKind,
    read: impl FnOnce(&Reactor, Payload) -> OpResult + Send + 'static,
) -> (Payload, Result<u64, Errno>) {
    let result = Oneshot::default();
    let job = Job { payload, read: Box::new(read), queue, result: result.clone() };
    if let Err((payload, error)) = pool_of_process().enqueue(job) {
        return (payload, Err(error));
    }
    let outcome = std::future::poll_fn(|context| result.poll(context)).await;
    (outcome.payload, outcome.result)
}

impl Pool {
    fn enqueue(self: Arc<Pool>, job: Job) -> Result<(), (Payload, Errno)> {
        let mut state = lock(&self.state);
        if state.idle <= state.jobs.len() && state.threads < MAX_THREADS {
            let pool = self.clone();
            let thread = std::thread::Builder::new().name("uringfs-pool".into());
            match thread.spawn(move || run_thread(&pool)) {
                Ok(_) => state.threads += 1,
                Err(_) if state.threads > 0 => {}
                Err(_) => return Err((job.payload, Errno::AGAIN)),
            }
        }
        state.jobs.push_back(job);
        drop(state);
        self.work.notify_one();
        Ok(())
    }

    /// The next read. `None` after the idle timeout: the thread is no longer counted.
    fn next_job(&self) -> Option<Job> {
        let mut state = lock(&self.state);
        loop {
            if let Some(job) = state.jobs.pop_front() {
                return Some(job);
            }
            state.idle += 1;
            let waited = self.work.wait_timeout(state, IDLE_TIMEOUT);
            let (locked, waited) = waited.unwrap_or_else(PoisonError::into_inner);
            state = locked;
            state.idle -= 1;
            if waited.timed_out() && state.jobs.is_empty() {
                state.threads -= 1;
                return None;
            }
        }
    }
}

fn run_thread(pool: &Pool) {
    let mut current = None;
    while let Some(Job { payload, read, queue, result }) = pool.next_job() {
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
