//! Executes requests in worker threads of the queue: for kernels without a better
//! queue, and for calls that block.
//!
//! A thread starts when a request waits for one, up to a bound, and sleeps when
//! there is no work. A batch is passed to the threads under one lock. A completion
//! wakes the reactor through an eventfd only if the reactor has announced that it
//! will sleep.

use std::collections::VecDeque;
use std::fmt;
use std::hint;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};

use crossbeam_utils::CachePadded;
use parking_lot::{Condvar, Mutex};
use rustix::event::{EventfdFlags, eventfd};
use uringfs_errno::Errno;
use uringfs_sync::Doorbell;

use crate::inner::DeviceInner;
use crate::interface::queue::{Queue, Ready};
use crate::request::{Request, StepCompletion, Tag};

/// The rounds in which an idle thread polls for work before it sleeps: a few
/// microseconds, less than the cost of a sleep and a wake.
const SPINS: u32 = 100;

/// A queue with a bounded number of worker threads.
pub struct ThreadsQueue {
    shared: Arc<SharedState>,
    depth: usize,
    max_threads: usize,
    threads: Vec<JoinHandle<()>>,
    pushed: Vec<Request>,
    /// Completed, and collected from the threads.
    ended: VecDeque<StepCompletion>,
    in_flight: usize,
}

impl fmt::Debug for ThreadsQueue {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_struct("ThreadsQueue").field("in_flight", &self.in_flight).finish_non_exhaustive()
    }
}

struct SharedState {
    core: Arc<DeviceInner>,
    work: Mutex<WorkQueue>,
    /// Notified when there is work.
    wake: Condvar,
    /// The number of requests in `work`, readable without the lock.
    waiting: CachePadded<AtomicUsize>,
    done: Mutex<VecDeque<StepCompletion>>,
    /// The number of completions in `done`, readable without the lock.
    finished: CachePadded<AtomicUsize>,
    bell: Doorbell,
    notifier: OwnedFd,
    system_calls: AtomicU64,
}

#[derive(Default)]
struct WorkQueue {
    requests: VecDeque<Request>,
    sleeping: usize,
    stop: bool,
}

impl ThreadsQueue {
    /// A queue to one device, with at most `depth` requests in flight, of which at
    /// most `threads` execute at once.
    ///
    /// # Errors
    /// The error of starting the first thread or of creating the eventfd.
    pub fn new(core: Arc<DeviceInner>, depth: usize, threads: usize) -> io::Result<ThreadsQueue> {
        let shared = Arc::new(SharedState {
            core,
            work: Mutex::new(WorkQueue {
                requests: VecDeque::with_capacity(depth),
                ..WorkQueue::default()
            }),
            wake: Condvar::new(),
            waiting: CachePadded::default(),
            done: Mutex::new(VecDeque::with_capacity(depth)),
            finished: CachePadded::default(),
            bell: Doorbell::default(),
            notifier: eventfd(0, EventfdFlags::CLOEXEC)?,
            system_calls: AtomicU64::new(0),
        });
        let mut queue = ThreadsQueue {
            shared,
            depth,
            max_threads: threads.clamp(1, depth.max(1)),
            threads: Vec::new(),
            pushed: Vec::with_capacity(depth),
            ended: VecDeque::with_capacity(depth),
            in_flight: 0,
        };
        // One thread is enough to serve. Later threads only make it faster, and may fail to start.
        queue.start_thread()?;
        Ok(queue)
    }

    fn start_thread(&mut self) -> io::Result<()> {
        let shared = self.shared.clone();
        let name = format!("uringfs-io-{}", self.threads.len());
        self.threads.push(thread::Builder::new().name(name).spawn(move || shared.run_worker())?);
        Ok(())
    }

    /// Collects everything that the threads have completed.
    fn collect(&mut self) {
        if self.shared.finished.load(Ordering::Acquire) == 0 {
            return;
        }
        let mut done = self.shared.done.lock();
        std::mem::swap(&mut *done, &mut self.ended);
        self.shared.finished.store(0, Ordering::Relaxed);
    }
}

