//! [`ReadDir`] and [`AsyncReadDir`]: the entries of a directory, read in batches.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_core::Stream;

use crate::catalog::{Key, Table};
use crate::core::blocking::{WaitMode, run_blocking};
use crate::error::{Error, OfPath};
use crate::namespace::directory::{DirectoryEntry, EntryBatch, encode_entry};
use crate::namespace::operations;
use crate::namespace::path::bytes;
use crate::records::inode::{FileType, InodeNumber};
use crate::volume::metadata::Metadata;
use crate::volume::volume::Volume;

/// An entry that [`Volume::read_dir`] returns, with its path, as std's. [`DirectoryEntry`] is its record, for file servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    directory: Arc<Path>,
    entry: DirectoryEntry,
}

impl DirEntry {
    /// The name: any bytes but `/` and 0.
    pub fn file_name(&self) -> OsString {
        OsString::from_vec(self.entry.name.clone())
    }

    /// The name, borrowed.
    pub fn name(&self) -> &OsStr {
        OsStr::from_bytes(&self.entry.name)
    }

    /// The path of the directory as it was given, and the name.
    pub fn path(&self) -> PathBuf {
        self.directory.join(self.name())
    }

    /// The kind of the file; a device's number is 0 here.
    pub fn file_type(&self) -> FileType {
        self.entry.kind
    }

    /// The inode's number.
    pub fn ino(&self) -> u64 {
        self.entry.inode.0
    }

    /// The attributes of the file that the entry was found with, whatever its name is by now; those of a symbolic link
    /// itself. It takes the volume, which an entry does not keep open. Blocks the thread; tasks use
    /// [`Self::metadata_async`].
    ///
    /// ```
    /// # use uringfs_volume as uringfs;
    /// # use uringfs::{FormatOptions, Volume};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// # let volume = Volume::create(folder.path().join("image"), &FormatOptions::new().size(64 << 20))?;
    /// # volume.write("/a", "text")?;
    /// for entry in volume.read_dir("/")? {
    ///     let entry = entry?;
    ///     println!("{} bytes in {}", entry.metadata(&volume)?.len(), entry.path().display());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// ENOENT if the file has lost its last name, and is closed; errors of the catalog.
    pub fn metadata(&self, volume: &Volume) -> Result<Metadata, Error> {
        run_blocking(self.metadata_in_mode(WaitMode::Blocking, volume))
    }

    pub(super) async fn metadata_in_mode(
        &self,
        mode: WaitMode,
        volume: &Volume,
    ) -> Result<Metadata, Error> {
        let operation = operations::live_inode(self.entry.inode);
        let found = volume.shared.run_transaction(mode, operation).await;
        let found = found.map(|(number, inode)| Metadata::new(number, inode));
        found.of_path(bytes(&self.path()))
    }
}

/// The place of a listing in its directory, and the entries that were read ahead.
#[derive(Debug)]
struct Listing {
    directory: Arc<Path>,
    number: InodeNumber,
    batch: VecDeque<DirectoryEntry>,
    /// The next batch begins after this name. `None` after the end.
    after: Option<Vec<u8>>,
}

impl Listing {
    fn pop(&mut self) -> Option<DirEntry> {
        let entry = self.batch.pop_front()?;
        Some(DirEntry { directory: self.directory.clone(), entry })
    }

    /// Takes the next batch, or the error in its place.
    fn fill(&mut self, batch: Result<EntryBatch, Error>) -> Result<(), Error> {
        match batch {
            Ok(EntryBatch { entries, is_last }) => {
                let last = entries.last().filter(|_| !is_last);
                self.after = last.map(|last| last.name.clone());
                self.batch = entries.into();
                Ok(())
            }
            Err(error) => {
                self.after = error.damaged_name().map(<[u8]>::to_vec);
                Err(error.of_path(bytes(&*self.directory)))
            }
        }
    }
}

/// Iterates over the entries of a directory that has a path, in the order of their names' bytes; a
/// [`DirectoryStream`](crate::DirectoryStream) is for file servers, and can return to a position. Holds one batch of them in memory. An
/// entry that is created or removed meanwhile may or may not be returned; each other one is returned once.
///
/// An item may be an error of the catalog. After a damaged name ([`Error::damaged_name`]) the iteration continues,
/// after any other error it ends.
///
/// ```
/// # use uringfs_volume as uringfs;
/// use uringfs::{FormatOptions, Volume};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let volume = Volume::create(folder.path().join("image"), &FormatOptions::new().size(64 << 20))?;
/// volume.create_dir("/b")?;
/// volume.write("/a", "")?;
/// let mut names = Vec::new();
/// for entry in volume.read_dir("/")? {
///     let entry = entry?;
///     names.push((entry.file_name().into_string().unwrap(), entry.file_type().is_dir()));
/// }
/// assert_eq!(names, [("a".to_owned(), false), ("b".to_owned(), true)]);
/// # Ok(())
/// # }
/// ```
pub struct ReadDir {
    volume: Volume,
    listing: Listing,
}

