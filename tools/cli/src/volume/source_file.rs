//! Files of the host that `put` reads: attributes, extended attributes, and data ranges.

use super::copy_progress::Xattr;
use super::exit_codes::with_io_code;
use super::host::{HostTree, PathHandle};
use super::quoting::for_message;
use rustix::fs::{Dir, SeekFrom, getxattr, listxattr, readlinkat, seek};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fs::{File as HostFile, Metadata};
use std::io;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use uringfs::volume::{FileType, Inode, Time};
use uringfs_lab::Error;

/// Limits of Linux for the names of all extended attributes of a file, and for one value.
const MAX_XATTR_LIST_BYTES: usize = 65_536;
const MAX_XATTR_VALUE_BYTES: usize = 65_536;

/// A file of the host to copy into the volume.
pub struct SourceFile {
    /// The path as the user would write it.
    pub path: PathBuf,
    pub metadata: Metadata,
    handle: PathHandle,
}

impl SourceFile {
    /// Opens a handle of a file below a directory. Does not follow a symbolic link.
    pub fn find(tree: &HostTree, below: &Path) -> Result<Self, Error> {
        let path = tree.display_path(below);
        let opened = tree.find(below).and_then(|handle| Ok((handle.metadata()?, handle)));
        let (metadata, handle) = opened.map_err(|error| cannot_read(&path, error))?;
        Ok(Self { path, metadata, handle })
    }

    /// Opens the file for reading.
    pub fn open(&self) -> Result<HostFile, Error> {
        self.handle.open().map_err(|error| self.cannot_read(error))
    }

    /// The names in a directory, in descending order of their bytes.
    pub fn names_reversed(&self) -> Result<Vec<OsString>, Error> {
        let names = self.handle.open().and_then(|directory| {
            let names = Dir::new(directory)?
                .map(|entry| Ok(OsStr::from_bytes(entry?.file_name().to_bytes()).to_owned()));
            names.collect::<io::Result<Vec<OsString>>>()
        });
        let mut names = names.map_err(|error| self.cannot_read(error))?;
        names.retain(|name| name != "." && name != "..");
        names.sort_unstable_by(|one, other| other.cmp(one));
        Ok(names)
    }

    /// The extended attributes. Empty if the file system does not support them.
    pub fn xattrs(&self) -> Result<Vec<Xattr>, Error> {
        xattrs(&self.handle.path()).map_err(|error| self.cannot_read(error))
    }

    /// The inode that the file gets in a volume.
    pub fn attributes(&self) -> Result<Inode, Error> {
        let metadata = &self.metadata;
        let kind =
            FileType::from_mode(metadata.mode() as u16, metadata.rdev()).ok_or_else(|| {
                Error::input(format!("{}: unknown file type", for_message(&self.path)))
            })?;
        let mut inode = Inode::new(kind, metadata.mode() as u16 & 0o7777);
        (inode.user, inode.group) = (metadata.uid(), metadata.gid());
        let time = |seconds: i64, nanoseconds: i64| {
            let time = u32::try_from(nanoseconds).ok().and_then(|part| Time::new(seconds, part));
            let what = || format!("{}: has an invalid time", for_message(&self.path));
            time.ok_or_else(|| Error::input(what()))
        };
        inode.accessed = time(metadata.atime(), metadata.atime_nsec())?;
        inode.modified = time(metadata.mtime(), metadata.mtime_nsec())?;
        if kind == FileType::Symlink {
            let target = readlinkat(&self.handle, "", Vec::new());
            let target = target.map_err(|errno| self.cannot_read(errno.into()))?.into_bytes();
            (inode.size, inode.target) = (target.len() as u64, target.into());
        }
        Ok(inode)
    }

    pub fn cannot_read(&self, error: io::Error) -> Error {
        cannot_read(&self.path, error)
    }
}

pub fn cannot_read(path: &Path, error: io::Error) -> Error {
    let failed = Error::input(format!("{}: cannot be read", for_message(path)));
    with_io_code(failed, &error).because(error)
}

/// The ranges of a file that have data. Without holes, the whole file.
pub fn data_ranges(host: &HostFile, metadata: &Metadata) -> io::Result<Vec<Range<u64>>> {
    let size = metadata.len();
    let all = || Vec::from_iter((size > 0).then_some(0..size));
    if metadata.blocks() * 512 >= size {
        return Ok(all());
    }
    let (mut ranges, mut at) = (Vec::new(), 0);
    while at < size {
        let start = match seek(host, SeekFrom::Data(at)) {
            Ok(start) => start,
            // The rest is a hole.
            Err(Errno::NXIO) => break,
            // Some files of `/sys` do not support `SEEK_DATA`.
            Err(Errno::INVAL) => return Ok(all()),
            Err(errno) => return Err(errno.into()),
        };
        let end = seek(host, SeekFrom::Hole(start))?.min(size);
        if start >= end {
            break;
        }
        ranges.push(start..end);
        at = end;
    }
    Ok(ranges)
}

/// Reads the extended attributes. The path must lead to the file itself.
fn xattrs(path: &Path) -> io::Result<Vec<Xattr>> {
    // Hardly any file has extended attributes. A list that is not empty does not fit into one byte.
    match listxattr(path, &mut [0_u8; 1][..]) {
        Ok(0) | Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
        Err(Errno::RANGE) => {}
        listed => _ = listed?,
    }
    let mut list = vec![0; MAX_XATTR_LIST_BYTES];
    let listed = listxattr(path, &mut list[..])?;
    let names = list[..listed].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    let mut found = Vec::new();
    for name in names {
        let mut value = vec![0; MAX_XATTR_VALUE_BYTES];
        match getxattr(path, name, &mut value[..]) {
            // The attribute was removed meanwhile.
            Err(Errno::NODATA) => {}
            length => {
                value.truncate(length?);
                found.push((name.to_vec(), value));
            }
        }
    }
    Ok(found)
}
