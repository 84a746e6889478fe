//! Records in memory: uncommitted changes, and cached records of the catalog.

// Uncommitted changes, which reads see before the catalog.
pub(crate) mod overlay;

// When a read of one record takes those of neighbouring inodes with it.
pub(crate) mod readahead;

// Unchanged records that were read or committed.
pub(crate) mod record_cache;

// The record of an inode.
pub(crate) mod inode;

// The thread that reads the catalog for tasks.
pub(crate) mod catalog_thread;
