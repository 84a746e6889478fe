//! The public volume.

// Format and open.
pub(crate) mod format;

// Extended attributes.
pub(crate) mod xattr;

// Enlarging a volume in use.
pub(crate) mod resize;

// Opening a file by path.
mod open;

// The calls as futures.
pub(crate) mod async_volume;

// The extents of an open file, as a map for crate `file`.
pub(crate) mod file_map;

// The volume.
#[allow(clippy::module_inception, reason = "the module is named after its main type")]
pub(crate) mod volume;
