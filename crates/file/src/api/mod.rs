//! The operations of a file, awaited or started by token.

pub(crate) mod file;
pub(crate) mod uncommitted;
pub(crate) mod exact;
pub(crate) mod batch;
pub(crate) mod tokens;
pub(crate) mod operation;
pub(crate) mod request;
