//! Reads and writes through the page cache.

pub(crate) mod blocking_pool;
pub(crate) mod coherence;
pub(crate) mod read;
pub(crate) mod single_miss;
pub(crate) mod write;
