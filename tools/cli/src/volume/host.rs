//! Files of the machine as `put` reads and `get` makes them: each is found once, held, and from then on
//! reached by what is held. A link, a FIFO or another file that takes its name meanwhile changes nothing.

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2};
use std::ffi::OsStr;
use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// Whether two files are one: the device they are on, and their number there.
pub type FileId = (u64, u64);

pub fn file_id(found: &Metadata) -> FileId {
    (found.dev(), found.ino())
}

/// A file of any kind that is held, and neither read nor user_path by that (`O_PATH`). A symbolic link is
/// held itself.
pub struct PathHandle(File);

impl PathHandle {
    fn new(descriptor: OwnedFd) -> Self {
        Self(descriptor.into())
    }

    /// What has a name in a directory; a link is not followed.
    pub fn at(directory: &PathHandle, name: &OsStr) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(Self::new(openat(directory, name, flags, Mode::empty())?))
    }

    pub fn metadata(&self) -> io::Result<Metadata> {
        self.0.metadata()
    }

    /// A path that leads to this file alone, whatever its names lead to meanwhile.
    pub fn path(&self) -> PathBuf {
        fd_path(&self.0)
    }

    /// Opens a file to read it. Nothing is waited for: some files of `/proc` would.
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

/// The path of a descriptor's file. Calls that follow links reach it by this, whatever kind it is.
pub fn fd_path(descriptor: &impl AsRawFd) -> PathBuf {
    format!("/proc/self/fd/{}", descriptor.as_raw_fd()).into()
}

/// A directory that the user has named, and all that is below it: no link there is followed.
pub struct HostTree {
    /// As the user wrote it.
    user_path: PathBuf,
    top: PathHandle,
    /// The directory that was asked for last_parent.
    last_parent: Option<(PathBuf, Rc<PathHandle>)>,
}

impl HostTree {
    /// The directory of a path, which may lead there by links.
    pub fn open(user_path: &Path) -> io::Result<Self> {
        let directory = match user_path.as_os_str().is_empty() {
            true => Path::new("."),
            false => user_path,
        };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let top = PathHandle::new(openat(CWD, directory, flags, Mode::empty())?);
        Ok(Self { user_path: user_path.to_owned(), top, last_parent: None })
    }

    /// A path below as the user would write it.
    pub fn display_path(&self, relative: &Path) -> PathBuf {
        match relative.as_os_str().is_empty() {
            true => self.user_path.clone(),
            false => self.user_path.join(relative),
        }
    }

    /// What a path below leads to; itself, if it is a link.
    pub fn find(&self, relative: &Path) -> io::Result<PathHandle> {
        self.open_path(relative, OFlags::NOFOLLOW)
    }

    fn open_path(&self, relative: &Path, flags: OFlags) -> io::Result<PathHandle> {
        let relative = if relative.as_os_str().is_empty() { Path::new(".") } else { relative };
        let flags = flags | OFlags::PATH | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        Ok(PathHandle::new(openat2(&self.top, relative, flags, Mode::empty(), resolve)?))
    }

    /// The directory that a path below is in, and the path's name there.
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
    fn no_link_below_the_directory_is_followed() {
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
    fn what_is_held_is_read_whatever_takes_its_name() {
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
            let held = tree.find(Path::new("a")).unwrap();
            fs::remove_file(&path).unwrap();
            swap_in(&path);
            assert_eq!(io::read_to_string(held.open().unwrap()).unwrap(), "of a");
            fs::remove_file(&path).unwrap();
        }
    }
}
