//! System calls for which there is no safe function: the priority of a thread's I/O, and the write-back of a part of a file. Not about
//! rings, but for programs that measure what rings do.

use std::os::fd::{AsRawFd, BorrowedFd};

use libc::c_int;
use uringfs_errno::Errno;

use crate::sys::check;

/// Sets the priority of the calling thread's I/O (`ioprio_set`): the class (1 real time, 2 best effort, 3 idle) and the level in it, from 0, the
/// highest, to 7.
///
/// # Errors
/// EINVAL for another class or level; EPERM for real time without the right to it.
pub fn set_io_priority(class: u8, level: u8) -> Result<(), Errno> {
    const WHO_PROCESS: c_int = 1;
    const CLASS_SHIFT: u32 = 13;
    const CALLING_THREAD: c_int = 0;
    if !(1..=3).contains(&class) || level > 7 {
        return Err(Errno::INVAL);
    }
    let priority = c_int::from(class) << CLASS_SHIFT | c_int::from(level);
    // SAFETY: the call takes three integers and no memory.
    let set = unsafe { libc::syscall(libc::SYS_ioprio_set, WHO_PROCESS, CALLING_THREAD, priority) };
    check(set).map(drop)
}

/// Starts the write-back of a range of a file, or waits for it (`sync_file_range`): `flags` are its bits, 1 to wait before, 2 to write, and 4
/// to wait after. Makes nothing durable: neither the file's attributes nor the device's cache are written.
///
/// # Errors
/// Those of the system: EINVAL for other flags, ESPIPE for what is neither a file nor a block device.
pub fn sync_file_range(
    file: BorrowedFd<'_>,
    offset: u64,
    length: u64,
    flags: u32,
) -> Result<(), Errno> {
    let as_signed = |bytes: u64| i64::try_from(bytes).map_err(|_| Errno::INVAL);
    let (offset, length) = (as_signed(offset)?, as_signed(length)?);
    // SAFETY: the descriptor is open as long as it is borrowed; the call takes integers and no memory.
    let synced = unsafe { libc::sync_file_range(file.as_raw_fd(), offset, length, flags) };
    check(synced.into()).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::fd::AsFd;

    #[test]
    fn a_thread_gets_the_lowest_priority() {
        const IDLE: u8 = 3;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                assert_eq!(set_io_priority(IDLE, 0), Ok(()));
                // SAFETY: the call takes two integers and no memory.
                let found = unsafe { libc::syscall(libc::SYS_ioprio_get, 1, 0) };
                assert_eq!(found >> 13, IDLE.into());
            });
        });
        assert_eq!(set_io_priority(0, 0), Err(Errno::INVAL));
        assert_eq!(set_io_priority(2, 8), Err(Errno::INVAL));
    }

    #[test]
    fn a_part_of_a_file_is_written_back() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[7; 8192]).unwrap();
        assert_eq!(sync_file_range(file.as_fd(), 4096, 4096, 7), Ok(()));
        assert_eq!(sync_file_range(file.as_fd(), 0, 4096, 8), Err(Errno::INVAL));
        assert_eq!(sync_file_range(file.as_fd(), u64::MAX, 1, 2), Err(Errno::INVAL));
    }
}
