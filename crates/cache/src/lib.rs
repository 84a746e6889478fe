//! The page cache: which folio is where. Does no I/O.

mod eviction;
