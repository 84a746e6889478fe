//! The staging directory of `put` and `cp` in a volume: files stay there until they are complete.

use super::entries::Entries;
use super::files::Files;
use super::volume_path::{as_path, join};
use uringfs::volume::{FileType, Follow, Inode};
use uringfs::{Errno, Error as VolumeError};

/// The usual name of the staging directory. A flag in its inode marks it as one.
pub(super) const STAGING: &str = "/.uringfs-put";

/// The attribute for the ACL that new files in a directory inherit.
const DEFAULT_ACL_XATTR: &str = "system.posix_acl_default";

/// Removes staging directories that a killed `put` has left. A file of such a name without the flag belongs to
/// the user and stays.
pub(super) fn remove_leftovers(volume: &Files) -> Result<(), VolumeError> {
    for path in staging_names() {
        match volume.symlink_metadata(as_path(&path)) {
            Ok(found) if found.inode().is_staging => remove_staging_directory(volume, &path)?,
            Ok(_) => {}
            Err(error) if error.errno() == Errno::NOENT => break,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Removes a staging directory and its contents.
pub(super) fn remove_staging_directory(volume: &Files, staging: &[u8]) -> Result<(), VolumeError> {
    for entry in Entries::new(volume, staging) {
        let entry = entry?;
        let path = join(staging, &entry.name);
        match entry.kind {
            FileType::Directory => volume.remove_dir(as_path(&path))?,
            _ => volume.remove_file(as_path(&path))?,
        }
    }
    volume.remove_dir(as_path(staging))
}

/// Creates the staging directory, so that files in it inherit no group and no ACL from the root directory: all
/// attributes come from the sources.
pub(super) fn make_staging_directory(volume: &Files) -> Result<Vec<u8>, VolumeError> {
    let path = make_in_unused_name(volume)?;
    volume.set_attributes(as_path(&path), Follow::No, |its| its.permissions = 0o700)?;
    match volume.remove_xattr(as_path(&path), Follow::No, DEFAULT_ACL_XATTR) {
        Err(error) if error.errno() != Errno::NODATA => Err(error),
        _ => Ok(path),
    }
}

/// The first free name is the new directory's. Of a mounted volume another command may take it first.
fn make_in_unused_name(volume: &Files) -> Result<Vec<u8>, VolumeError> {
    let mut inode = Inode::new(FileType::Directory, 0o700);
    inode.is_staging = true;
    for path in staging_names() {
        match volume.mknod(as_path(&path), &inode) {
            Ok(_) => return Ok(path),
            Err(error) if error.errno() == Errno::EXIST => {}
            Err(error) => return Err(error),
        }
    }
    unreachable!("a directory does not hold every name")
}

/// The possible names of staging directories. All but the first are used only if the user has a file of that name.
pub(super) fn staging_names() -> impl Iterator<Item = Vec<u8>> {
    let others = (1_u64..).map(|number| format!("{STAGING}-{number}"));
    std::iter::once(STAGING.to_owned()).chain(others).map(String::into_bytes)
}
