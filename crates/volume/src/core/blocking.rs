//! How a caller waits: a thread in place, a task with its waker.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

/// Who waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitMode {
    /// A thread that may.
    Blocking,
    /// A task of a thread that has others.
    Async,
}

impl WaitMode {
    /// Waits for something that others bring to its end.
    pub(crate) async fn wait<T>(self, future: impl Future<Output = T>) -> T {
        match self {
            WaitMode::Async => future.await,
            WaitMode::Blocking => {
                let parked = Arc::new(ThreadWaker(thread::current()));
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
struct ThreadWaker(Thread);

impl Wake for ThreadWaker {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// The outcome of something that waits in place.
pub(crate) fn run_blocking<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(outcome) => outcome,
        Poll::Pending => unreachable!("a thread waits in place"),
    }
}
