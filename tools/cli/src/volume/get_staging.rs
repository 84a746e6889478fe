//! What `get` makes under another name in its directory, until all of it is there. What does not become
//! whole goes with this.

use super::host::{HostTree, PathHandle};
use super::overwrite::NameAction;
use rustix::fs::{AtFlags, RenameFlags, renameat, renameat_with, unlinkat};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::rc::Rc;

pub struct StagedEntry {
    directory: Rc<PathHandle>,
    name: String,
    exists: bool,
}

impl StagedEntry {
    /// Makes something in the directory of a path, under the first name from a number on that is free.
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
                // A killed one of this number has left it.
                Err(Errno::EXIST) => {}
                made => {
                    let made = made?;
                    return Ok((Self { directory, name, exists: true }, made));
                }
            }
        }
    }

    /// Holds it.
    pub fn open_path(&self) -> io::Result<PathHandle> {
        PathHandle::at(&self.directory, OsStr::new(&self.name))
    }

    /// Gives it the name that it is for.
    ///
    /// # Errors
    /// EEXIST, if the name was to be free and is not.
    pub fn rename(mut self, target: &Path, action: NameAction) -> io::Result<()> {
        let name = target.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        let (from, to) = (&self.directory, &self.directory);
        let renamed = match action {
            NameAction::Create => renameat_with(from, &self.name, to, name, RenameFlags::NOREPLACE),
            _ => Err(Errno::INVAL),
        };
        match renamed {
            // Not every file system has the other.
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
            // What keeps it from being removed has kept it from its name before, and was said.
            let _ = unlinkat(&self.directory, &self.name, AtFlags::empty());
        }
    }
}
