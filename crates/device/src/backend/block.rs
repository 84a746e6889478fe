//! A block device, opened to bypass the kernel's page cache.
//!
//! An open for writing claims the device, so a device that is mounted
//! or claimed by another program is refused.

use std::fs::Metadata;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::thread::sleep;
use std::time::Instant;

use rustix::fs::{
    FallocateFlags, Mode, OFlags, fallocate, fstat, ioctl_blkpbszget, ioctl_blksszget, major, minor,
};
use uringfs_errno::Errno;

use super::descriptor::{flush_if_durable, open_direct, range, transfer, write_zeros};
pub use super::ioctl::discard;
use super::open_error::{IN_USE_TIMEOUT, open_error};
use super::{ioctl, sysfs};
use crate::claim::Claim;
use crate::geometry::{Discard, Geometry};
use crate::interface::backend::{Access, Backend, KernelTarget};
use crate::request::{Op, Request};

/// The longest transfer of a device whose limit is unknown.
const MAX_TRANSFER: u32 = 512 << 10;

/// The longest range that one call zeroes. The call returns only when all of it is zero.
const MAX_ZEROED: u64 = 1 << 30;

/// A block device.
#[derive(Debug)]
pub struct Block {
    fd: OwnedFd,
    /// Acquired if it is open for writing.
    claim: Claim,
    description: String,
    geometry: Geometry,
}

impl Block {
    /// Opens the block device `path`; for writing, as its only user.
    ///
    /// # Errors
    /// In one line why it cannot be opened, with the path and what to do:
    /// `ResourceBusy` for a device that is mounted.
    pub fn open(path: &Path, access: Access) -> io::Result<Block> {
        let with_path = |errno| open_error(path, access, errno);
        let claim = Claim::new(path);
        let flags = match access {
            Access::Read => OFlags::RDONLY,
            Access::ReadWrite => {
                acquire_with_retry(&claim).map_err(with_path)?;
                OFlags::RDWR
            }
        };
        let (fd, direct) = open_direct(path, flags, Mode::empty()).map_err(with_path)?;
        let geometry = geometry(fd.as_fd(), direct, access).map_err(with_path)?;
        Ok(Block { fd, claim, description: format!("block device {}", path.display()), geometry })
    }
}

/// Claims the device, and retries for [`IN_USE_TIMEOUT`] while another program has claimed it.
pub(super) fn acquire_with_retry(claim: &Claim) -> Result<(), Errno> {
    let deadline = Instant::now() + IN_USE_TIMEOUT;
    loop {
        match claim.acquire() {
            Err(Errno::BUSY) if Instant::now() < deadline => sleep(IN_USE_TIMEOUT / 50),
            acquired => return acquired,
        }
    }
}

fn geometry(fd: BorrowedFd<'_>, direct: bool, access: Access) -> Result<Geometry, Errno> {
    let number = fstat(fd)?.st_rdev;
    let limits = sysfs::limits(major(number), minor(number));
    let writable = access == Access::ReadWrite;
    if writable && limits.read_only {
        return Err(Errno::ROFS);
    }
    let block_size = ioctl_blksszget(fd)?;
    let physical = limits.physical_block_size.map_or_else(|| ioctl_blkpbszget(fd), Ok)?;
    let max_transfer = limits.max_transfer.unwrap_or(MAX_TRANSFER);
    Ok(Geometry {
        size: ioctl::size(fd)?,
        block_size,
        physical_block_size: physical.max(block_size),
        memory_alignment: match direct {
            true => limits.memory_alignment.unwrap_or(block_size),
            false => 1,
        },
        max_transfer: (max_transfer - max_transfer % block_size).max(block_size),
        volatile_cache: limits.volatile_cache || !direct,
        cached_in_process: false,
        fua: direct && (limits.fua || !limits.volatile_cache),
        durable_writes: direct,
        discard: (writable && limits.discard_max > 0).then(|| Discard {
            granularity: limits.discard_granularity.max(block_size),
            max_bytes: limits.discard_max - limits.discard_max % block_size as u64,
        }),
        write_zeroes: writable && limits.write_zeroes_max > 0,
        read_only: !writable,
        rotational: limits.rotational,
        direct,
    })
}

/// Splits a range into parts of at most `max_length` bytes.
pub(super) fn split_range(
    (address, length): (u64, u64),
    max_length: u64,
) -> impl Iterator<Item = (u64, u64)> {
    let max_length = max_length.max(1);
    (0..length.div_ceil(max_length)).map(move |index| {
        let start = index * max_length;
        (address + start, max_length.min(length - start))
    })
}

impl Backend for Block {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn size(&self) -> Result<u64, Errno> {
        ioctl::size(self.fd.as_fd())
    }

    fn description(&self) -> String {
        self.description.clone()
    }

    fn kernel_target(&self) -> KernelTarget<'_> {
        KernelTarget::Descriptor(self.fd.as_fd())
    }

    fn claim(&self) -> Option<&Claim> {
        Some(&self.claim)
    }

    fn perform(&self, request: &mut Request) -> Result<u32, Errno> {
        let fd = self.fd.as_fd();
        match request.op {
            Op::Discard => {
                let limits = self.geometry.discard.ok_or(Errno::OPNOTSUPP)?;
                for (address, length) in split_range(range(request), limits.max_bytes) {
                    ioctl::discard(fd, address, length)?;
                }
                flush_if_durable(fd, request)
            }
            Op::WriteZeroes => {
                for (address, length) in split_range(range(request), MAX_ZEROED) {
                    // Like BLKZEROOUT: the kernel itself writes zeros if the device
                    // has no command for it (block/fops.c).
                    let zeroed = fallocate(fd, FallocateFlags::ZERO_RANGE, address, length);
                    match zeroed.map_err(Errno::from) {
                        Err(Errno::OPNOTSUPP) => write_zeros(fd, address, length)?,
                        zeroed => zeroed?,
                    }
                }
                flush_if_durable(fd, request)
            }
            Op::Read | Op::Write | Op::Flush => transfer(fd, request),
        }
    }
}

/// True if this back end serves such a file.
pub(super) fn serves(metadata: &Metadata) -> bool {
    metadata.file_type().is_block_device()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_split_at_the_limit() {
        let parts: Vec<_> = split_range((100, 25), 10).collect();
        assert_eq!(parts, [(100, 10), (110, 10), (120, 5)]);
        assert_eq!(split_range((100, 0), 10).count(), 0);
    }
}
