//! [`AsyncVolume`]: the calls of a volume as futures, for tasks.

use uringfs_file::File;

use crate::core::blocking::WaitMode;
use crate::error::Error;
use crate::namespace::directory::{DirectoryEntry, Rename};
use crate::namespace::open_options::OpenOptions;
use crate::namespace::operations;
use crate::namespace::path::Follow;
use crate::records::inode::{FileKind, Inode, InodeNumber};
use crate::volume::volume::Volume;
use crate::volume::xattr::{self, SetXattr};

/// A [`Volume`] whose calls are futures, on a reactor or any other executor. They do not block their thread: a
/// thread of the volume reads from the device, and the commit thread wakes tasks that wait for a commit. A dropped
/// future has done all of its work or none. Two exceptions: a dropped resize may still happen, with a later commit,
/// and a dropped sync may have written back some files.
///
/// Each call does what the call of [`Volume`] with its name does, with the same errors.
#[derive(Clone)]
pub struct AsyncVolume {
    pub(crate) volume: Volume,
}

impl Volume {
    /// The same volume with async calls, which do not block their thread.
    pub fn in_tasks(&self) -> AsyncVolume {
        AsyncVolume { volume: self.clone() }
    }
}

#[expect(clippy::missing_errors_doc, reason = "they are those of Volume")]
impl AsyncVolume {
    /// The same volume with blocking calls.
    pub fn volume(&self) -> &Volume {
        &self.volume
    }

    /// See [`Volume::open`].
    pub async fn open(&self, path: impl AsRef<[u8]>, options: OpenOptions) -> Result<File, Error> {
        self.volume.open_in_mode(WaitMode::Async, path.as_ref(), options).await
    }

    /// See [`Volume::make`].
    pub async fn make(&self, path: impl AsRef<[u8]>, inode: Inode) -> Result<InodeNumber, Error> {
        self.volume.change(WaitMode::Async, operations::make(path.as_ref(), &inode)).await
    }

    /// See [`Volume::make_directory`].
    pub async fn make_directory(
        &self,
        path: impl AsRef<[u8]>,
        permissions: u16,
    ) -> Result<(), Error> {
        self.make(path, Inode::new(FileKind::Directory, permissions)).await.map(drop)
    }

    /// See [`Volume::make_symlink`].
    pub async fn make_symlink(&self, target: &[u8], path: impl AsRef<[u8]>) -> Result<(), Error> {
        self.make(path, Inode::symlink(target)?).await.map(drop)
    }

    /// See [`Volume::link`].
    pub async fn link(&self, path: impl AsRef<[u8]>, new: impl AsRef<[u8]>) -> Result<(), Error> {
        self.volume.change(WaitMode::Async, operations::link(path.as_ref(), new.as_ref())).await
    }

    /// See [`Volume::remove`].
    pub async fn remove(&self, path: impl AsRef<[u8]>) -> Result<(), Error> {
        self.volume.change(WaitMode::Async, operations::remove(path.as_ref())).await
    }

    /// See [`Volume::remove_directory`].
    pub async fn remove_directory(&self, path: impl AsRef<[u8]>) -> Result<(), Error> {
        self.volume.change(WaitMode::Async, operations::remove_directory(path.as_ref())).await
    }

    /// See [`Volume::rename`].
    pub async fn rename(
        &self,
        path: impl AsRef<[u8]>,
        new: impl AsRef<[u8]>,
        how: Rename,
    ) -> Result<(), Error> {
        self.volume
            .change(WaitMode::Async, operations::rename(path.as_ref(), new.as_ref(), how))
            .await
    }

    /// See [`Volume::inode`].
    pub async fn inode(
        &self,
        path: impl AsRef<[u8]>,
        follow: Follow,
    ) -> Result<(InodeNumber, Inode), Error> {
        self.volume
            .shared
            .run_transaction(WaitMode::Async, operations::inode(path.as_ref(), follow))
            .await
    }

    /// See [`Volume::set_attributes`].
    pub async fn set_attributes(
        &self,
        path: impl AsRef<[u8]>,
        follow: Follow,
        set: impl Fn(&mut Inode),
    ) -> Result<(), Error> {
        let operation = operations::set_attributes(path.as_ref(), follow, set);
        self.volume.change(WaitMode::Async, operation).await
    }

    /// See [`Volume::entries`].
    pub async fn entries(
        &self,
        path: impl AsRef<[u8]>,
        after: &[u8],
    ) -> Result<Vec<DirectoryEntry>, Error> {
        self.volume
            .shared
            .run_transaction(WaitMode::Async, operations::entries(path.as_ref(), after))
            .await
    }

    /// See [`Volume::xattr`].
    pub async fn xattr(
        &self,
        path: impl AsRef<[u8]>,
        follow: Follow,
        name: impl AsRef<[u8]>,
    ) -> Result<Vec<u8>, Error> {
        let operation = xattr::get(path.as_ref(), follow, name.as_ref());
        self.volume.shared.run_transaction(WaitMode::Async, operation).await
    }

    /// See [`Volume::xattrs`].
    pub async fn xattrs(
        &self,
        path: impl AsRef<[u8]>,
        follow: Follow,
    ) -> Result<Vec<Vec<u8>>, Error> {
        self.volume
            .shared
            .run_transaction(WaitMode::Async, xattr::list(path.as_ref(), follow))
            .await
    }

    /// See [`Volume::set_xattr`].
    pub async fn set_xattr(
        &self,
        path: impl AsRef<[u8]>,
        follow: Follow,
        name: impl AsRef<[u8]>,
        value: &[u8],
        how: SetXattr,
    ) -> Result<(), Error> {
        let operation = xattr::set(path.as_ref(), follow, name.as_ref(), value, how);
        self.volume.change(WaitMode::Async, operation).await
    }

    /// See [`Volume::remove_xattr`].
    pub async fn remove_xattr(
        &self,
        path: impl AsRef<[u8]>,
        follow: Follow,
        name: impl AsRef<[u8]>,
    ) -> Result<(), Error> {
        let operation = xattr::remove(path.as_ref(), follow, name.as_ref());
        self.volume.change(WaitMode::Async, operation).await
    }

    /// See [`Volume::resize`].
    pub async fn resize(&self, bytes: u64) -> Result<(), Error> {
        self.volume.resize_in_mode(WaitMode::Async, bytes).await
    }

    /// See [`Volume::sync`].
    pub async fn sync(&self) -> Result<(), Error> {
        self.volume.sync_in_mode(WaitMode::Async).await
    }
}
