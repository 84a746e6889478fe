//! [`InodeRef`]: a file of a volume by reference instead of by path, as a file server needs it.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;

use uringfs_device::Errno;
use uringfs_file::File;

use crate::core::blocking::WaitMode;
use crate::error::Error;
use crate::namespace::directory::{Link, Rename, already_exists};
use crate::namespace::open_options::OpenOptions;
use crate::namespace::operations;
use crate::namespace::path::{InodeAt, NameAt};
use crate::namespace::pins::Pin;
use crate::namespace::transaction::Transaction;
use crate::records::inode::{FileType, Inode, InodeNumber};
use crate::volume::metadata::Metadata;
use crate::volume::volume::Volume;
use crate::volume::xattr::{self, SetXattr};

/// A reference to a file of any kind, independent of its names. While it lives, the file stays, even after its last
/// name is removed. Clones and other references to the same file are equal.
///
/// A file server keeps one for each file that its clients know (a FUSE node ID, an NFS file handle). The calls are
/// those of [`Volume`], with a directory and a name in place of a path. They follow no symbolic link. A name is any bytes
/// but `/` and 0, at most 255. They are futures that do not block their thread, for any executor; a dropped future has
/// done all of its work or none.
///
/// ```
/// # mod uringfs { pub use uringfs_reactor::*; pub use uringfs_volume::*; pub use uringfs_volume as volume; }
/// use uringfs::volume::{FileType, Inode};
/// use uringfs::{FormatOptions, OpenOptions, Volume};
/// # use uringfs::{Reactor, ReactorOptions};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let volume = Volume::create(folder.path().join("image"), &FormatOptions::new().size(64 << 20))?;
/// # let reactor = Reactor::new(ReactorOptions::default())?;
/// # reactor.block_on(async {
///
/// let root = volume.root();
/// let (directory, _) = root.create("mail", &Inode::new(FileType::Directory, 0o755)).await?;
/// let (message, metadata) = directory.create("1", &Inode::new(FileType::File, 0o600)).await?;
/// assert_eq!(metadata.mode(), 0o100_600);
///
/// directory.rename("1", &root, "first", Default::default()).await?;
/// root.remove_file("first").await?;
/// // The file has no name any more, but its reference keeps it.
/// let file = message.open(OpenOptions::new().read(true)).await?;
/// assert_eq!(message.metadata().await?.nlink(), 0);
/// # drop(file);
/// # Ok::<(), uringfs_volume::Error>(())
/// # })?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct InodeRef {
    pub(super) volume: Volume,
    pin: Arc<Pin>,
}

impl Volume {
    /// A reference to the root directory.
    pub fn root(&self) -> InodeRef {
        let pin = self.shared.state.lock().pins.pin(InodeNumber::ROOT);
        InodeRef { volume: self.clone(), pin }
    }

    /// A reference to the file with this inode number, such as one that a client has kept. Numbers are never reused for
    /// another file.
    ///
    /// # Errors
    /// ENOENT if there is none, or no longer; errors of the catalog.
    pub async fn inode(&self, number: InodeNumber) -> Result<(InodeRef, Metadata), Error> {
        let operation = operations::live_inode(number);
        let (pin, inode) = self.shared.run_and_pin(WaitMode::Async, operation).await?;
        Ok((InodeRef { volume: self.clone(), pin }, Metadata::new(number, inode)))
    }
}

impl InodeRef {
    /// The inode's number. No other file of the volume ever has it.
    pub fn number(&self) -> InodeNumber {
        self.pin.number
    }

    /// The volume of the file.
    pub fn volume(&self) -> &Volume {
        &self.volume
    }

    /// The attributes.
    ///
    /// # Errors
    /// Errors of the catalog.
    pub async fn metadata(&self) -> Result<Metadata, Error> {
        let operation = operations::inode(self.at());
        let found = self.volume.shared.run_transaction(WaitMode::Async, operation).await;
        found.map(|(number, inode)| Metadata::new(number, inode))
    }

    /// The file of a name in this directory. `.` is the directory itself and `..` its parent.
    ///
    /// # Errors
    /// ENOENT, ENOTDIR, ENAMETOOLONG; EINVAL for an invalid name; errors of the catalog.
    pub async fn lookup(&self, name: impl AsRef<OsStr>) -> Result<(InodeRef, Metadata), Error> {
        let operation = operations::lookup(self.number(), name.as_ref().as_bytes());
        let found = self.volume.shared.run_and_pin(WaitMode::Async, operation).await?;
        Ok(self.with_metadata(found))
    }

