//! What the reactor keeps of an operation until it has ended.

use rustix::io::Errno;

use crate::tasks::completion::Token;
use crate::tasks::op_result::OutcomeSender;
use crate::tasks::timer::TimerKey;

/// Who asked for an operation.
#[derive(Debug)]
pub enum Asker {
    /// A caller that reaps tokens.
    Token(Token),
    /// A caller that awaits.
    Cell(OutcomeSender),
    /// Another operation, which does not wait for its end: what it leaves, others find.
    Nobody,
}

/// What the reactor knows of an operation that has not ended.
pub(crate) struct OperationState {
    pub(crate) asker: Asker,
    /// Set when it is to stop, with what it will answer.
    pub(crate) cancelled: Option<Errno>,
    /// While it does what others rely on: what it is asked meanwhile.
    pub(crate) deferred_cancel: Option<Option<Errno>>,
    pub(crate) deadline: Option<TimerKey>,
}

impl OperationState {
    pub(crate) fn has_requester(&self) -> bool {
        !matches!(self.asker, Asker::Nobody)
    }

    pub(crate) fn take_requester(&mut self) -> Asker {
        std::mem::replace(&mut self.asker, Asker::Nobody)
    }
}
