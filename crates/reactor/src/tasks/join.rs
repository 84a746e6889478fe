//! The handle to a spawned task: the output of its future, or why there is none.

use std::fmt;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use uringfs_sync::Oneshot;

/// A handle to a task of [`LocalReactor::spawn`](crate::LocalReactor::spawn). Awaiting it returns the output of the task's future.
///
/// Dropping it detaches the task, which continues. Any thread may await it, if the output is `Send`.
///
/// # Panics
/// If it is polled after it has returned the output.
///
/// ```
/// # use uringfs_reactor as uringfs;
/// use uringfs::{Reactor, ReactorOptions};
///
/// let reactor = Reactor::new(ReactorOptions::default())?;
/// let sum = reactor.spawn(async { 2 + 3 });
/// assert_eq!(reactor.block_on(sum), Ok(5));
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct JoinHandle<T>(
    /// `None` once it has returned the output.
    Option<Oneshot<Result<T, JoinError>>>,
);

/// Why a task has no output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum JoinError {
    /// The task's future panicked. The panic itself went to the caller that turned the reactor.
    Panicked,
    /// The reactor was dropped before the future ended.
    ReactorDropped,
}

impl fmt::Display for JoinError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            JoinError::Panicked => "the task panicked",
            JoinError::ReactorDropped => "the reactor was dropped before the task ended",
        })
    }
}

impl std::error::Error for JoinError {}

impl<T> fmt::Debug for JoinHandle<T> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("JoinHandle")
    }
}

impl<T> Future for JoinHandle<T> {
    type Output = Result<T, JoinError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let output = self.0.as_ref().expect("it was polled after its end");
        let output = ready!(output.poll(context));
        self.0 = None;
        Poll::Ready(output)
    }
}

/// Sends the output of a task to its handle. Dropped unused, it sends the reason.
struct OutputSender<T> {
    receiver: Option<Oneshot<Result<T, JoinError>>>,
    is_polled: bool,
}

impl<T> Drop for OutputSender<T> {
    fn drop(&mut self) {
        if let Some(receiver) = self.receiver.take() {
            // A future that is dropped inside its own poll has panicked.
            receiver.set(Err(match self.is_polled {
                true => JoinError::Panicked,
                false => JoinError::ReactorDropped,
            }));
        }
    }
}

/// The handle of a task that runs `future`, and what the task polls.
pub(crate) fn joinable<T>(
    future: impl Future<Output = T>,
) -> (JoinHandle<T>, impl Future<Output = ()>) {
    let output = Oneshot::default();
    let mut sender = OutputSender { receiver: Some(output.clone()), is_polled: false };
    let task = async move {
        let mut future = pin!(future);
        let output = poll_fn(|context| {
            sender.is_polled = true;
            let polled = future.as_mut().poll(context);
            sender.is_polled = false;
            polled
        })
        .await;
        if let Some(receiver) = sender.receiver.take() {
            receiver.set(Ok(output));
        }
    };
    (JoinHandle(Some(output)), task)
}
