//! Access to files of the host, which `put` reads and `get` creates. Each file is looked up once and then used
//! through a handle. So it does not matter if a link, a FIFO or another file takes its name meanwhile.

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2};
use std::ffi::OsStr;
use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// Identifies a file: device and inode number.
pub type FileId = (u64, u64);

pub fn file_id(found: &Metadata) -> FileId {
    (found.dev(), found.ino())
}

/// An `O_PATH` handle of a file of any type; it neither reads nor writes the file. The handle of a symbolic link
/// is of the link itself.
pub struct PathHandle(File);

impl PathHandle {
    fn new(descriptor: OwnedFd) -> Self {
        Self(descriptor.into())
    }

    /// Opens a name in a directory. Does not follow a link.
    pub fn at(directory: &PathHandle, name: &OsStr) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(Self::new(openat(directory, name, flags, Mode::empty())?))
    }

    pub fn metadata(&self) -> io::Result<Metadata> {
        self.0.metadata()
    }

    /// A path that always leads to this file, whatever its names lead to meanwhile.
    pub fn path(&self) -> PathBuf {
        fd_path(&self.0)
    }

    /// Opens the file for reading, non-blocking: some files of `/proc` would block.
    pub fn open(&self) -> io::Result<File> {
        let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits() as i32;
        OpenOptions::new().read(true).custom_flags(flags).open(self.path())
    }
}

impl AsFd for PathHandle {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The path of the file of a descriptor. A call that follows links reaches the file by this path, whatever its type.
pub fn fd_path(descriptor: &impl AsRawFd) -> PathBuf {
    format!("/proc/self/fd/{}", descriptor.as_raw_fd()).into()
}

/// A directory that the user has named, and everything below it. Look-ups below it follow no links.
pub struct HostTree {
    /// The path as the user wrote it.
    user_path: PathBuf,
    top: PathHandle,
    /// The parent directory that was used last.
    last_parent: Option<(PathBuf, Rc<PathHandle>)>,
}

impl HostTree {
    /// Opens a directory. Follows links in the path.
    pub fn open(user_path: &Path) -> io::Result<Self> {
        let directory = match user_path.as_os_str().is_empty() {
            true => Path::new("."),
            false => user_path,
        };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let top = PathHandle::new(openat(CWD, directory, flags, Mode::empty())?);
        Ok(Self { user_path: user_path.to_owned(), top, last_parent: None })
    }

    /// The path of a file below, as the user would write it.
    pub fn display_path(&self, relative: &Path) -> PathBuf {
        match relative.as_os_str().is_empty() {
            true => self.user_path.clone(),
            false => self.user_path.join(relative),
        }
    }

    /// Opens a path below. Does not follow a link.
    pub fn find(&self, relative: &Path) -> io::Result<PathHandle> {
        self.open_path(relative, OFlags::NOFOLLOW)
    }

    fn open_path(&self, relative: &Path, flags: OFlags) -> io::Result<PathHandle> {
        let relative = if relative.as_os_str().is_empty() { Path::new(".") } else { relative };
        let flags = flags | OFlags::PATH | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        Ok(PathHandle::new(openat2(&self.top, relative, flags, Mode::empty(), resolve)?))
    }

    /// The parent directory of a path below, and the last name of the path.
    pub fn parent<'p>(&mut self, relative: &'p Path) -> io::Result<(Rc<PathHandle>, &'p OsStr)> {
        let name = relative.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        let parent = relative.parent().unwrap_or(Path::new(""));
        let directory = match &self.last_parent {
            Some((last_parent, directory)) if last_parent == parent => Rc::clone(directory),
            _ => {
                let directory = Rc::new(self.open_path(parent, OFlags::DIRECTORY)?);
                self.last_parent = Some((parent.to_owned(), Rc::clone(&directory)));
                directory
            }
        };
        Ok((directory, name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{FileType, mknodat};
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn links_below_the_directory_are_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        fs::create_dir_all(folder.join("top/real")).unwrap();
        fs::write(folder.join("top/real/a"), "of a").unwrap();
        symlink("real", folder.join("top/link")).unwrap();
        symlink("top", folder.join("way")).unwrap();
        let mut tree = HostTree::open(&folder.join("way")).unwrap();
        assert!(tree.find(Path::new("real/a")).unwrap().metadata().unwrap().is_file());
        assert!(tree.find(Path::new("")).unwrap().metadata().unwrap().is_dir());
        assert!(tree.find(Path::new("link")).unwrap().metadata().unwrap().is_symlink());
        for path in ["link/a", "real/../../top/real/a"] {
            assert!(tree.find(Path::new(path)).is_err(), "{path}");
        }
        assert!(tree.parent(Path::new("link/new")).is_err());
        assert_eq!(tree.parent(Path::new("real/new")).unwrap().1, "new");
        assert_eq!(tree.parent(Path::new("new")).unwrap().1, "new");
    }

    #[test]
    fn a_handle_reads_its_file_after_the_name_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        fs::write(folder.join("secret"), "of others").unwrap();
        let tree = HostTree::open(folder).unwrap();
        let swap_in: [&dyn Fn(&Path); 2] = [&|path| symlink("secret", path).unwrap(), &|path| {
            mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap()
        }];
        for swap_in in swap_in {
            let path = folder.join("a");
            fs::write(&path, "of a").unwrap();
            let handle = tree.find(Path::new("a")).unwrap();
            fs::remove_file(&path).unwrap();
            swap_in(&path);
            assert_eq!(io::read_to_string(handle.open().unwrap()).unwrap(), "of a");
            fs::remove_file(&path).unwrap();
        }
    }
}
