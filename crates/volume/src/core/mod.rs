//! What the clones of a volume share, and how it reaches the device: the state under one lock, operations tried
//! on it, blocks for files, and commits.

// A commit: what it takes from the state, and how that reaches the catalog.
pub(crate) mod commit;

// An operation is tried under the lock; a miss is read from the catalog first, then it is tried again.
pub(crate) mod retry;

// A file is opened, with its map.
mod load;

// Blocks for files: reserved, allocated, swapped, freed.
pub(crate) mod allocation;

// What the next commits take of the catalog, and the blocks that are ordered for it.
pub(crate) mod catalog_preallocation;

// The state itself, and the lock around it.
pub(crate) mod state;

// Blocks on their way to the catalog.
pub(crate) mod catalog_blocks;

// Errors of the device and of the metadata, as a stream.
pub(crate) mod events;

// One commit for all that wait: who leads it, who waits.
pub(crate) mod group_commit;

// The lock that keeps other processes off the device.
pub(crate) mod device_lock;

// How a caller waits: a thread in place, a task with its waker.
pub(crate) mod blocking;
