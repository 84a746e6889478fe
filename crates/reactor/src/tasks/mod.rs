//! Tasks, what they wait for, and how an operation's result reaches its caller.

pub(crate) mod task;

pub(crate) mod operation_state;

pub(crate) mod waiters;

pub(crate) mod op_result;

pub(crate) mod completion;

pub(crate) mod timer;
