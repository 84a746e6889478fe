//! Paths: names between slashes, from the root, with symbolic links. A path that ends in a slash, or in a link whose
//! target does, must lead to a directory (POSIX 4.16, Linux fs/namei.c).

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use uringfs_device::Errno;

use crate::error::{Error, quoted};
use crate::namespace::transaction::{Retry, Transaction};
use crate::records::inode::{FileType, InodeNumber};

/// Symbolic links that one path may contain, as on Linux.
const MAX_SYMLINKS: u32 = 40;
/// The longest path, as on Linux.
const MAX_PATH_BYTES: usize = 4096;

/// The treatment of a symbolic link at the end of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Follow {
    /// Use the link's target.
    Yes,
    /// Use the link itself.
    No,
}

/// The inode that an operation is about.
#[derive(Clone, Copy, Debug)]
pub(crate) enum InodeAt<'a> {
    /// The inode that a path leads to.
    Path(&'a [u8], Follow),
    /// The inode of this number.
    Number(InodeNumber),
}

/// The name that an operation is about; it need not exist.
#[derive(Clone, Copy, Debug)]
pub(crate) enum NameAt<'a> {
    /// The last name of a path.
    Path(&'a [u8]),
    /// A name in the directory of this number.
    Entry(InodeNumber, &'a [u8]),
}

impl<'a> NameAt<'a> {
    /// The path, or the name, for messages.
    pub(crate) fn bytes(self) -> &'a [u8] {
        match self {
            NameAt::Path(bytes) | NameAt::Entry(_, bytes) => bytes,
        }
    }
}

/// The bytes of a path.
pub(crate) fn bytes<P: AsRef<Path> + ?Sized>(path: &P) -> &[u8] {
    path.as_ref().as_os_str().as_bytes()
}

/// A path without its last name: the directory, and that name.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Parent {
    pub(crate) directory: InodeNumber,
    /// Empty if the path leads to the directory itself.
    pub(crate) name: Vec<u8>,
    /// The path ends in a slash, so the name must be a directory's.
    pub(crate) ends_in_slash: bool,
}

