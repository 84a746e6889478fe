//! The mailbox: messages from other threads, and how they wake a reactor.

// The modules, top down: each imports only from those below it.

// The messages, and the notifier that wakes a sleeping reactor.
pub(crate) mod message;
// A mailbox that notifies its owner only when it sleeps.
pub(crate) mod mailbox;
