//! redb's storage backends over a store: one to read and write, one that only reads records.

use std::io;
use std::ops::Bound;
use std::sync::Arc;

use redb::{BackendError, StorageBackend};

use super::header::{FLAGS_OFFSET, RECOVERY_REQUIRED};
use super::store::Store;

/// A store that redb reads and writes.
#[derive(Debug)]
pub(super) struct ReadWriteBackend(pub(super) Arc<Store>);

impl StorageBackend for ReadWriteBackend {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.length())
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.read(offset, out).map_err(io::Error::other)
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        self.0.set_length(length).map_err(io::Error::other)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync().map_err(io::Error::other)
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write(offset, data).map_err(io::Error::other)
    }
}

/// A store that redb only reads, as it does beside a writer. redb then reads none of its own pages,
/// such as the map of free ones, so damage in those does not block the records. No writer changes the
/// pages: the volume's lock or a [`super::pin::PagePin`] ensures that, so all locks here are free.
#[derive(Debug)]
pub(super) struct ReadOnlyBackend(pub(super) Arc<Store>);

impl StorageBackend for ReadOnlyBackend {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.length())
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.read(offset, out).map_err(io::Error::other)?;
        if offset == 0
            && let Some(flags) = out.get_mut(FLAGS_OFFSET)
        {
            *flags &= !RECOVERY_REQUIRED;
        }
        Ok(())
    }

    fn set_len(&self, _length: u64) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn sync_data(&self) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn write(&self, _offset: u64, _data: &[u8]) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn try_lock_shared_range(
        &self,
        _start: Bound<u64>,
        _end: Bound<u64>,
    ) -> Result<bool, BackendError> {
        Ok(true)
    }

    fn lock_shared_range(&self, _start: Bound<u64>, _end: Bound<u64>) -> Result<(), BackendError> {
        Ok(())
    }

    fn unlock_range(&self, _start: Bound<u64>, _end: Bound<u64>) -> Result<(), BackendError> {
        Ok(())
    }

    fn query_lock_range(&self, _start: Bound<u64>, _end: Bound<u64>) -> Result<bool, BackendError> {
        Ok(false)
    }
}
