//! The directories that a tree walk has visited. A directory has one name. In a damaged or crafted image it can
//! have two; a walk that enters by every name would double at each level, and practically never end.

use super::volume_path::VolumePath;
use std::collections::HashSet;
use uringfs::volume::InodeNumber;
use uringfs_lab::Error;

/// The visited directories of one walk, which starts at one path. A walk from another path starts with an empty
/// set. The start need not be in the set: no entry below leads back to it, as the volume refuses a directory
/// outside its parent.
///
/// Takes 9 bytes of memory per slot of its table, which is at least 7/16 full: at most 21 bytes per directory, and
/// half as much again while the table grows. A volume has hundreds of bytes of its catalog per directory.
#[derive(Default)]
pub struct VisitedDirectories(HashSet<InodeNumber>);

impl VisitedDirectories {
    /// Records a visit of the directory at `path`.
    ///
    /// # Errors
    /// The directory was already visited by another name. The caller must skip it.
    pub fn visit(&mut self, path: &VolumePath, directory: InodeNumber) -> Result<(), Error> {
        match self.0.insert(directory) {
            true => Ok(()),
            false => Err(Error::run(format!(
                "{path}: the directory has two names; the volume is damaged: run uringfs check"
            ))),
        }
    }
}
