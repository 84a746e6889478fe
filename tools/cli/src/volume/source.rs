//! What `put` finds on the machine: a file's attributes, extended attributes, and where it has data.

use super::Xattr;
use rustix::fs::{SeekFrom, lgetxattr, llistxattr, seek};
use rustix::io::Errno;
use std::fs::{File as HostFile, Metadata};
use std::io;
use std::ops::Range;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use uringfs::{FileKind, Inode, Time};
use uringfs_lab::Error;

/// Bytes of all names of extended attributes that a file may have on Linux, and of one value.
const LONGEST_LIST: usize = 65_536;
const LARGEST_VALUE: usize = 65_536;

/// What is known of a file; a symbolic link is not followed.
pub fn look(path: &Path) -> Result<Metadata, Error> {
    path.symlink_metadata().map_err(|error| cannot_read(path, error))
}

pub fn cannot_read(path: &Path, error: io::Error) -> Error {
    Error::input(format!("{}: cannot be read", path.display())).because(error)
}

/// Where a file has data: all of it, or what lies between its holes.
pub fn data(host: &HostFile, found: &Metadata) -> io::Result<Vec<Range<u64>>> {
    let size = found.len();
    if found.blocks() * 512 >= size {
        return Ok(Vec::from_iter((size > 0).then_some(0..size)));
    }
    let (mut ranges, mut at) = (Vec::new(), 0);
    while at < size {
        let start = match seek(host, SeekFrom::Data(at)) {
            Ok(start) => start,
            // Nothing but a hole is left.
            Err(Errno::NXIO) => break,
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

/// The extended attributes of a file of the machine; none where its file system has none.
pub fn xattrs(path: &Path) -> io::Result<Vec<Xattr>> {
    // Hardly a file has any; a list of some does not fit into one byte.
    match llistxattr(path, &mut [0_u8; 1][..]) {
        Ok(0) | Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
        Err(Errno::RANGE) => {}
        listed => _ = listed?,
    }
    let mut list = vec![0; LONGEST_LIST];
    let listed = llistxattr(path, &mut list[..])?;
    let names = list[..listed].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    let mut found = Vec::new();
    for name in names {
        let mut value = vec![0; LARGEST_VALUE];
        match lgetxattr(path, name, &mut value[..]) {
            // Somebody has removed it meanwhile.
            Err(Errno::NODATA) => {}
            length => {
                value.truncate(length?);
                found.push((name.to_vec(), value));
            }
        }
    }
    Ok(found)
}

/// What a file of the machine is in a volume.
pub fn attributes(path: &Path, found: &Metadata) -> Result<Inode, Error> {
    let kind = FileKind::of_mode(found.mode() as u16, found.rdev())
        .ok_or_else(|| Error::input(format!("{}: is of no known kind", path.display())))?;
    let mut inode = Inode::new(kind, found.mode() as u16 & 0o7777);
    (inode.user, inode.group) = (found.uid(), found.gid());
    let time = |seconds: i64, nanoseconds: i64| {
        Time(seconds.saturating_mul(1_000_000_000).saturating_add(nanoseconds))
    };
    inode.accessed = time(found.atime(), found.atime_nsec());
    inode.modified = time(found.mtime(), found.mtime_nsec());
    if kind == FileKind::Symlink {
        let target = path.read_link().map_err(|error| cannot_read(path, error))?;
        let target = PathBuf::into_os_string(target).into_vec();
        (inode.size, inode.target) = (target.len() as u64, target.into());
    }
    Ok(inode)
}
