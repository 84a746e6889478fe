//! The files that hold the volume. No command reads them into the volume or replaces them.

use super::host::{FileId, file_id};
use std::ffi::OsStr;
use std::fs::Metadata;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use uringfs_lab::Error;

/// The files that a volume is in: its image by any name, or what a loop device has below it.
pub struct ImageFiles(Vec<FileId>);

impl ImageFiles {
    /// Of the volume at a path.
    pub fn of_volume(target: &OsStr) -> Result<Self, Error> {
        let target = Path::new(target);
        let mut files = Vec::new();
        let mut next = Some(target.to_owned());
        while let Some(found) = next.take().map(|path| path.metadata()) {
            // A file below a device may have no name any more.
            let Ok(found) = found else { break };
            if files.contains(&file_id(&found)) {
                break;
            }
            files.push(file_id(&found));
            if found.file_type().is_block_device() {
                next = backing_file(found.rdev());
            }
        }
        match files.is_empty() {
            true => Err(Error::run(format!("{}: is not there any more", target.display()))),
            false => Ok(Self(files)),
        }
    }

    pub fn contains(&self, found: &Metadata) -> bool {
        self.0.contains(&file_id(found))
    }

    /// Whether it is what this reads or writes.
    pub fn contains_open_file(&self, descriptor: &impl AsFd) -> io::Result<bool> {
        let found = std::fs::File::from(descriptor.as_fd().try_clone_to_owned()?).metadata()?;
        Ok(self.contains(&found))
    }
}

/// The file below a loop device, or below the one that a partition is on.
fn backing_file(device: u64) -> Option<PathBuf> {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let node = PathBuf::from(format!("/sys/dev/block/{major}:{minor}")).canonicalize().ok()?;
    let path = [node.join("loop/backing_file"), node.parent()?.join("loop/backing_file")]
        .iter()
        .find_map(|path| std::fs::read(path).ok())?;
    let path = path.strip_suffix(b"\n").unwrap_or(&path);
    Some(OsStr::from_bytes(path).into())
}
