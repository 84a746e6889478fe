//! [`RequestCount`]: how many requests of a thread are under way.

use std::cell::Cell;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// The number of a thread's requests in flight.
#[derive(Default)]
pub(crate) struct RequestCount {
    count: Cell<usize>,
    /// Of the task that waits for 0.
    waker: Cell<Option<Waker>>,
}

impl RequestCount {
    pub(crate) fn is_none(&self) -> bool {
        self.count.get() == 0
    }

    pub(crate) fn is_one(&self) -> bool {
        self.count.get() == 1
    }

    /// Ready when no request is in flight. One task can wait.
    pub(crate) fn poll_none(&self, context: &mut Context<'_>) -> Poll<()> {
        match self.is_none() {
            true => Poll::Ready(()),
            false => {
                self.waker.set(Some(context.waker().clone()));
                Poll::Pending
            }
        }
    }

    /// Waits until no request is in flight.
    pub(crate) async fn wait_for_none(&self) {
        poll_fn(|context| self.poll_none(context)).await;
    }
}

/// Counts a request in flight.
pub(crate) struct InFlight(Rc<RequestCount>);

impl InFlight {
    pub(crate) fn new(requests: &Rc<RequestCount>) -> InFlight {
        requests.count.set(requests.count.get() + 1);
        InFlight(requests.clone())
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.count.set(self.0.count.get() - 1);
        if self.0.count.get() == 0
            && let Some(waker) = self.0.waker.take()
        {
            waker.wake();
        }
    }
}
