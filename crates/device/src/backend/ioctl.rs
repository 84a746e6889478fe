//! What a block device is asked by `ioctl`, where no safe Rust function exists: to discard a range (fallocate punches
//! holes, which zeroes instead), and its size (`lseek` takes the lock that a long zeroing holds).

#![allow(unsafe_code)]

use std::os::fd::BorrowedFd;

use rustix::ioctl::{Getter, Opcode, Setter, ioctl, opcode};
use uringfs_errno::Errno;

/// `BLKDISCARD` of linux/fs.h.
const BLKDISCARD: Opcode = opcode::none(0x12, 119);

/// `BLKGETSIZE64` of linux/fs.h.
const BLKGETSIZE64: Opcode = opcode::read::<usize>(0x12, 114);

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
