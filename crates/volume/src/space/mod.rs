//! Blocks: which are free, and which a file has.

/// Free blocks of the volume.
pub(crate) mod allocator;
/// An extent, and its record.
pub(crate) mod extent;
/// The extents of one file.
pub(crate) mod extent_map;
/// Blocks that no file may have.
pub(crate) mod system_zone;
