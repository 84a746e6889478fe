//! Records in memory: what the catalog does not hold yet, and what was read from it.

// Changes that lie over the catalog until a commit takes them.
pub(crate) mod overlay;

// Records that were read and have not changed.
pub(crate) mod record_cache;

// The record of a file.
pub(crate) mod inode;

// A thread that reads the catalog for tasks.
pub(crate) mod catalog_thread;
