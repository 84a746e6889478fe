//! Temporary names of `get`: a file is created under a temporary name in its directory and renamed when it is
//! complete.

use super::host::{HostTree, PathHandle};
use super::overwrite::NameAction;
use rustix::fs::{AtFlags, RenameFlags, renameat, renameat_with, unlinkat};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::rc::Rc;

/// A file under a temporary name. Dropping it removes the file, unless it was renamed.
pub struct StagedEntry {
    directory: Rc<PathHandle>,
    name: String,
    exists: bool,
}

impl StagedEntry {
    /// Creates a file by `create` in the directory of `target`, under the first free temporary name from `number` on.
    pub fn create<T>(
        tree: &mut HostTree,
        target: &Path,
        number: &mut u64,
        create: impl Fn(&PathHandle, &str) -> rustix::io::Result<T>,
    ) -> io::Result<(Self, T)> {
        let (directory, _) = tree.parent(target)?;
        loop {
            *number += 1;
            let name = format!(".uringfs-get-{}-{number}", std::process::id());
            match create(&directory, &name) {
                // Left by a killed process with the same id.
                Err(Errno::EXIST) => {}
                created => {
                    let created = created?;
                    return Ok((Self { directory, name, exists: true }, created));
                }
            }
        }
    }

    /// Opens a handle of the file.
    pub fn open_path(&self) -> io::Result<PathHandle> {
        PathHandle::at(&self.directory, OsStr::new(&self.name))
    }

    /// Renames the file to the last name of `target`.
    ///
    /// # Errors
    /// EEXIST for `Create` if the name exists.
    pub fn rename(mut self, target: &Path, action: NameAction) -> io::Result<()> {
        let name = target.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        let (from, to) = (&self.directory, &self.directory);
        let renamed = match action {
            NameAction::Create => renameat_with(from, &self.name, to, name, RenameFlags::NOREPLACE),
            _ => Err(Errno::INVAL),
        };
        match renamed {
            // Not every file system supports `RENAME_NOREPLACE`.
            Err(Errno::INVAL) => renameat(from, &self.name, to, name)?,
            renamed => renamed?,
        }
        self.exists = false;
        Ok(())
    }
}

impl Drop for StagedEntry {
    fn drop(&mut self) {
        if self.exists {
            // The cause of a failure here has made the rename fail before, and that was reported.
            let _ = unlinkat(&self.directory, &self.name, AtFlags::empty());
        }
    }
}
