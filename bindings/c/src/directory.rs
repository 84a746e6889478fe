//! Names: directories, renames, attributes.

use std::ffi::{CString, c_char};
use std::fs::Permissions;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::ptr;
use std::sync::{Mutex, PoisonError};

use uringfs::volume::{FileType, Metadata, ReadDir, Rename};
use zerocopy::FromZeros;

use crate::error::Failure;
use crate::file::FileHandle;
use crate::handle::{Handle, HandleState, call, call_free, check, store_from, take};
use crate::pointers;
use crate::sized::{self, Growing};
use crate::volume::VolumeHandle;

/// A directory that is being listed. One thread at a time may use it.
#[derive(Debug)]
pub struct DirectoryHandle {
    state: HandleState,
    listing: Mutex<Listing>,
}

#[derive(Debug)]
struct Listing {
    entries: ReadDir,
    /// The name that C has an address of.
    name: CString,
}

impl Handle for DirectoryHandle {
    fn state(&self) -> &HandleState {
        &self.state
    }
}

/// The type of a file: a regular file.
pub const URINGFS_TYPE_FILE: u32 = 1;
/// The type of a file: a directory.
pub const URINGFS_TYPE_DIRECTORY: u32 = 2;
/// The type of a file: a symbolic link.
pub const URINGFS_TYPE_SYMLINK: u32 = 3;
/// The type of a file: a block device.
pub const URINGFS_TYPE_BLOCK_DEVICE: u32 = 4;
/// The type of a file: a character device.
pub const URINGFS_TYPE_CHARACTER_DEVICE: u32 = 5;
/// The type of a file: a named pipe.
pub const URINGFS_TYPE_FIFO: u32 = 6;
/// The type of a file: a socket.
pub const URINGFS_TYPE_SOCKET: u32 = 7;

/// The attributes of a file.
#[derive(Clone, Copy, Debug, FromZeros)]
#[repr(C)]
pub struct CStat {
    /// sizeof this struct, which the caller sets.
    pub size: u32,
    /// URINGFS_TYPE_FILE or another type.
    pub file_type: u32,
    /// The number of the inode.
    pub inode: u64,
    /// The size of the file in bytes.
    pub bytes: u64,
    /// Allocated space in bytes.
    pub allocated_bytes: u64,
    /// Names that the file has.
    pub links: u64,
    /// Permissions, without the type.
    pub mode: u32,
    /// The user that owns it.
    pub user: u32,
    /// The group that owns it.
    pub group: u32,
    /// Nanoseconds of the time of the last read.
    pub accessed_ns: u32,
    /// Nanoseconds of the time of the last change of the content.
    pub modified_ns: u32,
    /// Nanoseconds of the time of the last change of the attributes.
    pub changed_ns: u32,
    /// The time of the last read, in seconds since 1970.
    pub accessed_s: i64,
    /// The time of the last change of the content, in seconds since 1970.
    pub modified_s: i64,
    /// The time of the last change of the attributes, in seconds since 1970.
    pub changed_s: i64,
}

// SAFETY: `repr(C)`, the size first, no padding.
unsafe impl Growing for CStat {
    const FIRST_SIZE: usize = 88;
}

/// An entry of a directory.
#[derive(Clone, Copy, Debug, FromZeros)]
#[repr(C)]
pub struct CEntry {
    /// sizeof this struct, which the caller sets.
    pub size: u32,
    /// URINGFS_TYPE_FILE or another type.
    pub file_type: u32,
    /// The number of the inode.
    pub inode: u64,
    /// The name, any bytes but '/' and 0. Valid until the next call with the directory.
    pub name: *const c_char,
}

// SAFETY: `repr(C)`, the size first, no padding.
unsafe impl Growing for CEntry {
    const FIRST_SIZE: usize = 24;
}

/// Creates a directory with these permissions, set-ID bits and sticky bit. Unlike for mkdir(2) no umask applies. Its
/// parent must exist.
///
/// Returns 0, or a negative errno: -EEXIST, -ENOENT, -ENOTDIR, -ENOSPC, -EROFS.
#[unsafe(no_mangle)]
pub extern "C" fn uringfs_mkdir(
    volume: Option<&VolumeHandle>,
    path: *const c_char,
    mode: u32,
) -> i32 {
    call(volume, |volume| {
        Ok(volume.volume().create_dir_with_mode(pointers::path(path)?, mode).map(|()| 0)?)
    })
}

