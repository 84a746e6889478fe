//! The calls of a volume on names, as those of `std::fs`.

use std::any::Any;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use uringfs_device::Errno;
use uringfs_file::File;

use crate::core::blocking::{WaitMode, run_blocking};
use crate::error::{Error, OfPath};
use crate::namespace::directory::{Link, Rename};
use crate::namespace::operations as operation;
use crate::namespace::path::{Follow, InodeAt, NameAt, bytes};
use crate::records::inode::{FileType, Inode, InodeNumber};
use crate::volume::file_map::VolumeMap;
use crate::volume::metadata::{FileTimes, Metadata};
use crate::volume::read_dir::ReadDir;
use crate::volume::volume::Volume;

/// The permissions of a directory for which the caller names none: there is no umask.
const DIRECTORY_MODE: u16 = 0o755;

/// A directory with the default permissions.
pub(crate) fn new_directory() -> Inode {
    Inode::new(FileType::Directory, DIRECTORY_MODE)
}

/// Sets the permissions of an inode.
pub(crate) fn permissions_setter(permissions: &Permissions) -> impl Fn(&mut Inode) + use<> {
    let mode = permissions.mode() as u16;
    move |inode| inode.permissions = mode
}

impl Volume {
    /// Creates a directory, with permissions 0o755. It inherits from its directory as [`Self::mknod`] says.
    ///
    /// # Errors
    /// As [`Self::mknod`].
    pub fn create_dir(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        self.mknod(path, &new_directory()).map(drop)
    }

    /// Creates a directory with these permissions.
    ///
    /// # Errors
    /// As [`Self::mknod`].
    pub fn create_dir_with_mode(&self, path: impl AsRef<Path>, mode: u32) -> Result<(), Error> {
        self.mknod(path, &Inode::new(FileType::Directory, mode as u16)).map(drop)
    }

    /// Creates a directory and those above it that do not exist, each as [`Self::create_dir`]. Succeeds if the
    /// directory exists.
    ///
    /// # Errors
    /// ENOTDIR if one of the names exists and is no directory; else as [`Self::mknod`].
    pub fn create_dir_all(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        run_blocking(self.create_dir_all_in_mode(WaitMode::Blocking, path.as_ref()))
    }

    /// Creates a name for a new file of any kind: a FIFO, a socket, a device; also a directory or a symbolic link with
    /// all its attributes. Returns the inode's number. The file has no bytes yet. It inherits from its directory as on
    /// Linux: the group, if the directory's set-group-ID bit is set, and the default access control list.
    ///
    /// # Errors
    /// EEXIST, ENOENT and other errors of paths; ENOSPC when the catalog has no room for one more name; errors of the
    /// catalog.
    pub fn mknod(&self, path: impl AsRef<Path>, inode: &Inode) -> Result<InodeNumber, Error> {
        run_blocking(
            self.change(WaitMode::Blocking, operation::make(NameAt::Path(bytes(&path)), inode)),
        )
        .of_path(bytes(&path))
    }

    /// Creates a symbolic link to `original`, which need not exist.
    ///
    /// # Errors
    /// As [`Self::mknod`]; EINVAL for an empty target.
    pub fn symlink(&self, original: impl AsRef<Path>, link: impl AsRef<Path>) -> Result<(), Error> {
        self.mknod(link, &Inode::symlink(bytes(&original))?).map(drop)
    }

    /// The path in a symbolic link.
    ///
    /// # Errors
    /// EINVAL if it is no symbolic link; ENOENT and other errors of paths.
    pub fn read_link(&self, path: impl AsRef<Path>) -> Result<PathBuf, Error> {
        self.symlink_metadata(&path)?.into_link().of_path(bytes(&path))
    }

    /// Adds a hard link: one more name for a file.
    ///
    /// # Errors
    /// EEXIST, EPERM for a directory, and other errors of paths; ENOSPC as [`Self::mknod`].
    pub fn hard_link(
        &self,
        original: impl AsRef<Path>,
        link: impl AsRef<Path>,
    ) -> Result<(), Error> {
        let operation = operation::link(
            InodeAt::Path(bytes(&original), Follow::No),
            NameAt::Path(bytes(&link)),
            Link::NoReplace,
        );
        run_blocking(self.change(WaitMode::Blocking, operation)).of_path(bytes(&link))
    }

