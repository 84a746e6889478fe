//! The loop of one thread: its state, turns, sleep, operations.

// The modules, top down: each imports only from those below it.

// Operations: async functions that always run to their end here.
pub(crate) mod operation;
// Completions of tokens, from the kernel's queue to the caller.
pub(crate) mod completions;
// Several transfers at once, each a request of the fast path, with memory that stays with their slots.
pub(crate) mod batch;
// The fast path: one request without a task.
pub(crate) mod push;
// A `Send` handle, by which other threads run work on a reactor.
pub(crate) mod handle;
// A blocked thread drives its reactors.
pub(crate) mod blocking;
// The other reactors of the same thread.
pub(crate) mod siblings;
// One turn: messages, timers, completions, ready tasks. Never waits.
pub(crate) mod turn;
// Submit, and sleep until something has happened.
pub(crate) mod sleep;
// Requests that the thread which waits for them executes itself.
pub(crate) mod call;
// Waits of tasks for a descriptor or a time.
pub(crate) mod waits;
// Devices in the reactor's tables.
pub(crate) mod attach;
// How wakers and other rings reach a reactor.
pub(crate) mod waker;
// The state of a reactor, and the thread's current reactor.
pub(crate) mod core;
// The waits for descriptors in flight on a ring.
pub(crate) mod wait_handles;