impl SharedState {
    /// The body of a worker thread.
    fn run_worker(&self) {
        while let Some(mut request) = self.next() {
            let result = match request.is_cancelled() {
                true => Err(Errno::CANCELED),
                false => {
                    self.count_calls(self.core.calls_to_perform());
                    self.core.perform(&mut request)
                }
            };
            let mut done = self.done.lock();
            done.push_back(StepCompletion { request, result });
            self.finished.store(done.len(), Ordering::Release);
            drop(done);
            self.notify();
        }
    }

    /// Waits for the next request. `None` when the queue is dropped.
    fn next(&self) -> Option<Request> {
        for _ in 0..SPINS {
            if self.waiting.load(Ordering::Relaxed) > 0 {
                break;
            }
            hint::spin_loop();
        }
        let mut work = self.work.lock();
        loop {
            if work.stop {
                return None;
            }
            if let Some(request) = work.requests.pop_front() {
                self.waiting.store(work.requests.len(), Ordering::Relaxed);
                return Some(request);
            }
            work.sleeping += 1;
            self.count_calls(1);
            self.wake.wait(&mut work);
            work.sleeping -= 1;
        }
    }

    fn count_calls(&self, calls: u64) {
        self.system_calls.fetch_add(calls, Ordering::Relaxed);
    }

    /// Wakes the reactor if it sleeps.
    fn notify(&self) {
        if self.bell.ring() {
            // The counter cannot overflow: the reactor reads each signal before the next.
            self.count_calls(1);
            let _ = rustix::io::write(&self.notifier, &1u64.to_ne_bytes());
        }
    }

    /// Reads the signal, so that the notifier is no longer readable. Waits at most for the thread that is about to
    /// signal it.
    fn drain_notifier(&self) {
        self.bell.take(|| {
            let mut count = [0; 8];
            self.count_calls(1);
            while rustix::io::read(&self.notifier, &mut count) == Err(rustix::io::Errno::INTR) {}
        });
    }
}

impl Queue for ThreadsQueue {
    fn push(&mut self, request: Request) -> Result<(), Request> {
        if self.in_flight == self.depth {
            return Err(request);
        }
        self.in_flight += 1;
        self.pushed.push(request);
        Ok(())
    }

    fn submit(&mut self) -> Result<(), Errno> {
        if self.pushed.is_empty() {
            return Ok(());
        }
        let (waiting, sleeping) = {
            let mut work = self.shared.work.lock();
            work.requests.extend(self.pushed.drain(..));
            self.shared.waiting.store(work.requests.len(), Ordering::Relaxed);
            (work.requests.len(), work.sleeping)
        };
        for _ in 0..waiting.min(sleeping) {
            self.shared.count_calls(self.shared.wake.notify_one().into());
        }
        for _ in sleeping..waiting {
            // If a thread fails to start, the others serve.
            if self.threads.len() == self.max_threads || self.start_thread().is_err() {
                break;
            }
        }
        Ok(())
    }

    fn reap(&mut self) -> Option<StepCompletion> {
        if self.ended.is_empty() {
            self.shared.drain_notifier();
            self.collect();
        }
        let completion = self.ended.pop_front()?;
        self.in_flight -= 1;
        Some(completion)
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Cancels the requests that no thread has begun.
    fn cancel(&mut self, tag: Tag) {
        let cancel = |request: &mut Request| _ = request.cancel_if_tagged(tag);
        self.pushed.iter_mut().for_each(cancel);
        self.shared.work.lock().requests.iter_mut().for_each(cancel);
    }

    fn ready(&self) -> Ready<'_> {
        if !self.ended.is_empty() {
            return Ready::Now;
        }
        self.shared.drain_notifier();
        if self.in_flight == self.pushed.len() {
            return Ready::Never;
        }
        self.shared.bell.arm();
        if self.shared.finished.load(Ordering::Relaxed) > 0 {
            return Ready::Now;
        }
        Ready::Readable(self.shared.notifier.as_fd())
    }

    fn notifier(&self) -> Option<BorrowedFd<'_>> {
        Some(self.shared.notifier.as_fd())
    }

    fn system_calls(&self) -> u64 {
        self.shared.system_calls.load(Ordering::Relaxed)
    }
}

impl Drop for ThreadsQueue {
    /// Waits for the requests that threads have begun. Drops the others.
    fn drop(&mut self) {
        self.shared.work.lock().stop = true;
        self.shared.wake.notify_all();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}
