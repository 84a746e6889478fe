//! Write-back of dirty folios, and durability.

pub(crate) mod flusher;
pub(crate) mod runs;
pub(crate) mod sync;
