//! What a file is on the uringfs format: names, inodes, extents, allocation, and the catalog that
//! holds them. A volume lies on a device or in one ordinary file.

// The rooms of the crate, top down: each imports only from those below it.

// Whether everything a volume says of itself agrees, and its repair.
mod check;

// A volume as its users see it.
mod volume;

// The state that clones share, operations on it, and commits.
mod core;

// Names: directories, paths, permissions, and the operations on them.
mod namespace;

// A file that is open: its extents, and its changes until a commit takes them.
mod open_file;

// Records in memory, over the catalog.
mod records;

// The records of a volume on the device, changed by whole batches.
mod catalog;

// Free blocks, and the extents of files.
mod space;

// The superblock: where a volume begins.
mod superblock;

// The blocks of a device.
mod blocks;

// What every call of this crate may fail with.
mod error;

pub use crate::core::events::{ErrorEvent, Errors, Subject};
pub use blocks::{BLOCK, Run};
pub use check::{CheckOptions, CheckReport, CheckStep, Finding};
pub use error::{Error, ErrorKind};
pub use namespace::credentials::{AccessTime, Credentials};
pub use namespace::directory::{DirectoryEntry, LONGEST_NAME, Rename};
pub use namespace::open_options::OpenOptions;
pub use namespace::path::Follow;
pub use records::inode::{FileKind, Inode, InodeNumber, Time};
pub use space::allocator::{
    Allocator, ChangedRegion, InvalidRegion, REGION_BLOCKS, RegionSummary, Space, Want,
};
pub use space::extent::{Extent, ExtentRecord, FILE_BLOCKS, InvalidExtent, State};
pub use space::extent_map::{ExtentMap, Found, Iter};
pub use volume::async_volume::AsyncVolume;
pub use volume::format::{FormatOptions, VolumeOptions};
pub use volume::volume::{Statistics, Volume};
pub use volume::xattr::SetXattr;
