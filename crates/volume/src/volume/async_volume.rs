//! [`AsyncVolume`]: the calls of a volume as futures, for tasks.

use std::fs::Permissions;
use std::path::{Path, PathBuf};

use uringfs_file::File;

use crate::core::blocking::WaitMode;
use crate::error::{Error, OfPath};
use crate::namespace::directory::{Link, Rename};
use crate::namespace::open_options::OpenOptions;
use crate::namespace::operations;
use crate::namespace::path::{Follow, InodeAt, NameAt, bytes};
use crate::records::inode::{FileType, Inode, InodeNumber};
use crate::volume::metadata::{FileTimes, Metadata};
use crate::volume::names::{exists, new_directory, permissions_setter};
use crate::volume::open::created;
use crate::volume::read_dir::{AsyncReadDir, DirEntry, ReadDir};
use crate::volume::volume::Volume;
use crate::volume::xattr::{self, SetXattr};

/// A [`Volume`] whose calls are futures, on a reactor or any other executor. They do not block their thread: a
/// thread of the volume reads from the device, and the commit thread wakes tasks that wait for a commit. A dropped
/// future has done all of its work or none. Exceptions: a dropped resize may still happen, with a later commit; a dropped
/// sync may have written back some files; and `create_dir_all`, `remove_dir_all`, `write` and `copy` are several steps.
///
/// Each call does what the call of [`Volume`] with its name does, with the same errors. [`AsyncVolume::open`],
/// [`AsyncVolume::create`] and [`AsyncVolume::close`] run it on a thread of their own.
///
/// ```
/// # mod uringfs { pub use uringfs_reactor::*; pub use uringfs_volume::*; }
/// use uringfs::{AsyncVolume, FormatOptions, Reactor, ReactorOptions, Volume};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let volume = Volume::create(folder.path().join("image"), &FormatOptions::new().size(64 << 20))?;
/// let volume = AsyncVolume::from(volume);
/// // Any executor will do.
/// Reactor::new(ReactorOptions::new())?.block_on(async {
///     volume.create_dir("/new").await?;
///     volume.write("/new/file", "text").await?;
///     assert_eq!(volume.metadata("/new/file").await?.len(), 4);
///     volume.sync().await
/// })?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct AsyncVolume {
    pub(crate) volume: Volume,
}

impl Volume {
    /// Another handle of the same volume, with async calls, which do not block their thread. While this one is alive, too,
    /// [`AsyncVolume::close`] fails: `AsyncVolume::from(volume)` leaves none behind.
    pub fn as_async(&self) -> AsyncVolume {
        self.clone().into()
    }
}

#[expect(clippy::missing_errors_doc, reason = "they are those of Volume")]
impl AsyncVolume {
    /// The same volume with blocking calls.
    pub fn volume(&self) -> &Volume {
        &self.volume
    }

    /// See [`Volume::open_file`].
    pub async fn open_file(&self, path: impl AsRef<Path>) -> Result<File, Error> {
        self.open_with(path, OpenOptions::new().read(true)).await
    }

    /// See [`Volume::create_file`].
    pub async fn create_file(&self, path: impl AsRef<Path>) -> Result<File, Error> {
        self.open_with(path, created()).await
    }

    /// See [`Volume::open_with`].
    pub async fn open_with(
        &self,
        path: impl AsRef<Path>,
        options: OpenOptions,
    ) -> Result<File, Error> {
        self.volume.open_in_mode(WaitMode::Async, bytes(&path), options).await
    }

    /// See [`Volume::read`].
    pub async fn read(&self, path: impl AsRef<Path>) -> Result<Vec<u8>, Error> {
        self.volume.read_in_mode(WaitMode::Async, bytes(&path)).await
    }

    /// See [`Volume::write`].
    pub async fn write(
        &self,
        path: impl AsRef<Path>,
        content: impl AsRef<[u8]>,
    ) -> Result<(), Error> {
        self.volume.write_in_mode(WaitMode::Async, bytes(&path), content.as_ref()).await
    }

