//! One waiter for a locked folio: its waker, and later the outcome. The outcome carries a raw snapshot without a
//! reference to the cache; the waiting future adds that.

use std::task::{Context, Poll, Waker};

use uringfs_buffer::Snapshot;
use uringfs_errno::Errno;
use uringfs_sync::Mutex;

/// How the wait for a folio ended.
pub(crate) enum WaitOutcome {
    /// The folio has its bytes: a share of it. The receiver releases it through the cache.
    Ready(Snapshot),
    /// Filling it failed.
    Failed(Errno),
    /// It has changed or is gone.
    LookAgain,
}

/// The state that a waiting future shares with the fill.
pub(crate) struct Waiter {
    state: Mutex<WaiterState>,
}

enum WaiterState {
    Waiting(Waker),
    Ended(WaitOutcome),
    /// The outcome was taken, or the future was dropped.
    Closed,
}

impl Waiter {
    pub(crate) fn new(waker: Waker) -> Waiter {
        Waiter { state: Mutex::new(WaiterState::Waiting(waker)) }
    }

    /// Delivers the outcome and wakes the future, with no lock held.
    ///
    /// # Errors
    /// The outcome, when the future was dropped.
    pub(crate) fn notify(&self, outcome: WaitOutcome) -> Result<(), WaitOutcome> {
        let waker = {
            let state = &mut *self.state.lock();
            match std::mem::replace(state, WaiterState::Closed) {
                WaiterState::Waiting(waker) => {
                    *state = WaiterState::Ended(outcome);
                    waker
                }
                WaiterState::Closed => return Err(outcome),
                WaiterState::Ended(_) => unreachable!("a waiter is notified once"),
            }
        };
        waker.wake();
        Ok(())
    }

    /// The outcome, once there is one. Until then it stores the caller's waker.
    pub(crate) fn poll(&self, context: &Context<'_>) -> Poll<WaitOutcome> {
        let state = &mut *self.state.lock();
        match state {
            WaiterState::Waiting(waker) => waker.clone_from(context.waker()),
            WaiterState::Closed => {}
            WaiterState::Ended(_) => {
                if let WaiterState::Ended(outcome) = std::mem::replace(state, WaiterState::Closed) {
                    return Poll::Ready(outcome);
                }
            }
        }
        Poll::Pending
    }

    /// Ends the wait on behalf of the future; returns the outcome if it was not taken.
    pub(crate) fn close(&self) -> Option<WaitOutcome> {
        let before = std::mem::replace(&mut *self.state.lock(), WaiterState::Closed);
        match before {
            WaiterState::Ended(outcome) => Some(outcome),
            WaiterState::Waiting(_) | WaiterState::Closed => None,
        }
    }
}