    /// Opens the file. [`OpenOptions::create`] has no effect, and [`OpenOptions::create_new`] fails: the file exists.
    ///
    /// # Errors
    /// EISDIR for a directory, ENXIO for other files without bytes; otherwise as [`Volume::open_with`].
    pub async fn open(&self, options: OpenOptions) -> Result<File, Error> {
        let (number, shown) = (self.number(), format!("inode {}", self.number().0));
        let checked = self.volume.check_open_options(&options);
        checked.map_err(|error| error.context(&shown))?;
        if options.create_new {
            return Err(already_exists(shown.as_bytes()));
        }
        let _change = self.volume.begin_open(WaitMode::Async, &options).await?;
        let find = operations::pinned(number);
        self.volume.open_found(WaitMode::Async, shown.as_bytes(), options, find).await
    }

    /// The path in this symbolic link.
    ///
    /// # Errors
    /// EINVAL if it is none; errors of the catalog.
    pub async fn read_link(&self) -> Result<PathBuf, Error> {
        self.metadata().await?.into_link()
    }

    /// Creates a file of any kind under a name in this directory. It inherits as [`Volume::mknod`] says. Open the new
    /// file with [`Self::open`].
    ///
    /// # Errors
    /// EEXIST; ENOENT if this directory was removed; ENOTDIR, ENAMETOOLONG; EINVAL for an invalid name; ENOSPC as
    /// [`Volume::mknod`]; errors of the catalog.
    pub async fn create(
        &self,
        name: impl AsRef<OsStr>,
        inode: &Inode,
    ) -> Result<(InodeRef, Metadata), Error> {
        self.create_with(name, inode, &[]).await
    }

    /// As [`Self::create`], with extended attributes, each a name and a value: at no time, not even after a crash, does the
    /// file exist without them.
    ///
    /// ```
    /// # mod uringfs { pub use uringfs_reactor::*; pub use uringfs_volume::*; pub use uringfs_volume as volume; }
    /// # use uringfs::{FormatOptions, Reactor, ReactorOptions, Volume};
    /// # use uringfs::volume::{FileType, Inode};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// # let volume = Volume::create(folder.path().join("image"), &FormatOptions::new().size(64 << 20))?;
    /// # let reactor = Reactor::new(ReactorOptions::default())?;
    /// # reactor.block_on(async {
    /// let (inode, label) = (Inode::new(FileType::File, 0o600), b"system_u:object_r:mail_t:s0");
    /// let (message, _) = volume.root().create_with("1", &inode, &[(b"security.selinux", label)]).await?;
    /// assert_eq!(message.get_xattr("security.selinux").await?, label);
    /// # Ok::<(), uringfs_volume::Error>(())
    /// # })?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Self::create`] and [`Volume::set_xattr`]; then there is no new file.
    pub async fn create_with(
        &self,
        name: impl AsRef<OsStr>,
        inode: &Inode,
        xattrs: &[(&[u8], &[u8])],
    ) -> Result<(InodeRef, Metadata), Error> {
        let make = operations::make_inode(self.entry(name.as_ref()), inode);
        let _change = self.volume.begin_change(WaitMode::Async).await?;
        let operation = xattr::set_on_new(make, xattrs);
        let made = self.volume.shared.run_and_pin(WaitMode::Async, operation).await?;
        Ok(self.with_metadata(made))
    }

    /// Creates a file without a name (`O_TMPFILE`), with the permissions and owner of `inode`. It inherits from this
    /// directory as a named file does. [`Self::link_into`] can give it a name. Without one it is gone with its last
    /// reference and handle, or when the volume is opened again.
    ///
    /// # Errors
    /// EINVAL if `inode` is no regular file's; otherwise as [`Self::create`].
    pub async fn create_unnamed(&self, inode: &Inode) -> Result<(InodeRef, Metadata), Error> {
        self.create_unnamed_with(inode, &[]).await
    }

    /// As [`Self::create_unnamed`], with extended attributes; see [`Self::create_with`].
    ///
    /// # Errors
    /// As [`Self::create_unnamed`] and [`Volume::set_xattr`].
    pub async fn create_unnamed_with(
        &self,
        inode: &Inode,
        xattrs: &[(&[u8], &[u8])],
    ) -> Result<(InodeRef, Metadata), Error> {
        if inode.kind != FileType::File {
            let what = "only a regular file is created without a name";
            return Err(Error::refused(Errno::INVAL, what));
        }
        let make = operations::make_unnamed(self.number(), inode);
        let _change = self.volume.begin_change(WaitMode::Async).await?;
        let operation = xattr::set_on_new(make, xattrs);
        let made = self.volume.shared.run_and_pin(WaitMode::Async, operation).await?;
        let (unnamed, metadata) = self.with_metadata(made);
        unnamed.pin.set_linkable();
        Ok((unnamed, metadata))
    }

    /// Adds a name to this file, in a directory of the same volume.
    ///
    /// # Errors
    /// EXDEV for a directory of another volume; ENOENT if the file has lost its last name; EMLINK; as [`Self::create`].
    pub async fn link_into(
        &self,
        directory: &InodeRef,
        name: impl AsRef<OsStr>,
    ) -> Result<(), Error> {
        self.link_with(directory, name, Link::NoReplace).await
    }

