//! State that threads share: quiescence, and a lock that is biased towards overwrites.

// The modules, top down: each imports only from those below it.

// Lets overwriters go without a lock until a writer excludes them.
pub(crate) mod writer_bias;
// The quiescence domain of each device.
pub(crate) mod domains;
// Epochs: when all earlier requests have ended.
pub(crate) mod quiescence;
// The requests that threads make without a reactor.
pub(crate) mod callers;
// A number for each such thread.
pub(crate) mod thread_number;
// Fences of two sides, of which the frequent one costs nothing.
mod barrier;
