//! A file that is open: its extents for readers without a lock, and its changes until a commit takes them.

// The file.
#[allow(clippy::module_inception, reason = "the room is named after its main type")]
pub(crate) mod open_file;

// Extents that were read before.
pub(crate) mod extent_cache;
