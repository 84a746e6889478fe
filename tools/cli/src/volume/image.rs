//! The files that hold the volume. No command copies them into the volume or replaces them.

use super::host::{FileId, file_id};
use super::quoting::for_message;
use super::target::is_uri;
use std::ffi::OsStr;
use std::fs::Metadata;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use uringfs_lab::Error;

/// The files that a volume is in: the image file by any name, and the files below a loop device.
pub struct ImageFiles(Vec<FileId>);

impl ImageFiles {
    /// The files of the volume at a path.
    /// An export of an NBD server is in none that can be told.
    pub fn of_volume(target: &OsStr) -> Result<Self, Error> {
        if is_uri(target) {
            return Ok(Self(Vec::new()));
        }
        let target = Path::new(target);
        let mut files = Vec::new();
        let mut next = Some(target.to_owned());
        while let Some(found) = next.take().map(|path| path.metadata()) {
            // The backing file of a device may have been unlinked.
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
            true => Err(Error::run(format!("{}: does not exist any more", for_message(target)))),
            false => Ok(Self(files)),
        }
    }

    pub fn contains(&self, found: &Metadata) -> bool {
        self.0.contains(&file_id(found))
    }

    /// Whether the open file is one of them.
    pub fn contains_open_file(&self, descriptor: &impl AsFd) -> io::Result<bool> {
        let found = std::fs::File::from(descriptor.as_fd().try_clone_to_owned()?).metadata()?;
        Ok(self.contains(&found))
    }
}

/// The backing file of a loop device, or of the loop device that a partition is on.
fn backing_file(device: u64) -> Option<PathBuf> {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let node = PathBuf::from(format!("/sys/dev/block/{major}:{minor}")).canonicalize().ok()?;
    let path = [node.join("loop/backing_file"), node.parent()?.join("loop/backing_file")]
        .iter()
        .find_map(|path| std::fs::read(path).ok())?;
    let path = path.strip_suffix(b"\n").unwrap_or(&path);
    Some(OsStr::from_bytes(path).into())
}
