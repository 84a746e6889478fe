//! Calls that change many names: `create_dir_all` and `remove_dir_all`.

use std::path::Path;

use uringfs_device::Errno;

use crate::core::blocking::WaitMode;
use crate::error::{Error, OfPath};
use crate::namespace::directory::DirectoryEntry;
use crate::namespace::operations as operation;
use crate::namespace::path::{Follow, NameAt, bytes};
use crate::namespace::transaction::{Retry, Transaction};
use crate::records::inode::{FileType, InodeNumber};
use crate::volume::names::new_directory;
use crate::volume::volume::Volume;

impl Volume {
    pub(crate) async fn create_dir_all_in_mode(
        &self,
        mode: WaitMode,
        path: &Path,
    ) -> Result<(), Error> {
        // From the first that exists, or can be created, down to the last.
        let mut missing = Vec::new();
        for ancestor in path.ancestors().filter(|ancestor| !bytes(*ancestor).is_empty()) {
            match self.ensure_dir(mode, ancestor).await {
                Err(error) if error.errno() == Errno::NOENT => missing.push(ancestor),
                made => {
                    made?;
                    break;
                }
            }
        }
        for ancestor in missing.into_iter().rev() {
            // Another caller may have created it, or a file of that name.
            self.ensure_dir(mode, ancestor).await?;
        }
        Ok(())
    }

    /// Creates a directory if there is none.
    async fn ensure_dir(&self, mode: WaitMode, path: &Path) -> Result<(), Error> {
        let directory = new_directory();
        let make = operation::make(NameAt::Path(bytes(path)), &directory);
        match self.change(mode, make).await.of_path(bytes(path)) {
            Err(error) if error.errno() == Errno::EXIST => {
                let found = self.metadata_in_mode(mode, bytes(path), Follow::Yes).await?;
                match found.is_dir() {
                    true => Ok(()),
                    false => {
                        let what = format!("{} is not a directory", path.display());
                        Err(Error::refused(Errno::NOTDIR, what).of_path(bytes(path)))
                    }
                }
            }
            made => made.map(drop),
        }
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
                    self.change(mode, last.remove()).await?;
                    open.pop();
                    continue;
                };
                last.after.clone_from(&end.name);
                last.entries = batch.entries.into_iter();
                continue;
            };
            let parent = last.number;
            match self.change(mode, last.remove_entry(&entry.name)).await? {
                Removal::Done => {}
                Removal::IsDirectory(number) => {
                    open.push(OpenDirectory::new(parent, entry.name, number));
                }
                Removal::Moved => drop(open.pop()),
            }
        }
        Ok(())
    }
}

/// What a call that removes a name of an [`OpenDirectory`] finds.
enum Removal {
    /// The name is gone.
    Done,
    /// It is the name of a directory, which is to be emptied first.
    IsDirectory(InodeNumber),
    /// The open directory is no longer where its name was found.
    Moved,
}

/// A directory that is being emptied, and its name. Each step looks the name up again: a directory that another caller moves
/// away keeps what is left in it.
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

    /// Removes a name in it, unless that is a directory's.
    fn remove_entry(
        &self,
        name: &[u8],
    ) -> impl FnMut(&mut Transaction<'_>) -> Result<Removal, Retry> {
        move |transaction| {
            if !self.is_in_place(transaction)? {
                return Ok(Removal::Moved);
            }
            // The batch that has the name may be old: it may be gone, or be that of another file by now.
            match transaction.lookup(self.number, name) {
                Err(Retry::Fail(error)) if error.errno() == Errno::NOENT => Ok(Removal::Done),
                Ok((number, inode)) if inode.kind == FileType::Directory => {
                    Ok(Removal::IsDirectory(number))
                }
                found => {
                    found?;
                    transaction.unlink(self.number, name)?;
                    Ok(Removal::Done)
                }
            }
        }
    }

    /// Removes the directory itself, which is empty.
    fn remove(&self) -> impl FnMut(&mut Transaction<'_>) -> Result<(), Retry> {
        move |transaction| match self.is_in_place(transaction)? {
            true => transaction.remove_directory(self.parent, &self.name),
            false => Ok(()),
        }
    }

    fn is_in_place(&self, transaction: &Transaction<'_>) -> Result<bool, Retry> {
        Ok(transaction.find(self.parent, &self.name)? == Some(self.number))
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::mpsc::channel;
    use std::task::{Context, Poll, Waker};

    use uringfs_device::Device;
    use uringfs_device::backend::memory::Memory;

    use super::*;
    use crate::volume::options::FormatOptions;

    /// Runs a future. `meanwhile` runs each time that it waits for the catalog.
    fn overtaken<T>(
        volume: &Volume,
        future: impl Future<Output = T>,
        mut meanwhile: impl FnMut(),
    ) -> T {
        let thread = &volume.shared.catalog_thread;
        let mut future = pin!(future);
        loop {
            // The thread that reads the catalog has another job, so that no read is done when the future looks.
            let (release, is_released) = channel::<()>();
            drop(thread.run(move || Ok(is_released.recv())).unwrap());
            let polled = future.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            drop(release);
            if let Poll::Ready(outcome) = polled {
                return outcome;
            }
            // One job follows the other: now the future's is done.
            let (done, is_done) = channel();
            drop(thread.run(move || Ok(done.send(()))).unwrap());
            is_done.recv().unwrap();
            meanwhile();
        }
    }

    /// Removes `/a` with these files in it. Once `gone` is removed, `from` moves to `/kept`.
    fn remove_while_moving(files: &[&str], gone: &str, from: &str) -> Volume {
        let device = Device::new(Memory::new(64 << 20).unwrap()).unwrap();
        Volume::format(&device, &FormatOptions::default()).unwrap();
        let volume = Volume::open_on(device).unwrap();
        for file in files {
            volume.create_dir_all(Path::new(file).parent().unwrap()).unwrap();
            volume.write(file, "text").unwrap();
        }
        let mut is_moved = false;
        // Each listing reads the catalog.
        overtaken(&volume, volume.as_async().remove_dir_all("/a"), || {
            if !is_moved && !volume.exists(gone).unwrap() {
                volume.rename(from, "/kept").unwrap();
                is_moved = true;
            }
        })
        .unwrap();
        assert!(is_moved && !volume.exists("/a").unwrap());
        volume
    }

    #[test]
    fn a_directory_that_moves_out_of_a_tree_is_not_removed_with_it() {
        let volume = remove_while_moving(&["/a/1/f", "/a/2/f"], "/a/1/f", "/a/2");
        assert_eq!(volume.read("/kept/f").unwrap(), b"text");
    }

    #[test]
    fn a_directory_that_moves_while_it_is_emptied_keeps_the_rest() {
        let files = ["/a/1/d/f", "/a/1/e", "/a/2/f"];
        let volume = remove_while_moving(&files, "/a/1/d/f", "/a/1");
        assert_eq!(volume.read("/kept/e").unwrap(), b"text");
    }
}
