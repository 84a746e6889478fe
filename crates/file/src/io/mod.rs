//! Data requests of the slow path, and waits for space.

pub(crate) mod bounce;
pub(crate) mod space_wait;
pub(crate) mod transfer;
