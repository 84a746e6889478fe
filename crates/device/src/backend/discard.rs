//! Discards a range of a block device: the only operation of a back end for
//! which no safe Rust function exists (fallocate punches holes, which zeroes instead).

#![allow(unsafe_code)]

use std::os::fd::BorrowedFd;

use rustix::ioctl::{Opcode, Setter, ioctl, opcode};
use uringfs_errno::Errno;

/// `BLKDISCARD` of linux/fs.h.
const BLKDISCARD: Opcode = opcode::none(0x12, 119);

/// Discards `length` bytes at `address`.
///
/// # Errors
/// EOPNOTSUPP; EINVAL for a range that is not whole blocks; errors of the device.
pub(super) fn discard(fd: BorrowedFd<'_>, address: u64, length: u64) -> Result<(), Errno> {
    // SAFETY: BLKDISCARD reads two u64, start and length, and keeps no pointer.
    let request = unsafe { Setter::<BLKDISCARD, [u64; 2]>::new([address, length]) };
    // SAFETY: the request matches its opcode, see above. The call returns ENOTTY
    // for a descriptor that is no block device.
    let discarded = unsafe { ioctl(fd, request) };
    Ok(discarded?)
}
