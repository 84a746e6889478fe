//! [`Volume`]: files under names, in the uringfs format, on a device or in one ordinary file. This crate has
//! the names, inodes, extents and free space, and the catalog that stores them. It moves no file data, except a
//! block in an upgrade.

// The modules, top down. Each imports only from modules below it.

// Consistency check and repair.
mod check;

// The public volume: format, open, and every call on names.
mod volume;

// The state that clones share, transactions on it, and commits.
mod core;

// Directories, paths, permissions, and the operations on them.
mod namespace;

// An open file: its extents, and its uncommitted changes.
mod open_file;

// Records in memory, over the catalog.
mod records;

// The records of a volume on the device, changed in batches.
mod catalog;

// Free blocks, and the extents of files.
mod space;

// The superblock: identity and size of the volume, and the blocks of catalog and log.
mod superblock;

// Block I/O on a device.
mod blocks;

// The error of every call.
mod error;

pub use crate::core::device_lock::Holder;
pub use crate::core::events::{BlockOwner, ErrorEvent, EventStream};
pub use crate::core::whole_lock::WholeLock;
pub use blocks::{BLOCK, Run};
pub use check::{CheckOptions, CheckReport, CheckStep, Finding};
pub use error::{Error, ErrorKind, Result};
pub use namespace::credentials::{AtimePolicy, Credentials};
pub use namespace::directory::{DirectoryEntry, Link, MAX_NAME_BYTES, Rename};
pub use namespace::open_options::OpenOptions;
pub use namespace::path::Follow;
pub use records::inode::{FileType, Inode, InodeNumber, Time};
pub use space::allocator::{
    AllocationRequest, Allocator, ChangedRegion, InvalidRegion, REGION_BLOCKS, RegionSummary,
    SpaceUsage,
};
pub use space::extent::{Extent, ExtentRecord, ExtentState, FILE_BLOCKS, InvalidExtent};
pub use space::extent_map::{ExtentMap, ExtentOrHole, Iter};
pub use volume::async_volume::AsyncVolume;
pub use volume::directory_stream::{DirectoryPositions, DirectoryStream};
pub use volume::identity::Identity;
pub use volume::inode_ref::InodeRef;
pub use volume::metadata::{FileTimes, Metadata};
pub use volume::options::{FormatOptions, VolumeOptions};
pub use volume::read_dir::{AsyncReadDir, DirEntry, ReadDir};
pub use volume::volume::{Statistics, UnlinkedFiles, Volume};
pub use volume::xattr::SetXattr;
