//! The state of an operation that has not ended.

use uringfs_device::Errno;

use crate::tasks::completion::Token;
use crate::tasks::op_result::ResultSender;
use crate::tasks::timer::TimerKey;

/// The caller that gets an operation's result.
#[derive(Debug)]
pub enum Requester {
    /// A caller that reaps completions by token.
    Token(Token),
    /// A caller that awaits the result.
    Future(ResultSender),
    /// None. Another operation started it and does not wait for it; its effects are in shared state.
    Detached,
}

/// The state of an operation that has not ended.
pub(crate) struct OperationState {
    pub(crate) requester: Requester,
    /// The reason why it was cancelled, which becomes its result.
    pub(crate) cancelled: Option<Errno>,
    /// Present while it runs work that others rely on: the reason of a cancel that arrived meanwhile.
    pub(crate) deferred_cancel: Option<Option<Errno>>,
    pub(crate) deadline: Option<TimerKey>,
}

impl OperationState {
    pub(crate) fn has_token(&self) -> bool {
        matches!(self.requester, Requester::Token(_))
    }

    pub(crate) fn take_requester(&mut self) -> Requester {
        std::mem::replace(&mut self.requester, Requester::Detached)
    }
}