/// Removes an empty directory. Returns 0, or a negative errno: -ENOENT, -ENOTDIR, -ENOTEMPTY.
#[unsafe(no_mangle)]
pub extern "C" fn uringfs_rmdir(volume: Option<&VolumeHandle>, path: *const c_char) -> i32 {
    call(volume, |volume| Ok(volume.volume().remove_dir(pointers::path(path)?).map(|()| 0)?))
}

/// Removes the name of a file. Its space is free when it has no other name and is closed. Returns 0, or a negative
/// errno: -ENOENT, -EISDIR.
#[unsafe(no_mangle)]
pub extern "C" fn uringfs_unlink(volume: Option<&VolumeHandle>, path: *const c_char) -> i32 {
    call(volume, |volume| Ok(volume.volume().remove_file(pointers::path(path)?).map(|()| 0)?))
}

/// Renames a file or a directory, and replaces what has the new name, as rename(2). A crash leaves one of both states.
///
/// Returns 0, or a negative errno: -ENOENT, -ENOTDIR, -EISDIR, -ENOTEMPTY, -EINVAL for a directory that would be in
/// itself, -ENOSPC, -EROFS.
#[unsafe(no_mangle)]
pub extern "C" fn uringfs_rename(
    volume: Option<&VolumeHandle>,
    from: *const c_char,
    to: *const c_char,
) -> i32 {
    call(volume, |volume| {
        Ok(volume.volume().rename(pointers::path(from)?, pointers::path(to)?).map(|()| 0)?)
    })
}

/// A flag of uringfs_rename2: fails with -EEXIST if the new name exists.
pub const URINGFS_RENAME_NO_REPLACE: u32 = 1;
/// A flag of uringfs_rename2: exchanges the two names, which both exist.
pub const URINGFS_RENAME_EXCHANGE: u32 = 2;

/// Renames a file or a directory as `flags` say (renameat2): URINGFS_RENAME_NO_REPLACE, URINGFS_RENAME_EXCHANGE, or 0
/// as uringfs_rename.
///
/// Returns 0, or a negative errno: as uringfs_rename, -EEXIST with URINGFS_RENAME_NO_REPLACE.
#[unsafe(no_mangle)]
pub extern "C" fn uringfs_rename2(
    volume: Option<&VolumeHandle>,
    from: *const c_char,
    to: *const c_char,
    flags: u32,
) -> i32 {
    call(volume, |volume| {
        let how = match flags {
            0 => Rename::Replace,
            URINGFS_RENAME_NO_REPLACE => Rename::NoReplace,
            URINGFS_RENAME_EXCHANGE => Rename::Exchange,
            _ => {
                return Err(Failure::argument(
                    c"the flags of a rename are 0, URINGFS_RENAME_NO_REPLACE or URINGFS_RENAME_EXCHANGE",
                ));
            }
        };
        let (from, to) = (pointers::path(from)?, pointers::path(to)?);
        Ok(volume.volume().rename_with(from, to, how).map(|()| 0)?)
    })
}

/// Sets the permissions of a file or a directory (chmod), with the set-ID bits and the sticky bit. A symbolic link at
/// the end of the path is followed.
///
/// Returns 0, or a negative errno: -ENOENT, -ENOTDIR, -EROFS.
#[unsafe(no_mangle)]
pub extern "C" fn uringfs_chmod(
    volume: Option<&VolumeHandle>,
    path: *const c_char,
    mode: u32,
) -> i32 {
    call(volume, |volume| {
        let permissions = Permissions::from_mode(mode);
        Ok(volume.volume().set_permissions(pointers::path(path)?, permissions).map(|()| 0)?)
    })
}

/// Stores the attributes of the file at `path` in `stat`. Set stat->size before the call. Unlike for stat(2) a symbolic
/// link at the end of the path is not followed: this is lstat(2). uringfs_stat_follow follows it.
///
/// Returns 0, or a negative errno: -ENOENT, -ENOTDIR, -EINVAL.
#[unsafe(no_mangle)]
pub extern "C" fn uringfs_stat(
    volume: Option<&VolumeHandle>,
    path: *const c_char,
    stat: *mut CStat,
) -> i32 {
    call(volume, |volume| {
        let metadata = volume.volume().symlink_metadata(pointers::path(path)?)?;
        sized::write(stat, attributes(&metadata)).map(|()| 0)
    })
}

