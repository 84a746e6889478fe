//! Blocks: which are free, and which a file has.

// The extents of one file.
pub(crate) mod extent_map;

// An extent, and its record.
pub(crate) mod extent;

// Blocks that no file may have.
pub(crate) mod system_zone;

// Free blocks of the volume.
pub(crate) mod allocator;
