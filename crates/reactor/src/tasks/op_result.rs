//! The result of an awaited operation, and the oneshot that carries it. Both ends are `Send`. Dropping the receiver gives
//! up the result, not the operation.

use std::task::{Context, Poll};

use rustix::io::Errno;
use uringfs_device::{Payload, Request};
use uringfs_sync::Oneshot;

use crate::tasks::completion::Fate;

/// The result of an awaited operation.
#[derive(Debug)]
pub struct Outcome {
    /// The bytes moved, or the error.
    pub result: Result<u64, Errno>,
    /// The effect of the operation on the device.
    pub fate: Fate,
    /// The operation's memory, which the caller owns again. None (`Length(0)`) when the reactor was dropped before the
    /// operation ended, or the operation panicked.
    pub payload: Payload,
}

impl Outcome {
    /// The result of an operation that could not start.
    pub fn refused(error: Errno, payload: Payload) -> Outcome {
        Outcome { result: Err(error), fate: Fate::NotStarted, payload }
    }

    /// The result of an operation that ended with its reactor. The kernel may still have its memory.
    fn lost() -> Outcome {
        Outcome { result: Err(Errno::IO), fate: Fate::Unknown, payload: Payload::Length(0) }
    }

    /// From a request that has ended.
    pub(crate) fn from_request(request: Request) -> Outcome {
        let result = request.result();
        let fate = Fate::from_result(result, request.is_issued());
        Outcome { result, fate, payload: request.payload }
    }
}

/// The end that receives the result.
#[derive(Clone, Debug, Default)]
pub struct OutcomeCell(Oneshot<Outcome>);

/// The end that sends the result. When it is dropped unused, as with a reactor that is dropped, it sends EIO.
#[derive(Debug)]
pub struct OutcomeSender {
    receiver: Option<OutcomeCell>,
}

impl OutcomeSender {
    /// Sends the result and wakes the receiver.
    pub(crate) fn set(mut self, result: Outcome) {
        if let Some(receiver) = self.receiver.take() {
            receiver.set(result);
        }
    }

    /// Sends the result of an operation that could not start.
    pub fn refuse(self, error: Errno, payload: Payload) {
        self.set(Outcome::refused(error, payload));
    }

    /// True when the result goes to `receiver`.
    pub(crate) fn is_for(&self, receiver: &OutcomeCell) -> bool {
        self.receiver.as_ref().is_some_and(|own| own.0.ptr_eq(&receiver.0))
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
    /// The sender of this receiver. Call it once: there must be no second sender.
    pub fn sender(&self) -> OutcomeSender {
        OutcomeSender { receiver: Some(self.clone()) }
    }

    fn set(&self, result: Outcome) {
        self.0.set(result);
    }

    /// Returns the result, or registers the task to be woken.
    pub fn poll(&self, context: &mut Context<'_>) -> Poll<Outcome> {
        self.0.poll(context)
    }
}
