//! Paths: from the root, names between slashes, symbolic links followed. A path that ends in a slash, or
//! in a link whose target does, leads to a directory or nowhere (POSIX 4.16, Linux fs/namei.c).

use rustix::io::Errno;

use crate::error::Error;
use crate::namespace::directory::quoted;
use crate::namespace::transaction::{Retry, Transaction};
use crate::records::inode::{FileKind, InodeNumber};

/// Symbolic links that one path may lead through, as Linux.
const MAX_SYMLINKS: u32 = 40;
/// Bytes of the longest path, as Linux.
const MAX_PATH_BYTES: usize = 4096;

/// Whether a symbolic link at a path's end is meant, or what it leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Follow {
    /// What it leads to.
    Yes,
    /// Itself.
    No,
}

/// Where a path leads: a directory, and the last name in it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Parent {
    pub(crate) directory: InodeNumber,
    /// Empty, where the path ends in the directory itself.
    pub(crate) name: Vec<u8>,
    /// The path ends in a slash: the name is a directory's.
    pub(crate) ends_in_slash: bool,
}

impl Transaction<'_> {
    /// What a path leads to.
    ///
    /// # Errors
    /// ENOENT, ENOTDIR, ELOOP, ENAMETOOLONG; what the catalog says.
    pub(crate) fn resolve(&self, path: &[u8], follow: Follow) -> Result<InodeNumber, Retry> {
        let mut walk = Walk::new(path)?;
        let mut at = InodeNumber::ROOT;
        while let Some(name) = walk.next() {
            at = self.step(&mut walk, at, &name, follow)?;
        }
        Ok(at)
    }

    /// The directory that a path's last name is in; that name need not be there.
    ///
    /// # Errors
    /// As [`Self::resolve`].
    pub(crate) fn parent(&self, path: &[u8]) -> Result<Parent, Retry> {
        let mut walk = Walk::new(path)?;
        let mut at = InodeNumber::ROOT;
        while let Some(name) = walk.next() {
            if walk.rest.is_empty() && name != b"." && name != b".." {
                let ends_in_slash = path.ends_with(b"/");
                return Ok(Parent { directory: at, name, ends_in_slash });
            }
            at = self.step(&mut walk, at, &name, Follow::Yes)?;
        }
        Ok(Parent { directory: at, name: Vec::new(), ends_in_slash: false })
    }

    /// Refuses a name, behind which a slash stands, of anything but a directory.
    ///
    /// # Errors
    /// ENOTDIR; ENOENT where the name names nothing.
    pub(crate) fn require_directory(&self, parent: &Parent) -> Result<(), Retry> {
        let (_, inode) = self.lookup(parent.directory, &parent.name)?;
        match inode.kind {
            FileKind::Directory => Ok(()),
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
        let directory = self.inode(at)?;
        if directory.kind != FileKind::Directory {
            let what = format!("what {} should be in is no directory", quoted(name));
            return Err(Error::refused(Errno::NOTDIR, what).into());
        }
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
            FileKind::Symlink => {}
            FileKind::Directory => return Ok(found),
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
    let what = format!("{} is no directory, and a slash stands behind it", quoted(name));
    Error::refused(Errno::NOTDIR, what)
}

/// What is left of a path.
struct Walk {
    /// The names to come, the next one last.
    rest: Vec<Vec<u8>>,
    /// Its last name is a directory's.
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
            let what = format!("a path of {} bytes: 4096 are the most", path.len());
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
            return Err(Error::refused(Errno::LOOP, "the path leads through 40 symbolic links"));
        }
        self.ends_in_slash |= self.rest.is_empty() && target.ends_with(b"/");
        self.push(target)
    }
}
