//! Tasks, what they wait for, and how an operation's result reaches its caller.

// The modules, top down: each imports only from those below it.

// The handle to a spawned task.
pub(crate) mod join;
// The task table of one reactor.
pub(crate) mod task;
// The state of an operation that has not ended.
pub(crate) mod operation_state;
// Transfers of batches that have ended.
pub(crate) mod batches;
// Requests of operations, and cells for other waits.
pub(crate) mod waiters;
// The result of an awaited operation, with its sender and receiver.
pub(crate) mod op_result;
// Tokens, and the completions of token operations.
pub(crate) mod completion;
// A queue of timers.
pub(crate) mod timer;