/// Stores the attributes of a file in `stat`, as uringfs_stat, and follows a symbolic link at the end of the path.
///
/// Returns 0, or a negative errno: -ENOENT, also if the target of a link is missing, -ELOOP, -ENOTDIR, -EINVAL.
#[unsafe(no_mangle)]
pub extern "C" fn uringfs_stat_follow(
    volume: Option<&VolumeHandle>,
    path: *const c_char,
    stat: *mut CStat,
) -> i32 {
    call(volume, |volume| {
        let metadata = volume.volume().metadata(pointers::path(path)?)?;
        sized::write(stat, attributes(&metadata)).map(|()| 0)
    })
}

/// Stores the attributes of an open file in `stat`, as uringfs_stat.
///
/// Returns 0, or a negative errno: -EXDEV if the file is not of this volume, -EINVAL.
#[unsafe(no_mangle)]
pub extern "C" fn uringfs_stat_file(
    volume: Option<&VolumeHandle>,
    file: Option<&FileHandle>,
    stat: *mut CStat,
) -> i32 {
    call(volume, |volume| {
        let metadata = volume.volume().metadata_of(check(file)?.file())?;
        sized::write(stat, attributes(&metadata)).map(|()| 0)
    })
}

/// Opens a directory for its listing. It is no snapshot: names that are created or removed meanwhile may or may
/// not be listed.
#[unsafe(no_mangle)]
pub extern "C" fn uringfs_directory_open(
    volume: Option<&VolumeHandle>,
    path: *const c_char,
    directory: Option<&mut *mut DirectoryHandle>,
) -> i32 {
    store_from(volume, directory, |volume| {
        let entries = volume.volume().read_dir(pointers::path(path)?)?;
        let listing = Mutex::new(Listing { entries, name: CString::default() });
        Ok(DirectoryHandle { state: HandleState::default(), listing })
    })
}

/// Stores the next entry in `entry`, in the order of the names' bytes. Set entry->size before the call. There is no "."
/// and no "..".
///
/// Returns 1, or 0 at the end, or a negative errno; after -EIO for a damaged entry the listing goes on behind it.
#[unsafe(no_mangle)]
pub extern "C" fn uringfs_directory_next(
    directory: Option<&DirectoryHandle>,
    entry: *mut CEntry,
) -> i32 {
    call(directory, |handle| {
        let mut listing = handle.listing.lock().unwrap_or_else(PoisonError::into_inner);
        let none = CEntry { size: 0, file_type: 0, inode: 0, name: ptr::null() };
        // A wrong struct is refused before an entry is taken.
        sized::write(entry, none)?;
        let Some(next) = listing.entries.next().transpose()? else { return Ok(0) };
        listing.name = CString::new(next.name().as_bytes())
            .map_err(|_| Failure::argument(c"a name has a zero byte"))?;
        let found = CEntry {
            size: 0,
            file_type: type_of(next.file_type()),
            inode: next.ino(),
            name: listing.name.as_ptr(),
        };
        sized::write(entry, found).map(|()| 1)
    })
}

/// Ends a listing. NULL is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn uringfs_directory_close(directory: *mut DirectoryHandle) -> i32 {
    call_free(|| {
        drop(take(directory)?);
        Ok(0)
    })
}

fn attributes(metadata: &Metadata) -> CStat {
    CStat {
        size: 0,
        file_type: type_of(metadata.file_type()),
        inode: metadata.ino(),
        bytes: metadata.len(),
        allocated_bytes: metadata.blocks() * 512,
        links: metadata.nlink(),
        mode: metadata.mode() & 0o7777,
        user: metadata.uid(),
        group: metadata.gid(),
        accessed_ns: metadata.atime_nsec() as u32,
        modified_ns: metadata.mtime_nsec() as u32,
        changed_ns: metadata.ctime_nsec() as u32,
        accessed_s: metadata.atime(),
        modified_s: metadata.mtime(),
        changed_s: metadata.ctime(),
    }
}

fn type_of(file_type: FileType) -> u32 {
    match file_type {
        FileType::File => URINGFS_TYPE_FILE,
        FileType::Directory => URINGFS_TYPE_DIRECTORY,
        FileType::Symlink => URINGFS_TYPE_SYMLINK,
        FileType::BlockDevice(_) => URINGFS_TYPE_BLOCK_DEVICE,
        FileType::CharacterDevice(_) => URINGFS_TYPE_CHARACTER_DEVICE,
        FileType::Fifo => URINGFS_TYPE_FIFO,
        FileType::Socket => URINGFS_TYPE_SOCKET,
    }
}