    /// See [`Volume::copy`].
    pub async fn copy(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<u64, Error> {
        self.volume.copy_in_mode(WaitMode::Async, bytes(&from), bytes(&to)).await
    }

    /// See [`Volume::create_dir`].
    pub async fn create_dir(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        self.mknod(path, &new_directory()).await.map(drop)
    }

    /// See [`Volume::create_dir_with_mode`].
    pub async fn create_dir_with_mode(
        &self,
        path: impl AsRef<Path>,
        mode: u32,
    ) -> Result<(), Error> {
        self.mknod(path, &Inode::new(FileType::Directory, mode as u16)).await.map(drop)
    }

    /// See [`Volume::create_dir_all`].
    pub async fn create_dir_all(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        self.volume.create_dir_all_in_mode(WaitMode::Async, path.as_ref()).await
    }

    /// See [`Volume::mknod`].
    pub async fn mknod(&self, path: impl AsRef<Path>, inode: &Inode) -> Result<InodeNumber, Error> {
        self.volume
            .change(WaitMode::Async, operations::make(NameAt::Path(bytes(&path)), inode))
            .await
            .of_path(bytes(&path))
    }

    /// See [`Volume::symlink`].
    pub async fn symlink(
        &self,
        original: impl AsRef<Path>,
        link: impl AsRef<Path>,
    ) -> Result<(), Error> {
        self.mknod(link, &Inode::symlink(bytes(&original))?).await.map(drop)
    }

    /// See [`Volume::read_link`].
    pub async fn read_link(&self, path: impl AsRef<Path>) -> Result<PathBuf, Error> {
        self.symlink_metadata(&path).await?.into_link().of_path(bytes(&path))
    }

    /// See [`Volume::hard_link`].
    pub async fn hard_link(
        &self,
        original: impl AsRef<Path>,
        link: impl AsRef<Path>,
    ) -> Result<(), Error> {
        let operation = operations::link(
            InodeAt::Path(bytes(&original), Follow::No),
            NameAt::Path(bytes(&link)),
            Link::NoReplace,
        );
        self.volume.change(WaitMode::Async, operation).await.of_path(bytes(&link))
    }

    /// See [`Volume::remove_file`].
    pub async fn remove_file(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        self.volume
            .change(WaitMode::Async, operations::remove(NameAt::Path(bytes(&path))))
            .await
            .of_path(bytes(&path))
    }

    /// See [`Volume::remove_dir`].
    pub async fn remove_dir(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        self.volume
            .change(WaitMode::Async, operations::remove_directory(NameAt::Path(bytes(&path))))
            .await
            .of_path(bytes(&path))
    }

    /// See [`Volume::remove_dir_all`].
    pub async fn remove_dir_all(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        self.volume.remove_dir_all_in_mode(WaitMode::Async, bytes(&path)).await
    }

    /// See [`Volume::rename`].
    pub async fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<(), Error> {
        self.rename_with(from, to, Rename::Replace).await
    }

    /// See [`Volume::rename_with`].
    pub async fn rename_with(
        &self,
        from: impl AsRef<Path>,
        to: impl AsRef<Path>,
        how: Rename,
    ) -> Result<(), Error> {
        let operation =
            operations::rename(NameAt::Path(bytes(&from)), NameAt::Path(bytes(&to)), how);
        self.volume.change(WaitMode::Async, operation).await.of_path(bytes(&to))
    }

    /// See [`Volume::read_dir`].
    pub async fn read_dir(&self, path: impl AsRef<Path>) -> Result<AsyncReadDir, Error> {
        let opened = ReadDir::open(&self.volume, WaitMode::Async, path.as_ref()).await;
        opened.map(ReadDir::into_async)
    }

    /// See [`Volume::exists`].
    pub async fn exists(&self, path: impl AsRef<Path>) -> Result<bool, Error> {
        exists(self.metadata(path).await)
    }

    /// See [`Volume::metadata`].
    pub async fn metadata(&self, path: impl AsRef<Path>) -> Result<Metadata, Error> {
        self.volume.metadata_in_mode(WaitMode::Async, bytes(&path), Follow::Yes).await
    }

    /// See [`Volume::metadata_of`].
    pub async fn metadata_of(&self, file: &File) -> Result<Metadata, Error> {
        self.volume.metadata_of_in_mode(WaitMode::Async, file).await
    }

    /// See [`Volume::symlink_metadata`].
    pub async fn symlink_metadata(&self, path: impl AsRef<Path>) -> Result<Metadata, Error> {
        self.volume.metadata_in_mode(WaitMode::Async, bytes(&path), Follow::No).await
    }

    /// See [`Volume::set_permissions`].
    pub async fn set_permissions(
        &self,
        path: impl AsRef<Path>,
        permissions: Permissions,
    ) -> Result<(), Error> {
        self.set_attributes(path, Follow::Yes, permissions_setter(&permissions)).await
    }

    /// See [`Volume::set_times`].
    pub async fn set_times(&self, path: impl AsRef<Path>, times: FileTimes) -> Result<(), Error> {
        self.set_attributes(path, Follow::Yes, |inode| times.apply(inode)).await
    }

    /// See [`Volume::chown`].
    pub async fn chown(
        &self,
        path: impl AsRef<Path>,
        user: Option<u32>,
        group: Option<u32>,
    ) -> Result<(), Error> {
        self.set_attributes(path, Follow::Yes, |inode| inode.set_owner(user, group)).await
    }

    /// See [`Volume::lchown`].
    pub async fn lchown(
        &self,
        path: impl AsRef<Path>,
        user: Option<u32>,
        group: Option<u32>,
    ) -> Result<(), Error> {
        self.set_attributes(path, Follow::No, |inode| inode.set_owner(user, group)).await
    }

    /// See [`Volume::set_attributes`].
    pub async fn set_attributes(
        &self,
        path: impl AsRef<Path>,
        follow: Follow,
        set: impl Fn(&mut Inode),
    ) -> Result<(), Error> {
        let operation = operations::set_attributes(InodeAt::Path(bytes(&path), follow), set);
        self.volume.change(WaitMode::Async, operation).await.of_path(bytes(&path))
    }

    /// See [`Volume::get_xattr`].
    pub async fn get_xattr(
        &self,
        path: impl AsRef<Path>,
        follow: Follow,
        name: impl AsRef<[u8]>,
    ) -> Result<Vec<u8>, Error> {
        let operation = xattr::get(InodeAt::Path(bytes(&path), follow), name.as_ref());
        self.volume.shared.run_transaction(WaitMode::Async, operation).await.of_path(bytes(&path))
    }

    /// See [`Volume::list_xattrs`].
    pub async fn list_xattrs(
        &self,
        path: impl AsRef<Path>,
        follow: Follow,
    ) -> Result<Vec<Vec<u8>>, Error> {
        self.volume
            .shared
            .run_transaction(WaitMode::Async, xattr::list(InodeAt::Path(bytes(&path), follow)))
            .await
            .of_path(bytes(&path))
    }

    /// See [`Volume::set_xattr`].
    pub async fn set_xattr(
        &self,
        path: impl AsRef<Path>,
        follow: Follow,
        name: impl AsRef<[u8]>,
        value: &[u8],
        how: SetXattr,
    ) -> Result<(), Error> {
        let operation = xattr::set(InodeAt::Path(bytes(&path), follow), name.as_ref(), value, how);
        self.volume.change(WaitMode::Async, operation).await.of_path(bytes(&path))
    }

    /// See [`Volume::remove_xattr`].
    pub async fn remove_xattr(
        &self,
        path: impl AsRef<Path>,
        follow: Follow,
        name: impl AsRef<[u8]>,
    ) -> Result<(), Error> {
        let operation = xattr::remove(InodeAt::Path(bytes(&path), follow), name.as_ref());
        self.volume.change(WaitMode::Async, operation).await.of_path(bytes(&path))
    }

    /// See [`Volume::sync`].
    pub async fn sync(&self) -> Result<(), Error> {
        self.volume.sync_in_mode(WaitMode::Async).await
    }
}

impl DirEntry {
    /// [`Self::metadata`] for tasks: does not block the thread.
    ///
    /// ```
    /// # use uringfs_volume as uringfs;
    /// # use uringfs::{FormatOptions, Volume};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// # let volume = Volume::create(folder.path().join("image"), &FormatOptions::new().size(64 << 20))?;
    /// # volume.write("/a", "text")?;
    /// # uringfs_reactor::Reactor::new(Default::default())?.block_on(async {
    /// let volume = volume.as_async();
    /// let mut entries = volume.read_dir("/").await?;
    /// while let Some(entry) = entries.next_entry().await? {
    ///     assert_eq!(entry.metadata_async(&volume).await?.len(), 4);
    /// }
    /// # Ok::<_, uringfs::Error>(())
    /// # })?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Self::metadata`].
    pub async fn metadata_async(&self, volume: &AsyncVolume) -> Result<Metadata, Error> {
        self.metadata_in_mode(WaitMode::Async, volume.volume()).await
    }
}
