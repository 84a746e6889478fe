//! Two ways to wait: a thread blocks, a task yields.

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use uringfs_file::{FileOp, OpOutput};
use uringfs_sync::park_on;

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
            WaitMode::Blocking => park_on(future),
        }
    }

    /// Runs an operation of a file. A thread that blocks leaves it to a background reactor.
    pub(crate) async fn run<R: OpOutput>(self, operation: FileOp<R>) -> R {
        match self {
            WaitMode::Async => operation.await,
            WaitMode::Blocking => operation.wait(),
        }
    }
}

/// Runs a future of [`WaitMode::Blocking`]: its waits block inside the poll, so one poll completes it.
pub(crate) fn run_blocking<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(outcome) => outcome,
        Poll::Pending => unreachable!("a blocking future was pending"),
    }
}
