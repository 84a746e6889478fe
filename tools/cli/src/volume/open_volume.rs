//! Opens and closes the volume of a command.

use super::put_staging::remove_leftovers;
use super::volume_path::with_path;
use std::ffi::OsStr;
use std::path::Path;
use uringfs::{Access, Device, FileKind, Follow, Volume};
use uringfs_lab::Error;

/// Opens the volume of a file or a block device: nobody else has it open for writing then, and
/// nobody at all if this program writes. Then it also removes what a killed `put` has left.
pub(super) fn open(target: &OsStr, access: Access) -> Result<Volume, Error> {
    let path = Path::new(target);
    let device = Device::open(path, access).map_err(|error| Error::input(error.to_string()))?;
    let opened = Volume::open_on(device).and_then(|volume| {
        if access == Access::ReadWrite {
            remove_leftovers(&volume)?;
        }
        Ok(volume)
    });
    opened.map_err(|error| with_path(&path.display(), error))
}

/// Makes all changes durable.
pub(super) fn sync(volume: &Volume, target: &OsStr) -> Result<(), Error> {
    volume.sync().map_err(|error| with_path(&target.display(), error))
}

/// Whether it leads to a directory.
pub(super) fn is_directory(volume: &Volume, path: &[u8]) -> bool {
    let found = volume.inode(path, Follow::Yes);
    found.is_ok_and(|(_, inode)| inode.kind == FileKind::Directory)
}
