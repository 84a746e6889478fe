//! The directory in which `put` has files until they are whole.

use super::entries::Entries;
use super::volume_path::join;
use rustix::io::Errno;
use uringfs::{FileKind, Follow, Volume, VolumeError};

/// Where `put` has files until they are whole: a directory whose inode says so.
pub(super) const STAGING: &str = "/.uringfs-put";

/// Removes what is half-written: directories with the flag of staging. What else has their names is the user's.
pub(super) fn remove_leftovers(volume: &Volume) -> Result<(), VolumeError> {
    for path in staging_names() {
        match volume.inode(&path, Follow::No) {
            Ok((_, inode)) if inode.is_staging => remove_staging_directory(volume, &path)?,
            Ok(_) => {}
            Err(error) if error.errno() == Errno::NOENT => break,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// A staging directory, and all that is in it.
pub(super) fn remove_staging_directory(volume: &Volume, staging: &[u8]) -> Result<(), VolumeError> {
    for entry in Entries::new(volume, staging) {
        let entry = entry?;
        let path = join(staging, &entry.name);
        match entry.kind {
            FileKind::Directory => volume.remove_directory(path)?,
            _ => volume.remove(path)?,
        }
    }
    volume.remove_directory(staging)
}

/// The first name for a staging directory that nothing has.
pub(super) fn unused_staging_name(volume: &Volume) -> Result<Vec<u8>, VolumeError> {
    for path in staging_names() {
        match volume.inode(&path, Follow::No) {
            Ok(_) => {}
            Err(error) if error.errno() == Errno::NOENT => return Ok(path),
            Err(error) => return Err(error),
        }
    }
    unreachable!("a directory does not hold every name")
}

/// Names of staging directories: the first is the usual one, the others are for where the user has that.
pub(super) fn staging_names() -> impl Iterator<Item = Vec<u8>> {
    let others = (1_u64..).map(|number| format!("{STAGING}-{number}"));
    std::iter::once(STAGING.to_owned()).chain(others).map(String::into_bytes)
}
