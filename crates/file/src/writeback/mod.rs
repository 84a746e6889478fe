//! Dirty folios on their way to the device.

pub(crate) mod flusher;
pub(crate) mod runs;
pub(crate) mod sync;
