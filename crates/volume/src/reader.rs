//! [`Reader`]: a thread that asks the catalog, and so waits for the device, in place of those who must
//! not. Each waits for one answer, so that no more is queued than tasks there are.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;

use crate::error::Error;

type Job = Box<dyn FnOnce() + Send>;

/// A thread with a queue. It begins with the first job, and ends when this is dropped and no job is
/// left.
#[derive(Default)]
pub(crate) struct Reader {
    queue: Arc<Queue>,
}

#[derive(Default)]
struct Queue {
    state: Mutex<QueueState>,
    changed: Condvar,
}

#[derive(Default)]
struct QueueState {
    jobs: VecDeque<Job>,
    has_thread: bool,
    is_closed: bool,
}

impl Reader {
    /// Has the thread do something; the future answers what came of it.
    ///
    /// # Errors
    /// EAGAIN when there can be no thread.
    pub(crate) fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Result<Reply<T>, Error> {
        let slot = Arc::new(Mutex::new(Slot { outcome: None, waker: None }));
        let its = slot.clone();
        let job = move || {
            let outcome = job();
            let waker = {
                let mut slot = its.lock();
                slot.outcome = Some(outcome);
                slot.waker.take()
            };
            waker.into_iter().for_each(Waker::wake);
        };
        let mut state = self.queue.state.lock();
        if !state.has_thread {
            let queue = self.queue.clone();
            let builder = std::thread::Builder::new().name("uringfs-catalog".into());
            builder.spawn(move || queue.serve()).map_err(|error| {
                Error::io("starting the thread that reads the catalog", Errno::AGAIN).because(error)
            })?;
            state.has_thread = true;
        }
        state.jobs.push_back(Box::new(job));
        self.queue.changed.notify_one();
        Ok(Reply { slot })
    }
}

impl Drop for Reader {
    /// Does not wait for the thread: the last job may be what drops this.
    fn drop(&mut self) {
        self.queue.state.lock().is_closed = true;
        self.queue.changed.notify_one();
    }
}

impl Queue {
    fn serve(&self) {
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
            job();
        }
    }
}

/// What a job is going to answer.
pub(crate) struct Reply<T> {
    slot: Arc<Mutex<Slot<T>>>,
}

struct Slot<T> {
    outcome: Option<T>,
    waker: Option<Waker>,
}

impl<T> Future for Reply<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let mut slot = self.slot.lock();
        match slot.outcome.take() {
            Some(outcome) => Poll::Ready(outcome),
            None => {
                slot.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn what_was_asked_is_answered_though_the_reader_is_dropped_by_its_own_job() {
        let reader = Arc::new(Reader::default());
        let (told, heard) = channel();
        let its = reader.clone();
        drop(
            reader.run(move || {
                drop((its, told.send(std::thread::current().name().map(str::to_owned))))
            }),
        );
        drop(reader);
        assert_eq!(heard.recv().unwrap().as_deref(), Some("uringfs-catalog"));
        assert!(heard.recv().is_err());
    }
}
