//! What the caller of an asynchronous operation holds: a `Send` cell that gets
//! the answer. Dropping it gives up the answer, not the operation.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;
use rustix::io::Errno;
use uringfs_device::{Payload, Request};

use crate::completed::Fate;

/// The end of an asynchronous operation.
#[derive(Debug)]
pub struct Outcome {
    /// Bytes moved, or the error.
    pub result: Result<u64, Errno>,
    /// What became of it.
    pub fate: Fate,
    /// The memory, back in the caller's hands.
    pub payload: Payload,
}

impl Outcome {
    /// Of what was not started.
    pub fn refused(error: Errno, payload: Payload) -> Outcome {
        Outcome { result: Err(error), fate: Fate::NotStarted, payload }
    }

    /// Of a request that has ended.
    pub(crate) fn of(request: Request) -> Outcome {
        let result = request.result();
        let fate = Fate::of(result, request.is_issued());
        Outcome { result, fate, payload: request.payload }
    }
}

#[derive(Debug, Default)]
struct State {
    outcome: Option<Outcome>,
    waker: Option<Waker>,
}

/// Where an operation leaves its outcome.
#[derive(Clone, Debug, Default)]
pub struct OutcomeCell {
    state: Arc<Mutex<State>>,
}

impl OutcomeCell {
    /// Leaves the outcome and wakes whoever waits.
    pub(crate) fn set(&self, outcome: Outcome) {
        let waker = {
            let mut state = self.state.lock();
            state.outcome = Some(outcome);
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Leaves word that nothing was started.
    pub fn refuse(&self, error: Errno, payload: Payload) {
        self.set(Outcome::refused(error, payload));
    }

    /// Takes the outcome, or leaves word whom to wake.
    pub fn poll(&self, context: &mut Context<'_>) -> Poll<Outcome> {
        let mut state = self.state.lock();
        match state.outcome.take() {
            Some(outcome) => Poll::Ready(outcome),
            None => {
                match &mut state.waker {
                    Some(waker) => waker.clone_from(context.waker()),
                    None => state.waker = Some(context.waker().clone()),
                }
                Poll::Pending
            }
        }
    }

    /// True when both are the same cell.
    pub(crate) fn is(&self, other: &OutcomeCell) -> bool {
        Arc::ptr_eq(&self.state, &other.state)
    }
}
