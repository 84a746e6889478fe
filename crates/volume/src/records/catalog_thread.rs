//! [`CatalogThread`]: a thread that reads the catalog, and so waits for the device, for callers that must
//! not block. Each caller waits for one reply. The job of a caller that was dropped stays queued.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex};
use uringfs_device::Errno;
use uringfs_reactor::ForkDetector;
use uringfs_sync::Oneshot;

use crate::error::Error;

type Job = Box<dyn FnOnce() + Send>;

/// A thread with a queue. The first job starts it.
#[derive(Default)]
pub(crate) struct CatalogThread {
    queue: Arc<Queue>,
    fork: ForkDetector,
}

#[derive(Default)]
struct Queue {
    state: Mutex<QueueState>,
    changed: Condvar,
}

#[derive(Default)]
struct QueueState {
    jobs: VecDeque<Job>,
    thread: Option<JoinHandle<()>>,
    is_closed: bool,
}

impl CatalogThread {
    /// Runs a job on the thread. The reply resolves to its result, or to EIO if the job panics.
    ///
    /// # Errors
    /// EAGAIN when the thread cannot be started; ECHILD in the child of a fork.
    pub(crate) fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> Result<T, Error> + Send + 'static,
    ) -> Result<Reply<T>, Error> {
        if self.fork.is_forked() {
            return Err(Error::refused(
                Errno::CHILD,
                "reading the catalog of the parent's volume after a fork",
            ));
        }
        let cell = Oneshot::default();
        let mut guard = ReplyGuard { cell: cell.clone(), outcome: None };
        let job = move || {
            guard.outcome = Some(job());
            drop(guard);
        };
        let mut state = self.queue.state.lock();
        if state.thread.is_none() && !state.is_closed {
            let queue = self.queue.clone();
            let builder = std::thread::Builder::new().name("uringfs-catalog".into());
            let thread = builder.spawn(move || queue.run_jobs()).map_err(|error| {
                Error::io("starting the thread that reads the catalog", Errno::AGAIN)
                    .with_cause(error)
            })?;
            state.thread = Some(thread);
        }
        state.jobs.push_back(Box::new(job));
        self.queue.changed.notify_one();
        Ok(Reply { cell })
    }

    /// Drops queued jobs and waits for the running one. Nothing reads the device afterwards. In the
    /// child of a fork the thread belongs to the parent.
    pub(crate) fn stop(&self) {
        if self.fork.is_forked() {
            return std::mem::forget(self.queue.clone());
        }
        let (thread, jobs) = {
            let mut state = self.queue.state.lock();
            state.is_closed = true;
            (state.thread.take(), std::mem::take(&mut state.jobs))
        };
        self.queue.changed.notify_one();
        drop(jobs);
        // The thread's own job may have dropped the last reference to this.
        if let Some(thread) = thread.filter(|it| it.thread().id() != std::thread::current().id()) {
            // The thread catches panics.
            let _ = thread.join();
        }
    }
}

impl Drop for CatalogThread {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Queue {
    fn run_jobs(&self) {
        loop {
            let job = {
                let mut state = self.state.lock();
                loop {
                    match state.jobs.pop_front() {
                        Some(job) => break job,
                        None if state.is_closed => return,
                        None => self.changed.wait(&mut state),
                    }
                }
            };
            // The reply reports the panic. The thread goes on, since other callers wait.
            let _ = catch_unwind(AssertUnwindSafe(job));
        }
    }
}

/// A future of a job's result.
pub(crate) struct Reply<T> {
    cell: Oneshot<Result<T, Error>>,
}

impl<T> Future for Reply<T> {
    type Output = Result<T, Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.cell.poll(context)
    }
}

/// Sends the reply. Dropped without an outcome, as by a panic, it sends EIO.
struct ReplyGuard<T> {
    cell: Oneshot<Result<T, Error>>,
    outcome: Option<Result<T, Error>>,
}

impl<T> Drop for ReplyGuard<T> {
    fn drop(&mut self) {
        let lost = || Err(Error::io("reading the catalog", Errno::IO));
        self.cell.set(self.outcome.take().unwrap_or_else(lost));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Sender, channel};
    use std::task::Wake;

    #[test]
    fn a_job_may_drop_its_own_thread() {
        let reader = Arc::new(CatalogThread::default());
        let (sender, receiver) = channel();
        let its = reader.clone();
        drop(reader.run(move || {
            let sent = sender.send(std::thread::current().name().map(str::to_owned));
            drop((its, sent));
            Ok(())
        }));
        drop(reader);
        assert_eq!(receiver.recv().unwrap().as_deref(), Some("uringfs-catalog"));
        assert!(receiver.recv().is_err());
    }

    struct ChannelWaker(Sender<()>);

    impl Wake for ChannelWaker {
        fn wake(self: Arc<Self>) {
            self.0.send(()).unwrap();
        }
    }

    /// Blocks until a reply arrives.
    fn outcome<T>(mut reply: Reply<T>) -> Result<T, Error> {
        let (sender, receiver) = channel();
        let waker = Arc::new(ChannelWaker(sender)).into();
        loop {
            match Pin::new(&mut reply).poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(outcome) => return outcome,
                Poll::Pending => receiver.recv().unwrap(),
            }
        }
    }

    #[test]
    fn a_panicking_job_fails_alone() {
        let reader = CatalogThread::default();
        let panics = reader.run(|| -> Result<(), Error> { panic!("as a test does") }).unwrap();
        let next = reader.run(|| Ok(7)).unwrap();
        assert_eq!(outcome(panics).unwrap_err().errno(), Errno::IO);
        assert_eq!(outcome(next).unwrap(), 7);
    }

    #[test]
    fn stop_waits_for_the_running_job_and_drops_the_rest() {
        let reader = CatalogThread::default();
        let ((begun, has_begun), (go, going)) = (channel(), channel::<()>());
        let held = Arc::new(());
        let (one, other) = (held.clone(), held.clone());
        let first = reader.run(move || {
            begun.send(()).unwrap();
            let _ = going.recv();
            drop(one);
            Ok(())
        });
        let second = reader.run(move || {
            drop(other);
            Ok(())
        });
        has_begun.recv().unwrap();
        std::thread::scope(|scope| {
            let stopping = scope.spawn(|| reader.stop());
            // The second job is dropped before the first has ended.
            assert_eq!(outcome(second.unwrap()).unwrap_err().errno(), Errno::IO);
            go.send(()).unwrap();
            stopping.join().unwrap();
        });
        assert_eq!(Arc::strong_count(&held), 1);
        assert!(outcome(first.unwrap()).is_ok());
    }
}
