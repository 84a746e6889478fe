//! The open files of a job, for the engines that use the kernel's file layer.

use uringfs::Errno;

use super::{Io, Setup, SyncKind};
use crate::Error;
use crate::targets::{Target, drop_page_cache};
use crate::workload::IoOp;
use rustix::fs::FallocateFlags;
use std::fs::File;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileTypeExt;
use uringfs::device::backend::block;
use uringfs_ring::raw_calls;

/// The open files; `Io::file` is the index.
pub struct Files {
    files: Vec<File>,
    /// Whether each of them is a block device.
    are_devices: Vec<bool>,
    /// Whether I/O goes through the kernel's page cache.
    cached: bool,
}

impl Files {
    /// An empty list.
    pub fn none() -> Self {
        Self { files: Vec::new(), are_devices: Vec::new(), cached: false }
    }

    /// Whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Opens the files of a job.
    pub fn open(setup: &Setup<'_>) -> Result<Self, Error> {
        let open = |target: &Target| target.open(setup.access);
        let files = setup.targets.iter().map(open).collect::<Result<Vec<_>, _>>()?;
        let is_device = |file: &File| {
            let found = file.metadata();
            found.is_ok_and(|found| found.file_type().is_block_device())
        };
        let are_devices = files.iter().map(is_device).collect();
        Ok(Self { files, are_devices, cached: !setup.access.direct })
    }

    /// The descriptors.
    pub fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        self.files.iter().map(AsFd::as_fd).collect()
    }

    /// One pread, pwrite or trim. `buffer` has at least the bytes of a read or write.
    #[inline]
    pub fn perform(&self, io: Io, buffer: &mut [u8]) -> Result<u32, Errno> {
        let file = &self.files[io.file as usize];
        let moved = match io.op {
            IoOp::Read => rustix::io::pread(file, &mut buffer[..io.length as usize], io.offset),
            IoOp::Write => rustix::io::pwrite(file, &buffer[..io.length as usize], io.offset),
            IoOp::Trim => return self.trim(io),
        };
        Ok(moved? as u32)
    }

    /// Discards a range of a block device, or punches a hole into a file. Without files it does nothing.
    pub fn trim(&self, io: Io) -> Result<u32, Errno> {
        let Some(file) = self.files.get(io.file as usize) else { return Ok(io.length) };
        if self.are_devices[io.file as usize] {
            block::discard(file.as_fd(), io.offset, io.length.into())?;
        } else {
            let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            rustix::fs::fallocate(file, hole, io.offset, io.length.into())?;
        }
        Ok(io.length)
    }

    /// One fsync or fdatasync. Without files it does nothing.
    pub fn sync(&self, file: u32, kind: SyncKind) -> Result<(), Errno> {
        let Some(file) = self.files.get(file as usize) else { return Ok(()) };
        let synced = match kind {
            SyncKind::Full => rustix::fs::fsync(file),
            SyncKind::Data => rustix::fs::fdatasync(file),
        };
        Ok(synced?)
    }

    /// Writes back a range of a file's cached pages: `sync_file_range`. Without files it does nothing.
    pub fn write_back(&self, file: u32, range: Range<u64>, flags: u32) -> Result<(), Errno> {
        let Some(file) = self.files.get(file as usize) else { return Ok(()) };
        raw_calls::sync_file_range(file.as_fd(), range.start, range.end - range.start, flags)
    }

    /// Writes the cached pages of a file to its device and drops them.
    pub fn sync_and_drop_cache(&self, file: u32) -> Result<(), Errno> {
        if self.cached {
            // The kernel does not drop dirty pages.
            self.sync(file, SyncKind::Data)?;
            self.files.get(file as usize).into_iter().for_each(drop_page_cache);
        }
        Ok(())
    }
}
