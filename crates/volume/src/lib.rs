//! What a file is on the uringfs format: names, inodes, extents, allocation, and the catalog that
//! holds them. A volume lies on a device or in one ordinary file.

mod blocks;
mod catalog;
mod check;
mod core;
mod error;
mod namespace;
mod open_file;
mod records;
mod space;
mod superblock;
mod volume;

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
