//! The open files of a job, for the engines that use the kernel's file layer.

use uringfs::Errno;

use super::{Io, Setup, SyncKind};
use crate::Error;
use crate::targets::{Target, drop_page_cache};
use crate::workload::IoOp;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};

/// The open files; `Io::file` is the index.
pub struct Files {
    files: Vec<File>,
    /// Whether I/O goes through the kernel's page cache.
    cached: bool,
}

impl Files {
    /// An empty list.
    pub fn none() -> Self {
        Self { files: Vec::new(), cached: false }
    }

    /// Opens the files of a job.
    pub fn open(setup: &Setup<'_>) -> Result<Self, Error> {
        let open = |target: &Target| target.open(setup.access);
        let files = setup.targets.iter().map(open).collect::<Result<Vec<_>, _>>()?;
        Ok(Self { files, cached: !setup.access.direct })
    }

    /// The descriptors.
    pub fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        self.files.iter().map(AsFd::as_fd).collect()
    }

    /// One pread or pwrite.
    #[inline]
    pub fn transfer(&self, io: Io, bytes: &mut [u8]) -> Result<u32, Errno> {
        let file = &self.files[io.file as usize];
        let moved = match io.op {
            IoOp::Read => rustix::io::pread(file, bytes, io.offset),
            IoOp::Write => rustix::io::pwrite(file, bytes, io.offset),
        };
        Ok(moved? as u32)
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
