//! Calls of `ioctl` for a block device, where no safe Rust function exists: they discard a range (fallocate punches
//! holes, which zeroes instead), tell the size (`lseek` takes the lock that a long zeroing holds), and drop the page
//! cache.

#![allow(unsafe_code)]

use std::os::fd::BorrowedFd;

use rustix::fs::{Advice, fadvise, fsync};
use rustix::ioctl::{Getter, NoArg, Opcode, Setter, ioctl, opcode};
use uringfs_errno::Errno;

/// `BLKDISCARD` of linux/fs.h.
const BLKDISCARD: Opcode = opcode::none(0x12, 119);

/// `BLKGETSIZE64` of linux/fs.h.
const BLKGETSIZE64: Opcode = opcode::read::<usize>(0x12, 114);

/// `BLKFLSBUF` of linux/fs.h.
const BLKFLSBUF: Opcode = opcode::none(0x12, 97);

/// Discards `length` bytes at `address` of a block device (`BLKDISCARD`), without a [`Device`](crate::Device) around it.
///
/// # Errors
/// EOPNOTSUPP; EINVAL for a range that is not whole blocks; errors of the device.
pub fn discard(fd: BorrowedFd<'_>, address: u64, length: u64) -> Result<(), Errno> {
    // SAFETY: BLKDISCARD reads two u64, start and length, and keeps no pointer.
    let request = unsafe { Setter::<BLKDISCARD, [u64; 2]>::new([address, length]) };
    // SAFETY: the request matches its opcode, see above. The call returns ENOTTY
    // for a descriptor that is no block device.
    let discarded = unsafe { ioctl(fd, request) };
    Ok(discarded?)
}

/// The size of a block device in bytes.
///
/// # Errors
/// Those of the system.
pub(super) fn size(fd: BorrowedFd<'_>) -> Result<u64, Errno> {
    // SAFETY: BLKGETSIZE64 writes one u64, and keeps no pointer.
    let request = unsafe { Getter::<BLKGETSIZE64, u64>::new() };
    // SAFETY: the request matches its opcode, see above. The call returns ENOTTY
    // for a descriptor that is no block device.
    let size = unsafe { ioctl(fd, request) };
    Ok(size?)
}

/// Writes back what the page cache has of a block device, and drops it.
///
/// # Errors
/// Those of the device.
pub(super) fn drop_page_cache(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    // SAFETY: BLKFLSBUF has no argument.
    let request = unsafe { NoArg::<BLKFLSBUF>::new() };
    // SAFETY: the request matches its opcode, see above. The call returns ENOTTY
    // for a descriptor that is no block device.
    match unsafe { ioctl(fd, request) }.map_err(Errno::from) {
        // It is for root alone. Others get the same for pages that no program has mapped.
        Err(Errno::ACCESS | Errno::PERM) => {
            fsync(fd)?;
            Ok(fadvise(fd, 0, None, Advice::DontNeed)?)
        }
        dropped => dropped,
    }
}
