//! An open file: extents that readers find without a lock, and changes that no commit has taken yet.

// The file.
#[allow(clippy::module_inception, reason = "the module is named after its main type")]
pub(crate) mod open_file;

// Changes that no commit has taken yet.
pub(crate) mod uncommitted;

// A reader's view of a file.
pub(crate) mod snapshot;

// Extents that were looked up before, for files of many extents.
pub(crate) mod extent_cache;
