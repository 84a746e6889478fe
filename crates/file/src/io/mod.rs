//! The requests that move data.

pub(crate) mod bounce;
pub(crate) mod space_wait;
pub(crate) mod transfer;
