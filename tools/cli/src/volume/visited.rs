//! The directories that a walk has visited. A directory has one name; where an image gives it two, a walk by
//! every name would double at each level, and not end.

use super::volume_path::VolumePath;
use std::collections::HashSet;
use uringfs::InodeNumber;
use uringfs_lab::Error;

/// Of one walk, from one path on; the next path is another walk, which may enter them again. The path itself
/// need not be in it: nothing below it leads there, as the volume refuses a directory elsewhere than in its parent.
///
/// Takes 9 bytes of memory for each path in its table, which is at least 7/16 full: at most 21 bytes a directory,
/// and half as much again while it grows. A volume has hundreds of bytes of its catalog for each.
#[derive(Default)]
pub struct VisitedDirectories(HashSet<InodeNumber>);

impl VisitedDirectories {
    /// Enters a directory that was found at a path.
    ///
    /// # Errors
    /// It was visited before, by another name: it is to be left out.
    pub fn visit(&mut self, path: &VolumePath, directory: InodeNumber) -> Result<(), Error> {
        match self.0.insert(directory) {
            true => Ok(()),
            false => Err(Error::run(format!(
                "{path}: the directory is linked twice: the volume is damaged, run uringfs check"
            ))),
        }
    }
}
