//! Opens a file by path.

use std::path::Path;

use uringfs_cache::Cache;
use uringfs_device::Errno;
use uringfs_file::{ChangeGuard, File};
use uringfs_reactor::ForkDetector;

use crate::core::blocking::{WaitMode, run_blocking};
use crate::error::{Error, OfPath};
use crate::namespace::credentials::Credentials;
use crate::namespace::open_options::OpenOptions;
use crate::namespace::operations::{find, find_or_make, strip_privileges};
use crate::namespace::path::bytes;
use crate::namespace::transaction::{Retry, Transaction};
use crate::records::inode::{FileType, Inode, InodeNumber};
use crate::volume::file_map::VolumeMap;
use crate::volume::volume::Volume;

impl Volume {
    /// Opens a file for reading, through the page cache. Follows a symbolic link at the end of the path.
    /// Opening is cheap, so that a server may open a file for each request.
    ///
    /// # Errors
    /// ENOENT, EISDIR and other errors of paths; errors of the catalog.
    pub fn open_file(&self, path: impl AsRef<Path>) -> Result<File, Error> {
        self.open_with(path, OpenOptions::new().read(true))
    }

    /// Creates a file, or truncates it, and opens it for reading and writing, through the page cache. The permissions of
    /// a new one are 0o644.
    ///
    /// # Errors
    /// As [`Self::open_with`].
    pub fn create_file(&self, path: impl AsRef<Path>) -> Result<File, Error> {
        self.open_with(path, created())
    }

    /// Opens a file with options. Follows a symbolic link at the end of the path. Reads and writes go through the page
    /// cache, and unsynced writes are lost with the process, unless it is opened [`direct`](OpenOptions::direct).
    /// [`File::direct`] and [`File::buffered`] return a handle of the other kind to the same file.
    ///
    /// # Errors
    /// ENOENT, EEXIST, EISDIR and other errors of paths; EROFS for writing in a volume that is read-only; EINVAL if it
    /// may neither read nor write, and if it may create or truncate, but not write; errors of the catalog.
    pub fn open_with(&self, path: impl AsRef<Path>, options: OpenOptions) -> Result<File, Error> {
        run_blocking(self.open_in_mode(WaitMode::Blocking, bytes(&path), options))
    }
}

impl OpenOptions {
    /// Opens a file: [`Volume::open_with`].
    ///
    /// # Errors
    /// As [`Volume::open_with`].
    pub fn open(self, volume: &Volume, path: impl AsRef<Path>) -> Result<File, Error> {
        volume.open_with(path, self)
    }
}

/// As `std::fs::File::create` opens a file, but also for reading.
pub(crate) fn created() -> OpenOptions {
    OpenOptions::new().read(true).write(true).create(true).truncate(true)
}

impl Volume {
    pub(crate) async fn open_in_mode(
        &self,
        mode: WaitMode,
        path: &[u8],
        options: OpenOptions,
    ) -> Result<File, Error> {
        self.check_open_options(&options).of_path(path)?;
        let _change = self.begin_open(mode, &options).await.of_path(path)?;
        if !options.create && !options.create_new {
            return self.open_found(mode, path, options, find(path)).await.of_path(path);
        }
        let mut new = Inode::new(FileType::File, options.mode);
        if let Credentials::User { user, group } = options.credentials {
            (new.user, new.group) = (user, group);
        }
        let found = find_or_make(path, &new, options);
        self.open_found(mode, path, options, found).await.of_path(path)
    }

    /// Begins the change that an opening may be: it may create a file, or truncate it.
    pub(crate) async fn begin_open(
        &self,
        mode: WaitMode,
        options: &OpenOptions,
    ) -> Result<Option<ChangeGuard<'_>>, Error> {
        match options.needs_write() {
            true => self.begin_change(mode).await.map(Some),
            false => Ok(None),
        }
    }

    /// Checks that options fit together and to the volume.
    pub(crate) fn check_open_options(&self, options: &OpenOptions) -> Result<(), Error> {
        if options.needs_write() && !options.write {
            let what = "a file is created or truncated only if it is opened with `.write(true)`";
            return Err(Error::refused(Errno::INVAL, what));
        }
        if !options.read && !options.write {
            let what = "a file is opened with `.read(true)`, `.write(true)` or both";
            return Err(Error::refused(Errno::INVAL, what));
        }
        if options.write && self.is_read_only() {
            return Err(self.read_only());
        }
        Ok(())
    }

    /// Opens the file that `find` returns for `path`. If that changes something, the caller has begun a change.
    pub(crate) async fn open_found(
        &self,
        mode: WaitMode,
        path: &[u8],
        options: OpenOptions,
        find: impl FnMut(&mut Transaction<'_>) -> Result<InodeNumber, Retry>,
    ) -> Result<File, Error> {
        let open = self.shared.open(mode, path, find).await?;
        let (device, lock) = (self.shared.device.clone(), open.lock.clone());
        let map = VolumeMap {
            file: open,
            volume: self.of_file(),
            is_superuser: options.credentials == Credentials::Superuser,
            access_time: options.access_time,
            is_readable: options.read,
            is_writable: options.write,
            fork: ForkDetector::default(),
        };
        if options.truncate {
            if map.must_strip_privileges() {
                let strip = strip_privileges(&map.file, map.is_superuser);
                self.shared.run_transaction(mode, strip).await?;
            }
            // Check the cache first: blocks that are written back in between are in the map by then.
            if lock.has_dirty() || !map.file.is_empty() {
                self.shared.truncate_to_zero(&map.file);
            }
            map.touch();
        }
        let file = File::with_resizable_map(device, map, lock, options.file);
        if options.direct {
            return Ok(file);
        }
        let cache = self.shared.page_cache.clone().unwrap_or_else(Cache::of_process);
        Ok(file.buffered(&cache))
    }
}
