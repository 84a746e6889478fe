//! Data of files in the page cache.

use uringfs::file::Advice;

use crate::file::{FileHandle, done};
use crate::handle::call;

/// Drops a range from the page cache (posix_fadvise with POSIX_FADV_DONTNEED), so that the next reads of it come from the
/// volume: whole pages of 4096 bytes that are clean. Those with writes that are not written back stay: call
/// uringfs_file_flush before. No effect on a file with URINGFS_OPEN_DIRECT, and on a target.
///
/// `offset` 0 with `length` UINT64_MAX is the whole file. Returns 0, or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn uringfs_file_drop_cache(
    file: Option<&FileHandle>,
    offset: u64,
    length: u64,
) -> i32 {
    call(file, |handle| {
        let dropped = handle.file().advise(Advice::DoNotNeed, offset, length).wait();
        done(dropped, "cannot drop cached data")
    })
}