    /// Removes a name that is no directory's. A file whose last name is removed stays until its last handle closes.
    ///
    /// # Errors
    /// ENOENT, EISDIR, and other errors of paths.
    pub fn remove_file(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        run_blocking(self.change(WaitMode::Blocking, operation::remove(NameAt::Path(bytes(&path)))))
            .of_path(bytes(&path))
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// ENOENT, ENOTDIR, ENOTEMPTY, and other errors of paths.
    pub fn remove_dir(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        run_blocking(
            self.change(
                WaitMode::Blocking,
                operation::remove_directory(NameAt::Path(bytes(&path))),
            ),
        )
        .of_path(bytes(&path))
    }

    /// Removes a directory with everything in it. Follows no symbolic link: links are removed. It is not atomic: after
    /// an error or a power cut some of the names are gone. A directory that is moved out of it meanwhile stays, with what
    /// is left in it.
    ///
    /// # Errors
    /// ENOENT, ENOTDIR, and other errors of paths; EBUSY for the root.
    pub fn remove_dir_all(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        run_blocking(self.remove_dir_all_in_mode(WaitMode::Blocking, bytes(&path)))
    }

    /// Renames a file or directory; replaces a file, or an empty directory, that has the new name.
    ///
    /// # Errors
    /// As [`Self::mknod`] and [`Self::remove_dir`]; EINVAL when a directory would move into itself.
    pub fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<(), Error> {
        self.rename_with(from, to, Rename::Replace)
    }

    /// Renames a file or directory; `how` decides what happens if the new name exists (`renameat2`).
    ///
    /// # Errors
    /// As [`Self::rename`]; EEXIST as `how` says.
    pub fn rename_with(
        &self,
        from: impl AsRef<Path>,
        to: impl AsRef<Path>,
        how: Rename,
    ) -> Result<(), Error> {
        let operation =
            operation::rename(NameAt::Path(bytes(&from)), NameAt::Path(bytes(&to)), how);
        run_blocking(self.change(WaitMode::Blocking, operation)).of_path(bytes(&to))
    }

    /// The entries of a directory, in the order of their names' bytes, without `.` and `..`.
    ///
    /// # Errors
    /// ENOENT, ENOTDIR, and other errors of paths. The iterator says what its own errors are.
    pub fn read_dir(&self, path: impl AsRef<Path>) -> Result<ReadDir, Error> {
        run_blocking(ReadDir::open(self, WaitMode::Blocking, path.as_ref()))
    }

    /// True if the path leads to a file of any kind. Follows a symbolic link at its end.
    ///
    /// # Errors
    /// Errors of paths but ENOENT; errors of the catalog.
    pub fn exists(&self, path: impl AsRef<Path>) -> Result<bool, Error> {
        exists(self.metadata(path))
    }

    /// The attributes of a file. Follows a symbolic link at the end of the path.
    ///
    /// # Errors
    /// ENOENT and other errors of paths.
    pub fn metadata(&self, path: impl AsRef<Path>) -> Result<Metadata, Error> {
        run_blocking(self.metadata_in_mode(WaitMode::Blocking, bytes(&path), Follow::Yes))
    }

    /// The attributes of an open file (`fstat`), also after its last name is removed.
    ///
    /// ```
    /// # use uringfs_volume as uringfs;
    /// use uringfs::{FormatOptions, OpenOptions, Volume};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// # let volume = Volume::create(folder.path().join("image"), &FormatOptions::new().size(64 << 20))?;
    /// let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&volume, "/new")?;
    /// volume.rename("/new", "/renamed")?;
    /// assert_eq!(volume.metadata_of(&file)?.mode(), 0o100_600);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// EXDEV for a file that is not of this volume; errors of the catalog.
    pub fn metadata_of(&self, file: &File) -> Result<Metadata, Error> {
        run_blocking(self.metadata_of_in_mode(WaitMode::Blocking, file))
    }

    /// The attributes of a file, or of the symbolic link at the end of the path.
    ///
    /// # Errors
    /// ENOENT and other errors of paths.
    pub fn symlink_metadata(&self, path: impl AsRef<Path>) -> Result<Metadata, Error> {
        run_blocking(self.metadata_in_mode(WaitMode::Blocking, bytes(&path), Follow::No))
    }

    /// Sets permissions, set-ID bits and the sticky bit. Follows a symbolic link at the end of the path.
    ///
    /// # Errors
    /// ENOENT and other errors of paths.
    pub fn set_permissions(
        &self,
        path: impl AsRef<Path>,
        permissions: Permissions,
    ) -> Result<(), Error> {
        self.set_attributes(path, Follow::Yes, permissions_setter(&permissions))
    }

    /// Sets the times of access and modification, where given. Follows a symbolic link at the end of the path.
    ///
    /// # Errors
    /// ENOENT and other errors of paths.
    pub fn set_times(&self, path: impl AsRef<Path>, times: FileTimes) -> Result<(), Error> {
        self.set_attributes(path, Follow::Yes, |inode| times.apply(inode))
    }

    /// Sets user and group, where given. Clears the set-ID bits as Linux does. Follows a symbolic link at the end of the
    /// path.
    ///
    /// # Errors
    /// ENOENT and other errors of paths.
    pub fn chown(
        &self,
        path: impl AsRef<Path>,
        user: Option<u32>,
        group: Option<u32>,
    ) -> Result<(), Error> {
        self.set_attributes(path, Follow::Yes, |inode| inode.set_owner(user, group))
    }

    /// As [`Self::chown`], of the symbolic link at the end of the path.
    ///
    /// # Errors
    /// ENOENT and other errors of paths.
    pub fn lchown(
        &self,
        path: impl AsRef<Path>,
        user: Option<u32>,
        group: Option<u32>,
    ) -> Result<(), Error> {
        self.set_attributes(path, Follow::No, |inode| inode.set_owner(user, group))
    }

    /// Changes permissions, owner and times in one step, as a function of what they are: what `chmod`'s `g+w` and a
    /// restore of all attributes need. Kind, size, links and target stay as they are, and so does the mark of a staging
    /// directory. `set` may be called more than once. A change of owner or group removes `security.capability`, as
    /// every write does. An access control list (`system.posix_acl_access`) follows the new permissions: its entries for
    /// owner and others, and its mask or, without a mask, its group.
    ///
    /// # Errors
    /// ENOENT and other errors of paths.
    pub fn set_attributes(
        &self,
        path: impl AsRef<Path>,
        follow: Follow,
        set: impl Fn(&mut Inode),
    ) -> Result<(), Error> {
        let operation = operation::set_attributes(InodeAt::Path(bytes(&path), follow), set);
        run_blocking(self.change(WaitMode::Blocking, operation)).of_path(bytes(&path))
    }
}

impl Volume {
    pub(crate) async fn metadata_of_in_mode(
        &self,
        mode: WaitMode,
        file: &File,
    ) -> Result<Metadata, Error> {
        let map = file.resizable_map().and_then(|map| <dyn Any>::downcast_ref::<VolumeMap>(map));
        let Some(map) = map.filter(|map| Arc::ptr_eq(&map.volume.shared, &self.shared)) else {
            return Err(Error::refused(Errno::XDEV, "the file is not of this volume"));
        };
        let operation = operation::inode(InodeAt::Number(map.file.number));
        let found = self.shared.run_transaction(mode, operation).await;
        found.map(|(number, inode)| Metadata::new(number, inode))
    }

    pub(crate) async fn metadata_in_mode(
        &self,
        mode: WaitMode,
        path: &[u8],
        follow: Follow,
    ) -> Result<Metadata, Error> {
        let found =
            self.shared.run_transaction(mode, operation::inode(InodeAt::Path(path, follow))).await;
        found.map(|(number, inode)| Metadata::new(number, inode)).of_path(path)
    }
}

/// Whether a file exists, by the attempt to find it.
pub(crate) fn exists(found: Result<Metadata, Error>) -> Result<bool, Error> {
    match found {
        Ok(_) => Ok(true),
        Err(error) if error.errno() == Errno::NOENT => Ok(false),
        Err(error) => Err(error),
    }
}
