//! The page cache: which folio is where. Does no I/O.

#[doc(hidden)]
pub mod eviction;
