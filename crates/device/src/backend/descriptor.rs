//! Opens descriptors and moves bytes through them, in the calling thread. Shared by the
//! back ends of files and block devices.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags, fdatasync, open};
use rustix::io::{ReadWriteFlags, pread, preadv2, pwrite, pwritev2};
use uringfs_buffer::Buffer;
use uringfs_errno::Errno;

use crate::request::{Durability, Op, Payload, Request};

/// The longest write of zeros, when the kernel has no better way to zero.
const MAX_ZEROS: u64 = 1 << 20;

/// Opens `path` with O_DIRECT if the file system supports it. Returns true if it does.
pub(super) fn open_direct(
    path: &Path,
    flags: OFlags,
    mode: Mode,
) -> Result<(OwnedFd, bool), Errno> {
    let flags = flags | OFlags::CLOEXEC;
    match open(path, flags | OFlags::DIRECT, mode).map_err(Errno::from) {
        Err(Errno::INVAL) => Ok((open(path, flags, mode)?, false)),
        fd => Ok((fd?, true)),
    }
}

/// Executes the next step of a read, a write or a flush. EINVAL for other operations.
#[inline]
pub(super) fn transfer(fd: BorrowedFd<'_>, request: &mut Request) -> Result<u32, Errno> {
    let done = request.done();
    let Some(address) = request.address.checked_add(done) else { return Err(Errno::INVAL) };
    let durable = request.durability == Durability::Durable;
    let start = done as usize;
    let moved = match (request.op, &mut request.payload) {
        (Op::Flush, _) => fdatasync(fd).map(|()| 0),
        (Op::Read, Payload::Buffer(buffer)) => pread(fd, &mut buffer[start..], address),
        (Op::Write, Payload::Buffer(buffer)) if !durable => pwrite(fd, &buffer[start..], address),
        (Op::Read, Payload::Buffers(_)) => {
            let mut segments: Vec<_> = request.segments_mut().map(IoSliceMut::new).collect();
            preadv2(fd, &mut segments, address, ReadWriteFlags::empty())
        }
        (Op::Write, Payload::Buffer(_) | Payload::Buffers(_)) => {
            let segments: Vec<_> = request.segments().map(IoSlice::new).collect();
            pwritev2(fd, &segments, address, write_flags(durable))
        }
        _ => return Err(Errno::INVAL),
    };
    Ok(moved? as u32)
}

fn write_flags(durable: bool) -> ReadWriteFlags {
    if durable { ReadWriteFlags::DSYNC } else { ReadWriteFlags::empty() }
}

/// Writes zeros over the whole range, in bounded chunks.
pub(super) fn write_zeros(fd: BorrowedFd<'_>, mut address: u64, length: u64) -> Result<(), Errno> {
    let zeros = Buffer::zeroed(length.min(MAX_ZEROS) as usize);
    let end = address.checked_add(length).ok_or(Errno::INVAL)?;
    while address < end {
        let chunk = (end - address).min(MAX_ZEROS) as usize;
        match pwrite(fd, &zeros[..chunk], address).map_err(Errno::from) {
            Ok(0) => return Err(Errno::IO),
            Ok(written) => address += written as u64,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The range of a discard or zeroing, as address and length.
pub(super) fn range(request: &Request) -> (u64, u64) {
    (request.address + request.done(), request.remaining())
}

/// Flushes if the request is durable. Returns 0, the result of a request without memory.
pub(super) fn flush_if_durable(fd: BorrowedFd<'_>, request: &Request) -> Result<u32, Errno> {
    if request.durability == Durability::Durable {
        fdatasync(fd)?;
    }
    Ok(0)
}
