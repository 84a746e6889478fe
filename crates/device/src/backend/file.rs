//! An ordinary file as a device.
//!
//! Bypasses the page cache (O_DIRECT) if the file system supports it. Completed
//! writes count as volatile, whatever the disk below is: a write into a hole is
//! lost without the file system's own metadata, which wait for a flush.
//!
//! A file that ends inside a block goes through the page cache, with a block size
//! of one byte: a direct write of its last block would make it longer.

use std::fs::Metadata;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, FallocateFlags, Mode, OFlags, Statx, StatxFlags, fallocate, fdatasync, fstatfs,
    ftruncate, open, statx, unlink,
};
use rustix::io::pread;
use uringfs_buffer::Buffer;
use uringfs_errno::Errno;

use super::descriptor::{flush_if_durable, open_direct, range, transfer, write_zeros};
use super::open_error::{create_error, open_error};
use super::sysfs;
use crate::geometry::{Discard, Geometry};
use crate::interface::backend::{Access, Backend, KernelTarget};
use crate::request::{Op, Request};

/// The longest transfer. The kernel itself splits for the device, so the only limit is
/// its own (`MAX_RW_COUNT`, just under 2 GiB).
const MAX_TRANSFER: u32 = 1 << 30;

/// The magic numbers of file systems that zero a range without writing it: ext4, XFS,
/// btrfs, f2fs (`FALLOC_FL_ZERO_RANGE` in fallocate(2)).
const ZEROING: [u64; 4] = [0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010];

/// The magic numbers of file systems that execute `RWF_DSYNC` of a direct write, by a flush or by FUA: ext2 to ext4, XFS,
/// btrfs, f2fs, tmpfs. Others may ignore it (FUSE, 9p and SMB do), so a write there needs a flush after it.
const SYNCING: [u64; 5] = [0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010, 0x0102_1994];

/// When the blocks of a new file are allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allocation {
    /// When they are written: uses no space at first, and may run out of space later.
    Sparse,
    /// At creation, as unwritten blocks: the first write of each also changes metadata.
    Reserved,
    /// At creation, filled with zeros: every later write is a plain overwrite.
    Written,
}

/// An ordinary file.
#[derive(Debug)]
pub struct File {
    fd: OwnedFd,
    path: PathBuf,
    geometry: Geometry,
}

impl File {
    /// Opens the file `path`, with O_DIRECT if the file system supports it.
    ///
    /// # Errors
    /// In one line why it cannot be opened, with the path and what to do.
    pub fn open(path: &Path, access: Access) -> io::Result<File> {
        let fd = open_direct(path, access_flags(access), Mode::empty())
            .map_err(|errno| open_error(path, access, errno))?;
        File::from_descriptor(fd, path, access).map_err(|errno| open_error(path, access, errno))
    }

    /// Creates a file of `size` bytes, open for reading and writing. `path` must not
    /// exist. If the allocation fails, the file is removed.
    ///
    /// # Errors
    /// `AlreadyExists`; errors of the file system (`StorageFull` ...), with the path.
    pub fn create(path: &Path, size: u64, allocation: Allocation) -> io::Result<File> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let with_path = |errno: Errno| create_error(path, errno);
        let fd = open(path, flags, Mode::from_raw_mode(0o644))
            .map_err(|errno| with_path(errno.into()))?;
        if let Err(errno) = allocate(fd.as_fd(), size, allocation) {
            // The file was just created, so it has no other user.
            let _ = unlink(path);
            return Err(with_path(errno));
        }
        drop(fd);
        File::open(path, Access::ReadWrite)
    }

    fn from_descriptor(
        (fd, direct): (OwnedFd, bool),
        path: &Path,
        access: Access,
    ) -> Result<File, Errno> {
        let wanted = StatxFlags::BASIC_STATS | StatxFlags::DIOALIGN;
        let status = statx(&fd, c"", AtFlags::EMPTY_PATH, wanted)?;
        let direct = direct && !direct_is_refused(&status);
        let alignment = direct.then(|| direct_alignment(fd.as_fd(), &status));
        let whole = |(_, block): &(u32, u32)| status.stx_size.is_multiple_of(*block as u64);
        let alignment = alignment.filter(whole);
        let fd = if alignment.is_some() { fd } else { buffered(fd)? };
        let geometry = geometry(fd.as_fd(), &status, alignment, access);
        Ok(File { fd, path: path.to_owned(), geometry })
    }
}