impl Transaction<'_> {
    /// The number of an inode. It exists if it was found by path; a number is not looked up.
    ///
    /// # Errors
    /// As [`Self::resolve`].
    pub(crate) fn inode_at(&self, at: InodeAt<'_>) -> Result<InodeNumber, Retry> {
        match at {
            InodeAt::Path(path, follow) => self.resolve(path, follow),
            InodeAt::Number(number) => Ok(number),
        }
    }

    /// The directory of a name.
    ///
    /// # Errors
    /// As [`Self::resolve`].
    pub(crate) fn name_at(&self, at: NameAt<'_>) -> Result<Parent, Retry> {
        match at {
            NameAt::Path(path) => self.parent_following(path, Follow::No),
            NameAt::Entry(directory, name) => {
                Ok(Parent { directory, name: name.to_vec(), ends_in_slash: false })
            }
        }
    }

    /// The inode that a path leads to.
    ///
    /// # Errors
    /// ENOENT, ENOTDIR, ELOOP, ENAMETOOLONG; errors of the catalog.
    pub(crate) fn resolve(&self, path: &[u8], follow: Follow) -> Result<InodeNumber, Retry> {
        self.walk_to_end(path, follow).map_err(|stop| stop.of_path(path))
    }

    fn walk_to_end(&self, path: &[u8], follow: Follow) -> Result<InodeNumber, Retry> {
        let mut walk = Walk::new(path)?;
        let mut at = InodeNumber::ROOT;
        while let Some(name) = walk.next() {
            at = self.step(&mut walk, at, &name, follow)?;
        }
        Ok(at)
    }

    /// The directory of a path's last name. The name itself need not exist. With [`Follow::Yes`] it also follows
    /// symbolic links at the path's end, and returns the directory and name of the file that is missing there; the name
    /// is empty if the whole path exists.
    ///
    /// # Errors
    /// As [`Self::resolve`].
    pub(crate) fn parent_following(&self, path: &[u8], follow: Follow) -> Result<Parent, Retry> {
        self.walk_to_parent(path, follow).map_err(|stop| stop.of_path(path))
    }

    fn walk_to_parent(&self, path: &[u8], follow: Follow) -> Result<Parent, Retry> {
        let mut walk = Walk::new(path)?;
        let mut at = InodeNumber::ROOT;
        while let Some(name) = walk.next() {
            let is_last = walk.rest.is_empty() && name != b"." && name != b"..";
            if is_last && (follow == Follow::No || self.find(at, &name)?.is_none()) {
                return Ok(Parent { directory: at, name, ends_in_slash: walk.ends_in_slash });
            }
            at = self.step(&mut walk, at, &name, Follow::Yes)?;
        }
        Ok(Parent { directory: at, name: Vec::new(), ends_in_slash: false })
    }

    /// Checks that a name before a slash is a directory's.
    ///
    /// # Errors
    /// ENOTDIR; ENOENT if the name does not exist.
    pub(crate) fn require_directory(&self, parent: &Parent) -> Result<(), Retry> {
        let (_, inode) = self.lookup(parent.directory, &parent.name)?;
        match inode.kind {
            FileType::Directory => Ok(()),
            _ => Err(not_a_directory(&parent.name).into()),
        }
    }

    fn step(
        &self,
        walk: &mut Walk,
        at: InodeNumber,
        name: &[u8],
        follow: Follow,
    ) -> Result<InodeNumber, Retry> {
        let directory = self.directory(at, name)?;
        match name {
            b"." => return Ok(at),
            b".." => return Ok(directory.parent),
            _ => {}
        }
        let (found, inode) = self.lookup(at, name)?;
        if walk.rest.is_empty() && follow == Follow::No && !walk.ends_in_slash {
            return Ok(found);
        }
        match inode.kind {
            FileType::Symlink => {}
            FileType::Directory => return Ok(found),
            _ if walk.rest.is_empty() && walk.ends_in_slash => {
                return Err(not_a_directory(name).into());
            }
            _ => return Ok(found),
        }
        walk.follow_symlink(&inode.target)?;
        Ok(if inode.target.starts_with(b"/") { InodeNumber::ROOT } else { at })
    }
}

fn not_a_directory(name: &[u8]) -> Error {
    let what = format!("{} is not a directory, but a slash follows it", quoted(name));
    Error::refused(Errno::NOTDIR, what)
}

/// The rest of a path during a walk.
struct Walk {
    /// The remaining names, the next one last.
    rest: Vec<Vec<u8>>,
    /// The last name must be a directory's.
    ends_in_slash: bool,
    symlinks: u32,
}

impl Walk {
    fn new(path: &[u8]) -> Result<Walk, Error> {
        let mut walk = Walk { rest: Vec::new(), ends_in_slash: path.ends_with(b"/"), symlinks: 0 };
        walk.push(path)?;
        Ok(walk)
    }

    fn push(&mut self, path: &[u8]) -> Result<(), Error> {
        if path.len() > MAX_PATH_BYTES {
            let what = format!("a path of {} bytes: the maximum is 4096", path.len());
            return Err(Error::refused(Errno::NAMETOOLONG, what));
        }
        let names = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty());
        self.rest.extend(names.rev().map(<[u8]>::to_vec));
        Ok(())
    }

    fn next(&mut self) -> Option<Vec<u8>> {
        self.rest.pop()
    }

    fn follow_symlink(&mut self, target: &[u8]) -> Result<(), Error> {
        self.symlinks += 1;
        if self.symlinks > MAX_SYMLINKS {
            return Err(Error::refused(Errno::LOOP, "the path has more than 40 symbolic links"));
        }
        self.ends_in_slash |= self.rest.is_empty() && target.ends_with(b"/");
        self.push(target)
    }
}
