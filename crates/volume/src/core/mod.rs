//! The state that the clones of a volume share under one lock, transactions on it, blocks for files, and commits.

// One commit: takes the changes, writes them to the catalog.
pub(crate) mod commit;

// The records that a commit needs.
mod commit_records;

// Runs a transaction under the lock; reads what is missing from the catalog and runs it again.
pub(crate) mod retry;

// Opens a file with its extent map.
mod load;

// Blocks for files: reserved, allocated, swapped, freed.
pub(crate) mod allocation;

// Room in the catalog for the next commits, and preallocation of blocks for it.
pub(crate) mod catalog_preallocation;

// The state, and the lock around it.
pub(crate) mod state;

// Whether the device still has all blocks of the volume.
pub(crate) mod size_watch;

// Blocks that are preallocated for the catalog.
pub(crate) mod preallocated;

// Errors of the device and of the metadata, as events.
pub(crate) mod events;

// The state of a frozen volume.
pub(crate) mod freeze;

// One commit for all waiters.
pub(crate) mod group_commit;

// The end of the volume.
pub(crate) mod closed;

// The lock of a volume, for a device that is used as a whole.
pub(crate) mod whole_lock;

// The lock that excludes other processes from the device.
pub(crate) mod device_lock;

// A lock by a name, of a device without a descriptor.
mod named_lock;

// Two ways to wait: a thread blocks, a task yields.
pub(crate) mod blocking;