fn access_flags(access: Access) -> OFlags {
    match access {
        Access::Read => OFlags::RDONLY,
        Access::ReadWrite => OFlags::RDWR,
    }
}

/// True if statx(2) reports both alignments as 0: the file does not support direct I/O.
fn direct_is_refused(status: &Statx) -> bool {
    status.stx_mask & StatxFlags::DIOALIGN.bits() != 0 && status.stx_dio_offset_align == 0
}

fn size(fd: BorrowedFd<'_>, flags: AtFlags) -> Result<u64, Errno> {
    Ok(statx(fd, c"", AtFlags::EMPTY_PATH | flags, StatxFlags::SIZE)?.stx_size)
}

fn buffered(fd: OwnedFd) -> Result<OwnedFd, Errno> {
    let flags = rustix::fs::fcntl_getfl(&fd)?;
    rustix::fs::fcntl_setfl(&fd, flags - OFlags::DIRECT)?;
    Ok(fd)
}

/// `alignment` is that of memory and that of addresses, for a file with direct I/O.
fn geometry(
    fd: BorrowedFd<'_>,
    status: &Statx,
    alignment: Option<(u32, u32)>,
    access: Access,
) -> Geometry {
    let disk = sysfs::limits(status.stx_dev_major, status.stx_dev_minor);
    let direct = alignment.is_some();
    let buffered_block = if status.stx_size.is_multiple_of(512) { 512 } else { 1 };
    let (memory_alignment, block_size) = alignment.unwrap_or((1, buffered_block));
    let file_block = status.stx_blksize.clamp(block_size, 64 << 10);
    let writable = access == Access::ReadWrite;
    let file_system = fstatfs(fd).map_or(0, |found| found.f_type as u64);
    let syncs = direct && SYNCING.contains(&file_system);
    Geometry {
        size: status.stx_size,
        block_size,
        physical_block_size: if file_block.is_power_of_two() { file_block } else { block_size },
        memory_alignment,
        max_transfer: MAX_TRANSFER,
        volatile_cache: true,
        cached_in_process: false,
        fua: syncs && (disk.fua || !disk.volatile_cache),
        durable_writes: syncs,
        discard: (writable && punches_holes(fd, status.stx_size))
            .then_some(Discard { granularity: file_block, max_bytes: u64::MAX >> 1 }),
        write_zeroes: writable && ZEROING.contains(&file_system),
        read_only: !writable,
        rotational: disk.rotational,
        direct,
    }
}

/// The alignment of memory and of addresses: from statx (Linux 6.1), else found by a
/// trial read.
fn direct_alignment(fd: BorrowedFd<'_>, status: &Statx) -> (u32, u32) {
    if status.stx_dio_offset_align != 0 {
        return (status.stx_dio_mem_align.max(1), status.stx_dio_offset_align);
    }
    let mut block = Buffer::zeroed(512);
    // A read of an empty file returns before the kernel checks alignment.
    let fine = status.stx_size >= 1024 && pread(fd, &mut block[..], 512).is_ok();
    if fine { (512, 512) } else { (4096, 4096) }
}

/// Tries it past the end of the file, where no data can be lost.
fn punches_holes(fd: BorrowedFd<'_>, size: u64) -> bool {
    let beyond = size.next_multiple_of(64 << 10);
    punch(fd, beyond, 64 << 10).is_ok()
}

fn punch(fd: BorrowedFd<'_>, address: u64, length: u64) -> Result<(), Errno> {
    Ok(fallocate(fd, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, address, length)?)
}

