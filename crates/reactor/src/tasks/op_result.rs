//! What the caller of an asynchronous operation holds: a `Send` cell that gets
//! the answer. Dropping it gives up the answer, not the operation.

use std::task::{Context, Poll};

use rustix::io::Errno;
use uringfs_device::{Payload, Request};
use uringfs_sync::Oneshot;

use crate::tasks::completion::Fate;

/// The end of an asynchronous operation.
#[derive(Debug)]
pub struct Outcome {
    /// Bytes moved, or the error.
    pub result: Result<u64, Errno>,
    /// What became of it.
    pub fate: Fate,
    /// The memory, back in the caller's hands: none (`Length(0)`) where the reactor came to an end before the
    /// operation, or the operation by a panic.
    pub payload: Payload,
}

impl Outcome {
    /// Of what was not started.
    pub fn refused(error: Errno, payload: Payload) -> Outcome {
        Outcome { result: Err(error), fate: Fate::NotStarted, payload }
    }

    /// Of what has ended with its reactor, which may have left the memory in the kernel's hands.
    fn lost() -> Outcome {
        Outcome { result: Err(Errno::IO), fate: Fate::Unknown, payload: Payload::Length(0) }
    }

    /// Of a request that has ended.
    pub(crate) fn from_request(request: Request) -> Outcome {
        let result = request.result();
        let fate = Fate::from_result(result, request.is_issued());
        Outcome { result, fate, payload: request.payload }
    }
}

/// Where an operation leaves its outcome.
#[derive(Clone, Debug, Default)]
pub struct OutcomeCell(Oneshot<Outcome>);

/// The end that answers. Dropped before it has, as with a reactor that comes to an end, it answers EIO.
#[derive(Debug)]
pub struct OutcomeSender {
    receiver: Option<OutcomeCell>,
}

impl OutcomeSender {
    /// Leaves the outcome and wakes whoever waits.
    pub(crate) fn set(mut self, result: Outcome) {
        if let Some(receiver) = self.receiver.take() {
            receiver.set(result);
        }
    }

    /// Leaves word that nothing was started.
    pub fn refuse(self, error: Errno, payload: Payload) {
        self.set(Outcome::refused(error, payload));
    }

    /// True when this is what answers `cell`.
    pub(crate) fn is_for(&self, receiver: &OutcomeCell) -> bool {
        self.receiver.as_ref().is_some_and(|own| own.0.is(&receiver.0))
    }
}

impl Drop for OutcomeSender {
    #[inline]
    fn drop(&mut self) {
        if let Some(receiver) = self.receiver.take() {
            receiver.set(Outcome::lost());
        }
    }
}

impl OutcomeCell {
    /// The end that answers: one, of which there is to be no other.
    pub fn sender(&self) -> OutcomeSender {
        OutcomeSender { receiver: Some(self.clone()) }
    }

    fn set(&self, result: Outcome) {
        self.0.set(result);
    }

    /// Takes the outcome, or registers the task to be woken.
    pub fn poll(&self, context: &mut Context<'_>) -> Poll<Outcome> {
        self.0.poll(context)
    }
}
