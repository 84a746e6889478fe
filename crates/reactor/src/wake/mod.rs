//! How another thread gives a reactor work and wakes it.

pub(crate) mod message;

pub(crate) mod mailbox;
