//! The result of an awaited operation, and the oneshot that carries it. Both ends are `Send`. Dropping the receiver gives
//! up the result, not the operation.

use std::task::{Context, Poll};

use uringfs_device::{Errno, Payload, Request};
use uringfs_sync::Oneshot;

use crate::tasks::completion::Effect;

/// The result of an awaited operation.
#[derive(Debug)]
pub struct OpResult {
    /// The bytes moved (of an append: its offset), or the error.
    pub result: Result<u64, Errno>,
    /// The effect of the operation on the device.
    pub effect: Effect,
    /// The operation's memory, which the caller owns again. `Payload::Length(0)` when the reactor was dropped before
    /// the operation ended, or the operation panicked.
    pub payload: Payload,
}

impl OpResult {
    /// The result of an operation that could not start.
    pub fn not_started(error: Errno, payload: Payload) -> OpResult {
        OpResult { result: Err(error), effect: Effect::NotStarted, payload }
    }

    /// The result of an operation that ended with its reactor. The kernel may still have its memory.
    fn lost() -> OpResult {
        OpResult { result: Err(Errno::IO), effect: Effect::Unknown, payload: Payload::Length(0) }
    }

    /// From a request that has ended.
    pub(crate) fn from_request(request: Request) -> OpResult {
        let result = request.result();
        let effect = Effect::from_result(result, request.is_issued());
        OpResult { result, effect, payload: request.payload }
    }
}

/// The end that receives the result.
#[derive(Clone, Debug, Default)]
pub struct ResultReceiver(Oneshot<OpResult>);

/// The end that sends the result. When it is dropped unused, as with a reactor that is dropped, it sends EIO.
#[derive(Debug)]
pub struct ResultSender {
    receiver: Option<ResultReceiver>,
}

impl ResultSender {
    /// Sends the result and wakes the receiver.
    pub(crate) fn set(mut self, result: OpResult) {
        if let Some(receiver) = self.receiver.take() {
            receiver.set(result);
        }
    }

    /// Sends the result of an operation that could not start.
    pub fn refuse(self, error: Errno, payload: Payload) {
        self.set(OpResult::not_started(error, payload));
    }

    /// True when the result goes to `receiver`.
    pub(crate) fn is_for(&self, receiver: &ResultReceiver) -> bool {
        self.receiver.as_ref().is_some_and(|own| own.0.ptr_eq(&receiver.0))
    }
}

impl Drop for ResultSender {
    #[inline]
    fn drop(&mut self) {
        if let Some(receiver) = self.receiver.take() {
            receiver.set(OpResult::lost());
        }
    }
}

impl ResultReceiver {
    /// The sender of this receiver. Call it once: there must be no second sender.
    pub fn sender(&self) -> ResultSender {
        ResultSender { receiver: Some(self.clone()) }
    }

    fn set(&self, result: OpResult) {
        self.0.set(result);
    }

    /// Returns the result, or registers the task to be woken.
    pub fn poll(&self, context: &mut Context<'_>) -> Poll<OpResult> {
        self.0.poll(context)
    }
}
