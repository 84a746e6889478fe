//! Direct I/O.

pub(crate) mod append;
pub(crate) mod atomic_write;
pub(crate) mod called;
pub(crate) mod fallocate;
pub(crate) mod fast_path;
pub(crate) mod read;
pub(crate) mod write;
pub(crate) mod write_guard;