    /// As [`Self::link_into`]; `how` decides what happens if the name exists. So a file that was written without a name
    /// replaces another one in one step. Make its data durable first: then a crash leaves one of the two files whole, and
    /// the name always has one.
    ///
    /// ```
    /// # mod uringfs { pub use uringfs_reactor::*; pub use uringfs_volume::*; pub use uringfs_volume as volume; }
    /// # use uringfs::{FormatOptions, OpenOptions, Reactor, ReactorOptions, Volume};
    /// use uringfs::volume::{FileType, Inode, Link};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// # let volume = Volume::create(folder.path().join("image"), &FormatOptions::new().size(64 << 20))?;
    /// # let reactor = Reactor::new(ReactorOptions::default())?;
    /// # reactor.block_on(async {
    /// let (root, inode) = (volume.root(), Inode::new(FileType::File, 0o644));
    /// let (old, _) = root.create("settings", &inode).await?;
    /// let (new, _) = root.create_unnamed(&inode).await?;
    /// let file = new.open(OpenOptions::new().write(true)).await?;
    /// file.write_at("colour = blue", 0).await.0?;
    /// file.sync_all().await?;
    /// new.link_with(&root, "settings", Link::ReplaceOnly(old.number())).await?;
    /// file.sync_all().await?; // Now the name is durable, too.
    /// assert_eq!(root.lookup("settings").await?.0, new);
    /// # Ok::<(), uringfs_volume::Error>(())
    /// # })?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// EISDIR for the name of a directory; as [`Self::link_into`] and `how` say.
    pub async fn link_with(
        &self,
        directory: &InodeRef,
        name: impl AsRef<OsStr>,
        how: Link,
    ) -> Result<(), Error> {
        self.require_same_volume(directory)?;
        let operation = operations::link(self.at(), directory.entry(name.as_ref()), how);
        self.volume.change(WaitMode::Async, operation).await
    }

    /// Removes a name in this directory that is no directory's.
    ///
    /// # Errors
    /// ENOENT, EISDIR, ENOTDIR, ENAMETOOLONG; EINVAL for an invalid name; errors of the catalog.
    pub async fn remove_file(&self, name: impl AsRef<OsStr>) -> Result<(), Error> {
        let operation = operations::remove(self.entry(name.as_ref()));
        self.volume.change(WaitMode::Async, operation).await
    }

    /// Removes an empty directory in this directory.
    ///
    /// # Errors
    /// ENOENT, ENOTDIR, ENOTEMPTY; EINVAL for an invalid name; errors of the catalog.
    pub async fn remove_dir(&self, name: impl AsRef<OsStr>) -> Result<(), Error> {
        let operation = operations::remove_directory(self.entry(name.as_ref()));
        self.volume.change(WaitMode::Async, operation).await
    }

    /// Moves a name of this directory to a name in a directory of the same volume.
    ///
    /// # Errors
    /// EXDEV for a directory of another volume; as [`Volume::rename_with`].
    pub async fn rename(
        &self,
        name: impl AsRef<OsStr>,
        new_directory: &InodeRef,
        new_name: impl AsRef<OsStr>,
        how: Rename,
    ) -> Result<(), Error> {
        self.require_same_volume(new_directory)?;
        let (name, new_name) = (name.as_ref(), new_name.as_ref());
        let operation = operations::rename(self.entry(name), new_directory.entry(new_name), how);
        self.volume.change(WaitMode::Async, operation).await
    }

