//! Blocks of the device: free ones, and those of files.

// The extents of one file.
pub(crate) mod extent_map;

// An extent, and its record.
pub(crate) mod extent;

// Blocks that no file may map.
pub(crate) mod system_zone;

// Free blocks of the volume.
pub(crate) mod allocator;
