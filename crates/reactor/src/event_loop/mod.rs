//! The loop of one thread: its state, its turns, its sleep, its operations.

pub(crate) mod operation;

pub(crate) mod push;

pub(crate) mod handle;

pub(crate) mod siblings;

pub(crate) mod turn;

pub(crate) mod sleep;

pub(crate) mod waits;

pub(crate) mod attach;

pub(crate) mod waker;

pub(crate) mod core;