impl ReadDir {
    pub(crate) async fn open(
        volume: &Volume,
        mode: WaitMode,
        path: &Path,
    ) -> Result<ReadDir, Error> {
        let operation = operations::directory(bytes(path));
        let number = volume.shared.run_transaction(mode, operation).await.of_path(bytes(path))?;
        let (batch, after) = (VecDeque::new(), Some(Vec::new()));
        let listing = Listing { directory: path.into(), number, batch, after };
        Ok(ReadDir { volume: volume.clone(), listing })
    }

    pub(crate) fn into_async(self) -> AsyncReadDir {
        AsyncReadDir { read_dir: self, next: None }
    }
}

impl Iterator for ReadDir {
    type Item = Result<DirEntry, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(entry) = self.listing.pop() {
                return Some(Ok(entry));
            }
            let after = self.listing.after.clone()?;
            let batch = self.volume.entries(WaitMode::Blocking, self.listing.number, after);
            if let Err(error) = self.listing.fill(run_blocking(batch)) {
                return Some(Err(error));
            }
        }
    }
}

impl std::fmt::Debug for ReadDir {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_tuple("ReadDir").field(&self.listing.directory).finish()
    }
}

type NextBatch = Pin<Box<dyn Future<Output = Result<EntryBatch, Error>> + Send>>;

/// The entries of a directory as a stream; see [`ReadDir`].
pub struct AsyncReadDir {
    read_dir: ReadDir,
    /// The next batch, if it is being read.
    next: Option<NextBatch>,
}

impl AsyncReadDir {
    /// The next entry, or `None` after the last.
    ///
    /// # Errors
    /// As the items of [`ReadDir`].
    pub async fn next_entry(&mut self) -> Result<Option<DirEntry>, Error> {
        let next = std::future::poll_fn(|context| Pin::new(&mut *self).poll_next(context));
        next.await.transpose()
    }
}

impl Stream for AsyncReadDir {
    type Item = Result<DirEntry, Error>;

    fn poll_next(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<DirEntry, Error>>> {
        let AsyncReadDir { read_dir: ReadDir { volume, listing }, next } = &mut *self;
        loop {
            if let Some(entry) = listing.pop() {
                return Poll::Ready(Some(Ok(entry)));
            }
            let Some(after) = listing.after.clone() else { return Poll::Ready(None) };
            let reading = next.get_or_insert_with(|| {
                let (volume, number) = (volume.clone(), listing.number);
                Box::pin(async move { volume.entries(WaitMode::Async, number, after).await })
            });
            let batch = ready!(reading.as_mut().poll(context));
            *next = None;
            if let Err(error) = listing.fill(batch) {
                return Poll::Ready(Some(Err(error)));
            }
        }
    }
}

impl std::fmt::Debug for AsyncReadDir {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_tuple("AsyncReadDir").field(&self.read_dir.listing.directory).finish()
    }
}

impl Volume {
    /// The names of a directory after `after`: some of them, or the rest.
    pub(crate) async fn entries(
        &self,
        mode: WaitMode,
        directory: InodeNumber,
        after: Vec<u8>,
    ) -> Result<EntryBatch, Error> {
        self.shared.run_transaction(mode, operations::entries(directory, &after)).await
    }

    /// As [`Self::entries`], and caches the names, for look-ups that follow.
    pub(crate) async fn entries_for_lookups(
        &self,
        mode: WaitMode,
        directory: InodeNumber,
        after: Vec<u8>,
    ) -> Result<EntryBatch, Error> {
        let start = Key::Name(directory.0, &after).bytes();
        let end = Key::Name(directory.0 + 1, b"").bytes();
        let watch = self.shared.state.lock().overlay.watch(Table::Names, start..end);
        let batch = self.entries(mode, directory, after).await?;
        let records = batch.entries.iter().map(|DirectoryEntry { name, inode, kind }| {
            (Key::Name(directory.0, name).bytes(), encode_entry(*inode, *kind))
        });
        self.shared.state.lock().overlay.insert_ahead(&watch, records);
        Ok(batch)
    }
}
