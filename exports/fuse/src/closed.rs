//! [`Closed`]: the end of a mount's volume, which the reply to DESTROY waits for.

use std::future::poll_fn;
use std::task::{Poll, Waker};

use parking_lot::Mutex;

/// Whether the volume is closed.
#[derive(Default)]
pub(crate) struct Closed(Mutex<ClosedState>);

#[derive(Default)]
struct ClosedState {
    is_closed: bool,
    wakers: Vec<Waker>,
}

impl Closed {
    /// Waits until the volume is closed, or could not be.
    pub(crate) async fn wait(&self) {
        poll_fn(|context| {
            let mut state = self.0.lock();
            if state.is_closed {
                return Poll::Ready(());
            }
            state.wakers.push(context.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

/// Ends the wait when it is dropped.
pub(crate) struct ClosedGuard<'a>(pub(crate) &'a Closed);

impl Drop for ClosedGuard<'_> {
    fn drop(&mut self) {
        let mut state = self.0.0.lock();
        state.is_closed = true;
        state.wakers.drain(..).for_each(Waker::wake);
    }
}
