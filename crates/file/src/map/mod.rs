//! Where a file's bytes lie.

pub(crate) mod file_map;
pub(crate) mod hot_extent;
pub(crate) mod mapping;
pub(crate) mod refusal;
