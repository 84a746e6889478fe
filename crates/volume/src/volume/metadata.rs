//! [`Metadata`], the attributes of a file, and [`FileTimes`], two of them to set.

use std::ffi::OsString;
use std::fs::Permissions;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::SystemTime;

use uringfs_device::Errno;

use crate::blocks::BLOCK;
use crate::error::Error;
use crate::records::inode::{FileType, Inode, InodeNumber, Time};

/// The unit of [`Metadata::blocks`], as in `stat`.
const STAT_BLOCK_BYTES: u64 = 512;

/// The attributes of a file, with the names of std's `Metadata` and `MetadataExt`. There is no `dev`: a volume is not a
/// file system of the kernel, and so has no device number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metadata {
    number: InodeNumber,
    inode: Inode,
}

impl Metadata {
    #[doc(hidden)]
    pub fn new(number: InodeNumber, inode: Inode) -> Metadata {
        Metadata { number, inode }
    }

    /// The kind of the file.
    pub fn file_type(&self) -> FileType {
        self.inode.kind
    }

    /// True for a directory.
    pub fn is_dir(&self) -> bool {
        self.file_type().is_dir()
    }

    /// True for a regular file.
    pub fn is_file(&self) -> bool {
        self.file_type().is_file()
    }

    /// True for a symbolic link, which only [`Volume::symlink_metadata`](crate::Volume::symlink_metadata) returns.
    pub fn is_symlink(&self) -> bool {
        self.file_type().is_symlink()
    }

    /// Size in bytes. Of a symbolic link: of its target. Of a directory: 0.
    #[expect(clippy::len_without_is_empty, reason = "as std's")]
    pub fn len(&self) -> u64 {
        self.inode.size
    }

    /// The permissions, with the bits of the kind as std has them.
    pub fn permissions(&self) -> Permissions {
        Permissions::from_mode(self.mode())
    }

    /// `st_mode`: the kind, and the permissions with set-ID and sticky bits.
    pub fn mode(&self) -> u32 {
        (self.inode.kind.mode_bits().0 | self.inode.permissions).into()
    }

    /// The owner's user ID.
    pub fn uid(&self) -> u32 {
        self.inode.user
    }

    /// The group ID.
    pub fn gid(&self) -> u32 {
        self.inode.group
    }

    /// The inode's number.
    pub fn ino(&self) -> u64 {
        self.number.0
    }

    /// Number of names. Of a directory: two, and one for each directory in it.
    pub fn nlink(&self) -> u64 {
        self.inode.links.into()
    }

    /// The number of a device; 0 for other files.
    pub fn rdev(&self) -> u64 {
        self.inode.kind.mode_bits().1
    }

    /// Allocated space, in units of 512 bytes.
    pub fn blocks(&self) -> u64 {
        self.inode.allocated() / STAT_BLOCK_BYTES
    }

    /// The size in bytes, as [`Self::len`].
    pub fn size(&self) -> u64 {
        self.len()
    }

    /// The size of a block of the volume, 4096: aligned transfers of whole blocks are the fastest.
    pub fn blksize(&self) -> u64 {
        BLOCK
    }

    /// Last access, in seconds since 1970.
    pub fn atime(&self) -> i64 {
        self.inode.accessed.seconds()
    }

    /// The nanoseconds after [`Self::atime`].
    pub fn atime_nsec(&self) -> i64 {
        self.inode.accessed.nanoseconds().into()
    }

    /// Last change of the content, in seconds since 1970.
    pub fn mtime(&self) -> i64 {
        self.inode.modified.seconds()
    }

    /// The nanoseconds after [`Self::mtime`].
    pub fn mtime_nsec(&self) -> i64 {
        self.inode.modified.nanoseconds().into()
    }

    /// Last change of content or attributes, in seconds since 1970.
    pub fn ctime(&self) -> i64 {
        self.inode.changed.seconds()
    }

    /// The nanoseconds after [`Self::ctime`].
    pub fn ctime_nsec(&self) -> i64 {
        self.inode.changed.nanoseconds().into()
    }

    /// Last change of the content.
    pub fn modified(&self) -> SystemTime {
        self.inode.modified.into()
    }

    /// Last access, updated by the rules of relatime.
    pub fn accessed(&self) -> SystemTime {
        self.inode.accessed.into()
    }

    /// Creation.
    pub fn created(&self) -> SystemTime {
        self.inode.created.into()
    }

    /// Last change of content or attributes (`st_ctime`).
    pub fn changed(&self) -> SystemTime {
        self.inode.changed.into()
    }

    /// A number that differs after each change of the content (a write, a truncation, a hole), as the change cookie of Linux'
    /// `statx` and the change attribute of NFS: two equal ones of a file mean that no write began between the two calls. Its order
    /// means nothing. It becomes durable with the modification time; so after a power cut an overwrite that no
    /// [`File::sync_all`](uringfs_file::File::sync_all) followed may be there without its cookie. 0 for other files than regular ones.
    pub fn change_cookie(&self) -> u64 {
        self.inode.change_cookie
    }

    /// All attributes, as [`Volume::mknod`](crate::Volume::mknod) takes them.
    pub fn inode(&self) -> &Inode {
        &self.inode
    }

    /// All attributes.
    pub fn into_inode(self) -> Inode {
        self.inode
    }

    /// The path in a symbolic link.
    ///
    /// # Errors
    /// EINVAL if it is none.
    pub(crate) fn into_link(self) -> Result<PathBuf, Error> {
        match self.is_symlink() {
            true => Ok(OsString::from_vec(self.inode.target.into()).into()),
            false => Err(Error::refused(Errno::INVAL, "it is not a symbolic link")),
        }
    }
}

/// Times to set with [`Volume::set_times`](crate::Volume::set_times): those that are not given stay.
///
/// ```
/// use std::time::{Duration, SystemTime};
/// # mod uringfs { pub use uringfs_volume::*; pub use uringfs_volume as volume; }
/// use uringfs::volume::FileTimes;
/// use uringfs::{FormatOptions, Volume};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let volume = Volume::create(folder.path().join("image"), &FormatOptions::new().size(64 << 20))?;
/// volume.write("/file", "x")?;
/// let time = SystemTime::UNIX_EPOCH + Duration::from_secs(86_400);
/// volume.set_times("/file", FileTimes::new().set_modified(time))?;
/// assert_eq!(volume.metadata("/file")?.modified(), time);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileTimes {
    accessed: Option<Time>,
    modified: Option<Time>,
}

impl FileTimes {
    /// Neither time.
    pub fn new() -> FileTimes {
        FileTimes::default()
    }

    /// Sets the time of the last access.
    pub fn set_accessed(mut self, time: impl Into<Time>) -> FileTimes {
        self.accessed = Some(time.into());
        self
    }

    /// Sets the time of the last change of the content.
    pub fn set_modified(mut self, time: impl Into<Time>) -> FileTimes {
        self.modified = Some(time.into());
        self
    }

    pub(crate) fn apply(self, inode: &mut Inode) {
        inode.accessed = self.accessed.unwrap_or(inode.accessed);
        inode.modified = self.modified.unwrap_or(inode.modified);
    }
}
