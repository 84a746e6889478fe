//! The public volume.

// Create, open and close.
mod lifecycle;

// The holders that keep a volume open after one of its handles was closed.
mod holders;

// The identity of the volume on a device.
pub(crate) mod identity;

// The label, changed while the volume is closed.
mod label;

// Erasing a closed volume.
mod wipe;

// Format a device.
pub(crate) mod format;

// Open a volume on a device.
pub(crate) mod open_volume;

// The catalog that a superblock names, and the backup superblock where the slots are no good.
pub(crate) mod open_catalog;

// Options of formatting and opening.
pub(crate) mod options;

// Calls on names, as those of `std::fs`.
pub(crate) mod names;

// The entries of a directory, with positions to return to.
pub(crate) mod directory_stream;

// Files by reference instead of by path.
pub(crate) mod inode_ref;

// Whole files: read, write, copy.
mod content;

// Whole trees: create and remove.
mod tree;

// The entries of a directory, in batches.
pub(crate) mod read_dir;

// The attributes of a file.
pub(crate) mod metadata;

// Opening a file by path.
pub(crate) mod open;

// Extended attributes.
pub(crate) mod xattr;

// Holding back changes, for a copy of the device.
mod freeze;

// Enlarging a volume in use.
pub(crate) mod resize;

// Create, open and close in tasks.
mod async_lifecycle;

// The calls as futures.
pub(crate) mod async_volume;

// The extents of an open file, as a map for crate `file`.
pub(crate) mod file_map;

// The volume.
#[allow(clippy::module_inception, reason = "the module is named after its main type")]
pub(crate) mod volume;
