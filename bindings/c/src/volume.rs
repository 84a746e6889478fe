//! Volumes: create, open, sync, statistics, close.

use std::ffi::c_char;
use std::path::Path;

use uringfs::device::{Access, Target};
use uringfs::{Errno, cache::Cache};
use uringfs::{FormatOptions, Volume, VolumeOptions};
use zerocopy::FromZeros;

use crate::error::Failure;
use crate::handle::{Handle, HandleState, call, call_free, store, take};
use crate::pointers;
use crate::sized::{self, Growing};

/// A volume that is open. Any thread may use it, also several at once. Close it once, when no other call with it runs.
#[derive(Debug)]
pub struct VolumeHandle {
    state: HandleState,
    volume: Volume,
}

impl Handle for VolumeHandle {
    fn state(&self) -> &HandleState {
        &self.state
    }
}

impl VolumeHandle {
    pub(crate) fn volume(&self) -> &Volume {
        &self.volume
    }

    fn new(volume: Volume) -> VolumeHandle {
        VolumeHandle { state: HandleState::default(), volume }
    }
}

/// A flag of uringfs_format_options: the target may exist. Everything on it is lost.
pub const URINGFS_FORMAT_OVERWRITE: u32 = 1;

/// How a volume is created.
#[derive(Clone, Copy, Debug, FromZeros)]
#[repr(C)]
pub struct CFormatOptions {
    /// sizeof this struct. All fields that are not set are 0.
    pub size: u32,
    /// URINGFS_FORMAT_ flags.
    pub flags: u32,
    /// The size of the volume in bytes, rounded down to blocks of 4096: needed for a new file. 0: the whole target.
    pub bytes: u64,
    /// A name for people, at most 64 bytes of UTF-8. NULL: none.
    pub label: *const c_char,
    /// The user that owns the root directory. 0, with 0 as the group: the user and the group of the process.
    pub root_user: u32,
    /// The group that owns the root directory.
    pub root_group: u32,
}

// SAFETY: `repr(C)`, the size first, no padding.
unsafe impl Growing for CFormatOptions {
    const FIRST_SIZE: usize = 32;
}

/// A flag of uringfs_volume_options: opens for reading only. Readers share a volume; a writer has it alone.
pub const URINGFS_VOLUME_READ_ONLY: u32 = 1;
/// A flag of uringfs_volume_options: discards freed blocks on the device.
pub const URINGFS_VOLUME_DISCARD: u32 = 2;

/// How a volume is opened.
#[derive(Clone, Copy, Debug, FromZeros)]
#[repr(C)]
pub struct CVolumeOptions {
    /// sizeof this struct. All fields that are not set are 0.
    pub size: u32,
    /// URINGFS_VOLUME_ flags.
    pub flags: u32,
    /// The size in bytes of a page cache of its own. 0: the page cache of the process, which all such volumes share.
    pub page_cache_bytes: u64,
    /// Memory in bytes for names and inodes. 0: 64 MiB.
    pub catalog_cache_bytes: u64,
}

// SAFETY: `repr(C)`, the size first, no padding.
unsafe impl Growing for CVolumeOptions {
    const FIRST_SIZE: usize = 24;
}

/// Space and commits of a volume.
#[derive(Clone, Copy, Debug, FromZeros)]
#[repr(C)]
pub struct CStatistics {
    /// sizeof this struct, which the caller sets.
    pub size: u32,
    /// Bytes of a block: 4096.
    pub block_bytes: u32,
    /// Blocks of the volume.
    pub blocks: u64,
    /// Free blocks.
    pub free_blocks: u64,
    /// Blocks that become free after a commit, when no read of them is in flight.
    pub pending_blocks: u64,
    /// Blocks of the catalog, which holds names and inodes.
    pub catalog_blocks: u64,
    /// Commits since the volume was opened.
    pub commits: u64,
}

// SAFETY: `repr(C)`, the size first, no padding.
unsafe impl Growing for CStatistics {
    const FIRST_SIZE: usize = 48;
}

