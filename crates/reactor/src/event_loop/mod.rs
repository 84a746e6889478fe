//! The loop of one thread: its state, its turns, its sleep, its operations.

pub(crate) mod operation;

pub(crate) mod siblings;

pub(crate) mod turn;

pub(crate) mod sleep;

pub(crate) mod attach;
