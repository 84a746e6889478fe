//! Links: further names of files, and symbolic links.

use std::ffi::c_char;
use std::os::unix::ffi::OsStrExt;

use uringfs::Errno;

use crate::error::Failure;
use crate::handle::call;
use crate::pointers;
use crate::volume::VolumeHandle;

/// Gives the file at `path` one more name, `link`. A symbolic link at the end of `path` is not followed.
///
/// Returns 0, or a negative errno: -ENOENT, -EEXIST, -EPERM for a directory, -EMLINK, -ENOSPC, -EROFS.
#[unsafe(no_mangle)]
pub extern "C" fn uringfs_link(
    volume: Option<&VolumeHandle>,
    path: *const c_char,
    link: *const c_char,
) -> i32 {
    call(volume, |volume| {
        Ok(volume.volume().hard_link(pointers::path(path)?, pointers::path(link)?).map(|()| 0)?)
    })
}

/// Creates a symbolic link at the path `link`. `target` has 1 to 4095 bytes, and need not exist.
///
/// Returns 0, or a negative errno: -ENOENT, -EEXIST, -EINVAL for an empty target, -ENAMETOOLONG, -ENOSPC, -EROFS.
#[unsafe(no_mangle)]
pub extern "C" fn uringfs_symlink(
    volume: Option<&VolumeHandle>,
    target: *const c_char,
    link: *const c_char,
) -> i32 {
    call(volume, |volume| {
        Ok(volume.volume().symlink(pointers::path(target)?, pointers::path(link)?).map(|()| 0)?)
    })
}

/// Stores the target of a symbolic link in `buffer`, which has `length` bytes, as a string. Unlike readlink(2) it ends
/// with a zero byte, and is never truncated. 4096 bytes hold every target. A `length` of 0 asks for the length alone.
///
/// Returns the length of the target without the zero byte, or a negative errno: -ERANGE if the buffer is too small,
/// with nothing stored, -EINVAL if `path` is no symbolic link, -ENOENT.
#[unsafe(no_mangle)]
pub extern "C" fn uringfs_readlink(
    volume: Option<&VolumeHandle>,
    path: *const c_char,
    buffer: *mut c_char,
    length: usize,
) -> i64 {
    call(volume, |volume| {
        let target = volume.volume().read_link(pointers::path(path)?)?;
        let target = target.as_os_str().as_bytes();
        if length > 0 && length <= target.len() {
            let text =
                c"the buffer is too small for the target of the link: 4096 bytes hold every target";
            return Err(Failure::fixed(Errno::RANGE, text));
        }
        if length > 0 {
            let buffer = pointers::address(buffer.cast(), length)?;
            pointers::store_string(buffer, target);
        }
        Ok(target.len() as i64)
    })
}
