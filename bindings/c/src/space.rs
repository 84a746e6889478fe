//! The space of files: discards, sizes, allocation and holes, by calls that block.

use std::ffi::CStr;

use uringfs::Errno;
use uringfs::file::FallocateSize;

use crate::error::Failure;
use crate::file::{FileHandle, done};
use crate::handle::call;

/// Discards the content of a range, and blocks until that is done: whole blocks of a volume's file become free, and
/// read as zeros. Of a target the content is undefined afterwards, and the error is -EOPNOTSUPP if it has no discard.
#[unsafe(no_mangle)]
pub extern "C" fn uringfs_file_discard(file: Option<&FileHandle>, offset: u64, length: u64) -> i32 {
    call(file, |handle| done(handle.file().discard(offset, length).wait(), "cannot discard"))
}

/// Truncates a volume's file, or extends it by a hole. Durable after uringfs_file_flush.
#[unsafe(no_mangle)]
pub extern "C" fn uringfs_file_truncate(file: Option<&FileHandle>, size: u64) -> i32 {
    call(file, |handle| done(handle.file().set_len(size).wait(), "cannot change the size"))
}

/// Allocates space for a range of a volume's file (fallocate), which grows if the range ends beyond its end, and blocks
/// until that is done. Bytes that are there stay, new ones are zeros, and writes to the range need no more space.
/// Durable after uringfs_file_flush.
///
/// Returns 0, or a negative errno: -ENOSPC with nothing allocated, -EINVAL for an empty range, -EFBIG, -EBADF without
/// URINGFS_OPEN_WRITE, -EOPNOTSUPP for a target.
#[unsafe(no_mangle)]
pub extern "C" fn uringfs_file_allocate(
    file: Option<&FileHandle>,
    offset: u64,
    length: u64,
) -> i32 {
    call(file, |handle| {
        let allocated = handle.file().allocate(offset, length, FallocateSize::Extend).wait();
        done(allocated, "cannot allocate space")
    })
}

/// Finds data at or after `offset` (lseek with SEEK_DATA). Blocks of 4096 bytes that were never written, or were
/// discarded, are no data, also if they are allocated. A target is data as a whole.
///
/// Returns the offset of the data, or a negative errno: -ENXIO when no data follows.
#[unsafe(no_mangle)]
pub extern "C" fn uringfs_file_seek_data(file: Option<&FileHandle>, offset: u64) -> i64 {
    call(file, |handle| found(handle.file().seek_data(offset), c"no data follows in the file"))
}

/// Finds a hole at or after `offset` (lseek with SEEK_HOLE): bytes that uringfs_file_seek_data skips. The end of the
/// file is a hole.
///
/// Returns the offset of the hole, or a negative errno: -ENXIO for an offset at the end of the file or beyond.
#[unsafe(no_mangle)]
pub extern "C" fn uringfs_file_seek_hole(file: Option<&FileHandle>, offset: u64) -> i64 {
    call(file, |handle| {
        found(handle.file().seek_hole(offset), c"the offset is at the end of the file or beyond")
    })
}

/// The result of a search. It fails only if there is nothing to find.
fn found(result: Result<u64, Errno>, nothing: &'static CStr) -> Result<i64, Failure> {
    result.map(u64::cast_signed).map_err(|errno| Failure::fixed(errno, nothing))
}