    /// As [`Self::rename`], if the name is that of the file `expected` in the same step. So a caller that has looked
    /// the file up moves this one and no other.
    ///
    /// ```
    /// # mod uringfs { pub use uringfs_reactor::*; pub use uringfs_volume::*; pub use uringfs_volume as volume; }
    /// # use uringfs::{FormatOptions, Reactor, ReactorOptions, Volume};
    /// use uringfs::volume::{FileType, Inode, Rename};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// # let volume = Volume::create(folder.path().join("image"), &FormatOptions::new().size(64 << 20))?;
    /// # let reactor = Reactor::new(ReactorOptions::default())?;
    /// # reactor.block_on(async {
    /// let (root, inode) = (volume.root(), Inode::new(FileType::File, 0o644));
    /// let (job, _) = root.create("queued", &inode).await?;
    /// root.rename_only("queued", job.number(), &root, "running", Rename::NoReplace).await?;
    /// assert_eq!(root.lookup("running").await?.0, job);
    /// # Ok::<(), uringfs_volume::Error>(())
    /// # })?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// ESTALE if the name is that of another file; as [`Self::rename`].
    pub async fn rename_only(
        &self,
        name: impl AsRef<OsStr>,
        expected: InodeNumber,
        new_directory: &InodeRef,
        new_name: impl AsRef<OsStr>,
        how: Rename,
    ) -> Result<(), Error> {
        self.require_same_volume(new_directory)?;
        let name = name.as_ref();
        let mut rename =
            operations::rename(self.entry(name), new_directory.entry(new_name.as_ref()), how);
        let operation = |transaction: &mut Transaction<'_>| {
            transaction.require_inode(self.number(), name.as_bytes(), expected)?;
            rename(transaction)
        };
        self.volume.change(WaitMode::Async, operation).await
    }

    /// Makes the names in this directory, or the attributes of this file, durable, as fsync(2) does for a directory.
    /// Waits for a commit, which has all other changes of names and attributes of the volume, too. Writes no dirty
    /// bytes back and reports no lost writes, unlike [`Volume::sync`]; [`File::sync_all`] is for the bytes of a file.
    ///
    /// ```
    /// # mod uringfs { pub use uringfs_reactor::*; pub use uringfs_volume::*; pub use uringfs_volume as volume; }
    /// # use uringfs::{FormatOptions, Reactor, ReactorOptions, Volume};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// # let volume = Volume::create(folder.path().join("image"), &FormatOptions::new().size(64 << 20))?;
    /// # volume.write("/old", "text")?;
    /// # let reactor = Reactor::new(ReactorOptions::default())?;
    /// # reactor.block_on(async {
    /// let root = volume.root();
    /// root.remove_file("old").await?;
    /// // No power cut brings the name back after this.
    /// root.sync_metadata().await?;
    /// # Ok::<(), uringfs_volume::Error>(())
    /// # })?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// ENOSPC when the catalog is full: remove something, then sync again. EIO when the device or the catalog failed,
    /// now or before.
    pub async fn sync_metadata(&self) -> Result<(), Error> {
        self.volume.commit_in_mode(WaitMode::Async).await
    }

    /// Changes permissions, owner and times in one step; see [`Volume::set_attributes`].
    ///
    /// # Errors
    /// Errors of the catalog; EROFS.
    pub async fn set_attributes(&self, set: impl Fn(&mut Inode)) -> Result<(), Error> {
        self.volume.change(WaitMode::Async, operations::set_attributes(self.at(), set)).await
    }

    /// The value of an extended attribute.
    ///
    /// # Errors
    /// As [`Volume::get_xattr`].
    pub async fn get_xattr(&self, name: impl AsRef<[u8]>) -> Result<Vec<u8>, Error> {
        let operation = xattr::get(self.at(), name.as_ref());
        self.volume.shared.run_transaction(WaitMode::Async, operation).await
    }

    /// The names of the extended attributes, in the order of their bytes.
    ///
    /// # Errors
    /// Errors of the catalog.
    pub async fn list_xattrs(&self) -> Result<Vec<Vec<u8>>, Error> {
        self.volume.shared.run_transaction(WaitMode::Async, xattr::list(self.at())).await
    }

    /// Sets an extended attribute; see [`Volume::set_xattr`].
    ///
    /// # Errors
    /// As [`Volume::set_xattr`].
    pub async fn set_xattr(
        &self,
        name: impl AsRef<[u8]>,
        value: &[u8],
        how: SetXattr,
    ) -> Result<(), Error> {
        let operation = xattr::set(self.at(), name.as_ref(), value, how);
        self.volume.change(WaitMode::Async, operation).await
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// As [`Volume::remove_xattr`].
    pub async fn remove_xattr(&self, name: impl AsRef<[u8]>) -> Result<(), Error> {
        self.volume.change(WaitMode::Async, xattr::remove(self.at(), name.as_ref())).await
    }

    fn at(&self) -> InodeAt<'static> {
        InodeAt::Number(self.number())
    }

    fn entry<'a>(&self, name: &'a OsStr) -> NameAt<'a> {
        NameAt::Entry(self.number(), name.as_bytes())
    }

    fn with_metadata(&self, (pin, inode): (Arc<Pin>, Inode)) -> (InodeRef, Metadata) {
        let metadata = Metadata::new(pin.number, inode);
        (InodeRef { volume: self.volume.clone(), pin }, metadata)
    }

    fn require_same_volume(&self, other: &InodeRef) -> Result<(), Error> {
        match Arc::ptr_eq(&self.volume.shared, &other.volume.shared) {
            true => Ok(()),
            false => {
                let what = "the two directories are in different volumes";
                Err(Error::refused(Errno::XDEV, what))
            }
        }
    }
}

impl PartialEq for InodeRef {
    fn eq(&self, other: &InodeRef) -> bool {
        Arc::ptr_eq(&self.pin, &other.pin)
    }
}

impl Eq for InodeRef {}

impl fmt::Debug for InodeRef {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "inode {} of {:?}", self.number().0, self.volume)
    }
}