fn allocate(fd: BorrowedFd<'_>, size: u64, allocation: Allocation) -> Result<(), Errno> {
    ftruncate(fd, size)?;
    if size == 0 {
        return Ok(());
    }
    match allocation {
        Allocation::Sparse => Ok(()),
        Allocation::Reserved => Ok(fallocate(fd, FallocateFlags::empty(), 0, size)?),
        Allocation::Written => {
            // Detects a full disk before anything is written. Not every file system
            // supports it.
            match fallocate(fd, FallocateFlags::empty(), 0, size).map_err(Errno::from) {
                Ok(()) | Err(Errno::OPNOTSUPP) => {}
                Err(error) => return Err(error),
            }
            write_zeros(fd, 0, size)?;
            Ok(fdatasync(fd)?)
        }
    }
}

impl Backend for File {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn size(&self) -> Result<u64, Errno> {
        // Without waiting for a server of files.
        size(self.fd.as_fd(), AtFlags::STATX_DONT_SYNC)
    }

    fn ask_size(&self) -> Result<u64, Errno> {
        size(self.fd.as_fd(), AtFlags::empty())
    }

    fn description(&self) -> String {
        format!("file {}", self.path.display())
    }

    fn kernel_target(&self) -> KernelTarget<'_> {
        KernelTarget::Descriptor(self.fd.as_fd())
    }

    fn perform(&self, request: &mut Request) -> Result<u32, Errno> {
        let fd = self.fd.as_fd();
        match request.op {
            Op::Discard => {
                let (address, length) = range(request);
                punch(fd, address, length)?;
                flush_if_durable(fd, request)
            }
            Op::WriteZeroes => {
                let (address, length) = range(request);
                let zeroed = match self.geometry.write_zeroes {
                    true => fallocate(fd, FallocateFlags::ZERO_RANGE, address, length)
                        .map_err(Errno::from),
                    false => Err(Errno::OPNOTSUPP),
                };
                match zeroed {
                    Err(Errno::OPNOTSUPP) => write_zeros(fd, address, length)?,
                    zeroed => zeroed?,
                }
                flush_if_durable(fd, request)
            }
            Op::Read | Op::Write | Op::Flush => transfer(fd, request),
        }
    }
}

/// True if this back end serves such a file.
pub(super) fn serves(metadata: &Metadata) -> bool {
    metadata.is_file()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_created_file_has_its_size_and_is_never_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("image");
        for allocation in [Allocation::Sparse, Allocation::Reserved, Allocation::Written] {
            let file = File::create(&path, 3 << 20, allocation).unwrap();
            assert_eq!(file.geometry().size, 3 << 20);
            assert!(file.geometry().block_size.is_power_of_two());
            let error = File::create(&path, 1, allocation).err().unwrap();
            assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
            assert!(error.to_string().contains("image"), "{error}");
            assert_eq!(std::fs::metadata(&path).unwrap().len(), 3 << 20);
            std::fs::remove_file(&path).unwrap();
        }
    }

    #[test]
    fn a_file_that_cannot_be_allocated_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("image");
        let error = File::create(&path, 1 << 60, Allocation::Reserved).err().unwrap();
        assert!(error.to_string().contains("image"), "{error}");
        assert!(!path.exists());
    }

    #[test]
    fn a_file_of_odd_length_keeps_its_length() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("odd");
        std::fs::write(&path, [1; 1000]).unwrap();
        let file = File::open(&path, Access::Read).unwrap();
        assert_eq!((file.geometry().size, file.geometry().block_size), (1000, 1));
        assert!(!file.geometry().direct);
        assert!(file.geometry().read_only && file.geometry().discard.is_none());
    }

    #[test]
    fn completed_writes_of_a_file_are_volatile() {
        let folder = tempfile::tempdir().unwrap();
        let file = File::create(&folder.path().join("a"), 4096, Allocation::Sparse).unwrap();
        assert!(file.geometry().volatile_cache);
    }
}
