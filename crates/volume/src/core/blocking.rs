//! How a caller waits: a thread in place, a task with its waker.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

/// Who waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    /// A thread that may.
    Thread,
    /// A task of a thread that has others.
    Task,
}

impl Who {
    /// Waits for something that others bring to its end.
    pub(crate) async fn wait<T>(self, future: impl Future<Output = T>) -> T {
        match self {
            Who::Task => future.await,
            Who::Thread => {
                let parked = Arc::new(Parked(thread::current()));
                let waker = Waker::from(parked);
                let mut future = pin!(future);
                loop {
                    if let Poll::Ready(ended) =
                        future.as_mut().poll(&mut Context::from_waker(&waker))
                    {
                        return ended;
                    }
                    thread::park();
                }
            }
        }
    }
}

/// A thread that sleeps until it is woken.
struct Parked(Thread);

impl Wake for Parked {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// The outcome of something that waits in place.
pub(crate) fn now<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(outcome) => outcome,
        Poll::Pending => unreachable!("a thread waits in place"),
    }
}
