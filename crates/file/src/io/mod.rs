//! The requests that move data.

pub(crate) mod transfer;
