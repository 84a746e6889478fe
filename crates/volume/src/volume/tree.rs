//! Calls that change many names: `create_dir_all` and `remove_dir_all`.

use std::path::Path;

use uringfs_device::Errno;

use crate::core::blocking::WaitMode;
use crate::error::{Error, OfPath};
use crate::namespace::directory::DirectoryEntry;
use crate::namespace::operations as operation;
use crate::namespace::path::{Follow, NameAt, bytes};
use crate::records::inode::{FileType, InodeNumber};
use crate::volume::names::new_directory;
use crate::volume::volume::Volume;

impl Volume {
    pub(crate) async fn create_dir_all_in_mode(
        &self,
        mode: WaitMode,
        path: &Path,
    ) -> Result<(), Error> {
        let directory = new_directory();
        // From the first that exists, or can be created, down to the last.
        let mut missing = Vec::new();
        for ancestor in path.ancestors().filter(|ancestor| !bytes(*ancestor).is_empty()) {
            let make = operation::make(NameAt::Path(bytes(ancestor)), &directory);
            match self.change(mode, make).await.of_path(bytes(ancestor)) {
                Err(error) if error.errno() == Errno::NOENT => missing.push(ancestor),
                Err(error) if error.errno() == Errno::EXIST => {
                    let found = self.metadata_in_mode(mode, bytes(ancestor), Follow::Yes).await?;
                    if !found.is_dir() {
                        let what = format!("{} is not a directory", ancestor.display());
                        return Err(Error::refused(Errno::NOTDIR, what).of_path(bytes(ancestor)));
                    }
                    break;
                }
                made => {
                    made?;
                    break;
                }
            }
        }
        for ancestor in missing.into_iter().rev() {
            let make = operation::make(NameAt::Path(bytes(ancestor)), &directory);
            match self.change(mode, make).await.of_path(bytes(ancestor)) {
                // Another caller has created it.
                Err(error) if error.errno() == Errno::EXIST => {}
                made => drop(made?),
            }
        }
        Ok(())
    }

    pub(crate) async fn remove_dir_all_in_mode(
        &self,
        mode: WaitMode,
        path: &[u8],
    ) -> Result<(), Error> {
        self.remove_tree(mode, path).await.of_path(path)
    }

    async fn remove_tree(&self, mode: WaitMode, path: &[u8]) -> Result<(), Error> {
        let (parent, name, number) =
            self.shared.run_transaction(mode, operation::name_of_directory(path)).await?;
        // From the directory itself down to the one that is being emptied.
        let mut open = vec![OpenDirectory::new(parent, name, number)];
        while let Some(last) = open.last_mut() {
            let Some(entry) = last.entries.next() else {
                // From where the last batch ended: a listing from the start would pass all that was removed again.
                let batch = self.entries_for_lookups(mode, last.number, last.after.clone()).await?;
                let Some(end) = batch.entries.last() else {
                    let name = NameAt::Entry(last.parent, &last.name);
                    let removal = operation::remove_directory(name);
                    gone_or(self.change(mode, removal).await)?;
                    open.pop();
                    continue;
                };
                last.after.clone_from(&end.name);
                last.entries = batch.entries.into_iter();
                continue;
            };
            if entry.kind == FileType::Directory {
                let parent = last.number;
                open.push(OpenDirectory::new(parent, entry.name, entry.inode));
            } else {
                let name = NameAt::Entry(last.number, &entry.name);
                gone_or(self.change(mode, operation::remove(name)).await)?;
            }
        }
        Ok(())
    }
}

/// A directory that is being emptied, and its name.
struct OpenDirectory {
    parent: InodeNumber,
    name: Vec<u8>,
    number: InodeNumber,
    entries: std::vec::IntoIter<DirectoryEntry>,
    /// The next batch begins after this name.
    after: Vec<u8>,
}

impl OpenDirectory {
    fn new(parent: InodeNumber, name: Vec<u8>, number: InodeNumber) -> OpenDirectory {
        let (entries, after) = (Vec::new().into_iter(), Vec::new());
        OpenDirectory { parent, name, number, entries, after }
    }
}

/// Whether a name is gone: another caller may have removed it.
fn gone_or(removed: Result<(), Error>) -> Result<(), Error> {
    match removed {
        Err(error) if error.errno() == Errno::NOENT => Ok(()),
        removed => removed,
    }
}
