//! Two ways to wait: a thread blocks, a task yields.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

/// The way in which a call may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitMode {
    /// The calling thread blocks.
    Blocking,
    /// The task yields its thread to other tasks.
    Async,
}

impl WaitMode {
    /// Waits for a future that other threads complete.
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

/// Unparks a blocked thread.
struct ThreadWaker(Thread);

impl Wake for ThreadWaker {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a future of [`WaitMode::Blocking`]: its waits block inside the poll, so one poll completes it.
pub(crate) fn run_blocking<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(outcome) => outcome,
        Poll::Pending => unreachable!("a blocking future was pending"),
    }
}