/// Creates a volume and opens it. `target` is the path of a file or a block device, or memory:SIZE (64m, 1g), whose
/// content is lost when it is closed. A new file needs options->bytes, and is filled with zeros, which takes as long as
/// writing them. `options` may be NULL.
///
/// Returns 0, or a negative errno: -EEXIST if the path exists and URINGFS_FORMAT_OVERWRITE is not set, -EINVAL,
/// -ENOSPC, -EBUSY if the target is in use, and errors of the file system.
#[unsafe(no_mangle)]
pub extern "C" fn uringfs_volume_create(
    target: *const c_char,
    options: *const CFormatOptions,
    volume: Option<&mut *mut VolumeHandle>,
) -> i32 {
    store(volume, || {
        let path = pointers::path(target)?;
        let options = sized::read(options)?;
        sized::check_flags(
            options.flags,
            URINGFS_FORMAT_OVERWRITE,
            c"a flag of uringfs_format_options is unknown",
        )?;
        let mut format =
            FormatOptions::new().overwrite(options.flags & URINGFS_FORMAT_OVERWRITE != 0);
        if (options.root_user, options.root_group) != (0, 0) {
            format = format.root_owner(options.root_user, options.root_group);
        }
        if options.bytes != 0 {
            format = format.size(options.bytes);
        }
        if let Some(label) = pointers::string(options.label) {
            let label = label.to_str().map_err(|_| Failure::argument(c"the label is not UTF-8"))?;
            format = format.label(label);
        }
        let volume = match described_target(path)? {
            Some(target) => Volume::create_on(target.open(Access::ReadWrite)?, &format)?,
            None => Volume::create(path, &format)?,
        };
        Ok(VolumeHandle::new(volume))
    })
}

/// Opens the volume on a target: a file, a block device, or the export of an NBD server (nbd://HOST/NAME,
/// nbd+unix:///NAME?socket=PATH). One process has a volume open for writing. `options` may be NULL.
///
/// Returns 0, or a negative errno: -ENOENT, -EACCES, -EBUSY if the volume is in use, -EINVAL if there is no volume,
/// -EOPNOTSUPP for one of another version, -EIO for a damaged one.
#[unsafe(no_mangle)]
pub extern "C" fn uringfs_volume_open(
    target: *const c_char,
    options: *const CVolumeOptions,
    volume: Option<&mut *mut VolumeHandle>,
) -> i32 {
    store(volume, || {
        let path = pointers::path(target)?;
        let options = sized::read(options)?;
        let known = URINGFS_VOLUME_READ_ONLY | URINGFS_VOLUME_DISCARD;
        sized::check_flags(options.flags, known, c"a flag of uringfs_volume_options is unknown")?;
        let bytes = |bytes: u64| {
            usize::try_from(bytes)
                .map_err(|_| Failure::argument(c"a cache is larger than the address space"))
        };
        let mut open = VolumeOptions::new()
            .read_only(options.flags & URINGFS_VOLUME_READ_ONLY != 0)
            .discard(options.flags & URINGFS_VOLUME_DISCARD != 0);
        if options.page_cache_bytes != 0 {
            open = open.page_cache(Cache::new(options.page_cache_bytes));
        }
        if options.catalog_cache_bytes != 0 {
            open = open.catalog_cache_bytes(bytes(options.catalog_cache_bytes)?);
        }
        Ok(VolumeHandle::new(open.open(path)?))
    })
}

/// Makes all changes and writes of all files durable.
///
/// Returns 0, or a negative errno: -ENOSPC when the catalog is full, -EIO when the device failed, now or before.
#[unsafe(no_mangle)]
pub extern "C" fn uringfs_volume_sync(volume: Option<&VolumeHandle>) -> i32 {
    call(volume, |handle| Ok(handle.volume.sync().map(|()| 0)?))
}

/// Stores space and commits of a volume in `statistics`. Set statistics->size before the call.
///
/// Returns 0, or a negative errno: -EINVAL for a wrong size.
#[unsafe(no_mangle)]
pub extern "C" fn uringfs_volume_statistics(
    volume: Option<&VolumeHandle>,
    statistics: *mut CStatistics,
) -> i32 {
    call(volume, |handle| {
        let now = handle.volume.statistics();
        let result = CStatistics {
            size: 0,
            block_bytes: 4096,
            blocks: now.blocks,
            free_blocks: now.free_blocks,
            pending_blocks: now.pending_blocks,
            catalog_blocks: now.catalog_blocks,
            commits: now.commits,
        };
        sized::write(statistics, result).map(|()| 0)
    })
}

/// Closes the volume: makes all changes durable, and reports what failed. The handle is gone, whatever the result.
/// After success the target is free for other programs. NULL is allowed.
///
/// Close files and directories, and reap all operations, before. Else the result is -EBUSY: the changes are durable,
/// and the volume stays open until the last file of it is closed.
#[unsafe(no_mangle)]
pub extern "C" fn uringfs_volume_close(volume: *mut VolumeHandle) -> i32 {
    call_free(|| match take(volume)? {
        Some(handle) => Ok(handle.volume.close().map(|()| 0)?),
        None => Ok(0),
    })
}

/// A target that is no path: memory.
fn described_target(path: &Path) -> Result<Option<Target>, Failure> {
    let Some(text) = path.to_str() else { return Ok(None) };
    match text.parse()? {
        Target::Path(_) | Target::Remote(_) => Ok(None),
        Target::Null(_) => {
            let what = "a device that stores nothing holds no volume; use memory:SIZE";
            Err(Failure::new(Errno::INVAL, what))
        }
        target => Ok(Some(target)),
    }
}
