//! [`DirectoryStream`]: the entries of a directory, with positions to return to, as `telldir` and `seekdir` need them.
//!
//! Names come and go, so a position is not a place in the directory. It is the number of an entry that was returned,
//! and stands for the place behind its name. [`DirectoryPositions`] keeps the names that were returned.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use uringfs_device::Errno;

use crate::core::blocking::WaitMode;
use crate::error::Error;
use crate::namespace::directory::{DirectoryEntry, EntryBatch};
use crate::volume::inode_ref::InodeRef;

/// The entries of a directory of a file server, which knows it by [`InodeRef`] and returns to positions (`seekdir`): see
/// [`InodeRef::read_dir`]. [`ReadDir`](crate::ReadDir) is the one for programs with paths. In the order of the names'
/// bytes, without `.` and `..`.
///
/// An entry that is created or removed meanwhile may or may not be returned; each other one is returned once. Its
/// [`DirectoryPositions`] keep each name that it has returned.
pub struct DirectoryStream {
    directory: InodeRef,
    /// Entries that were read ahead.
    batch: VecDeque<DirectoryEntry>,
    /// No entry follows those that were read ahead.
    is_last_batch: bool,
    /// The changes of names in the volume before it was read ahead.
    name_changes: u64,
    /// The next batch begins after this name.
    after: Vec<u8>,
    position: u64,
    positions: DirectoryPositions,
    /// Where the next name is expected in the order of `positions`.
    expected: usize,
}

/// The positions of streams of one directory. All streams that are made with clones of it have the same positions, so that
/// one of them can go on where another ended.
///
/// It keeps each name that one of them has returned, and 8 bytes with it.
///
/// ```
/// # mod uringfs { pub use uringfs_reactor::*; pub use uringfs_volume::*; pub use uringfs_volume as volume; }
/// # use uringfs::{FormatOptions, Reactor, ReactorOptions, Volume};
/// use uringfs::volume::DirectoryPositions;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let volume = Volume::create(folder.path().join("image"), &FormatOptions::new().size(64 << 20))?;
/// # volume.create_dir("/first")?;
/// # volume.create_dir("/second")?;
/// # let reactor = Reactor::new(ReactorOptions::default())?;
/// # reactor.block_on(async {
/// let (root, positions) = (volume.root(), DirectoryPositions::default());
/// let mut stream = root.read_dir_with(&positions).await?;
/// stream.next_entry().await?;
/// let mut other = root.read_dir_with(&positions).await?;
/// other.seek(stream.position())?;
/// assert_eq!(other.next_entry().await?.unwrap().name, b"second");
/// # Ok::<(), uringfs_volume::Error>(())
/// # })?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct DirectoryPositions(Arc<Mutex<PassedNames>>);

impl DirectoryPositions {
    /// How many names it keeps.
    pub fn count(&self) -> usize {
        self.0.lock().ends.len()
    }

    /// Whether a stream, or another clone, uses it.
    pub fn is_shared(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }
}

impl InodeRef {
    /// The entries of this directory, in the order of their names' bytes, without `.` and `..`.
    ///
    /// # Errors
    /// ENOTDIR; errors of the catalog.
    pub async fn read_dir(&self) -> Result<DirectoryStream, Error> {
        self.read_dir_with(&DirectoryPositions::default()).await
    }

    /// As [`Self::read_dir`], with positions that the stream shares with others.
    ///
    /// # Errors
    /// As [`Self::read_dir`].
    pub async fn read_dir_with(
        &self,
        positions: &DirectoryPositions,
    ) -> Result<DirectoryStream, Error> {
        match self.metadata().await?.is_dir() {
            true => Ok(DirectoryStream::new(self.clone(), positions.clone())),
            false => {
                let what = format!("inode {} is not a directory", self.number().0);
                Err(Error::refused(Errno::NOTDIR, what))
            }
        }
    }
}

impl DirectoryStream {
    fn new(directory: InodeRef, positions: DirectoryPositions) -> DirectoryStream {
        DirectoryStream {
            directory,
            batch: VecDeque::new(),
            is_last_batch: false,
            name_changes: 0,
            after: Vec::new(),
            position: 0,
            positions,
            expected: 0,
        }
    }

    /// The directory.
    pub fn directory(&self) -> &InodeRef {
        &self.directory
    }

    /// The position behind the last returned entry, for [`Self::seek`]; 0 at the beginning.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Returns to a position, behind the entry that was returned last when it was the stream's. That entry need not exist any
    /// more. Position 0 starts again, and invalidates all others unless the stream shares them ([`DirectoryPositions`]).
    ///
    /// # Errors
    /// EINVAL for a number that was never a position of this stream, or of one that shares its positions.
    pub fn seek(&mut self, position: u64) -> Result<(), Error> {
        if position == self.position {
            if position == 0 {
                // As `rewinddir`: names that were created since it looked are found.
                self.forget_batch();
            }
            return Ok(());
        }
        let found = match position {
            0 => {
                if let Some(own) = Arc::get_mut(&mut self.positions.0) {
                    own.get_mut().clear();
                }
                Some((0, Vec::new()))
            }
            _ => self.positions.0.lock().find(position),
        };
        let Some(found) = found else {
            let what = format!("{position} is no position of this directory's stream");
            return Err(Error::refused(Errno::INVAL, what));
        };
        (self.expected, self.after) = found;
        self.forget_batch();
        self.position = position;
        Ok(())
    }

    /// Forgets what it has read ahead if names of the volume have changed since. A server whose client keeps listings, and
    /// joins them from several streams, calls it before each part.
    pub fn refresh(&mut self) {
        if self.name_changes != self.name_changes_now() {
            self.forget_batch();
        }
    }

    fn forget_batch(&mut self) {
        self.batch.clear();
        self.is_last_batch = false;
    }

    fn name_changes_now(&self) -> u64 {
        self.directory.volume.shared.state.lock().overlay.name_changes()
    }

    /// The next entry, without passing it; `None` at the end, and from then on until [`Self::seek`] or [`Self::refresh`].
    ///
    /// # Errors
    /// Errors of the catalog. After a damaged name ([`Error::damaged_name`]) the stream
    /// continues behind it.
    pub async fn peek(&mut self) -> Result<Option<&DirectoryEntry>, Error> {
        if self.batch.is_empty() && !self.is_last_batch {
            self.name_changes = self.name_changes_now();
            let InodeRef { volume, .. } = &self.directory;
            let (number, after) = (self.directory.number(), self.after.clone());
            match volume.entries_for_lookups(WaitMode::Async, number, after).await {
                Ok(EntryBatch { entries, is_last }) => {
                    (self.batch, self.is_last_batch) = (entries.into(), is_last);
                }
                Err(error) => {
                    if let Some(name) = error.damaged_name() {
                        self.after = name.to_vec();
                    }
                    return Err(error);
                }
            }
        }
        Ok(self.batch.front())
    }

    /// The next entry, and passes it; `None` at the end.
    ///
    /// # Errors
    /// As [`Self::peek`]; ENOMEM after 4 GiB of names.
    pub async fn next_entry(&mut self) -> Result<Option<DirectoryEntry>, Error> {
        let Some(name) = self.peek().await?.map(|entry| entry.name.clone()) else {
            return Ok(None);
        };
        let position = self.positions.0.lock().position_behind(&name, &mut self.expected);
        self.position = position.ok_or_else(|| {
            Error::refused(Errno::NOMEM, "streams have passed 4 GiB of names; open a new one")
        })?;
        self.after = name;
        Ok(self.batch.pop_front())
    }
}

impl fmt::Debug for DirectoryStream {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "position {} in {:?}", self.position, self.directory)
    }
}

/// The names that streams have returned. A name's number, from 1, is the position behind it.
#[derive(Debug, Default)]
struct PassedNames {
    bytes: Vec<u8>,
    /// The end of each name in `bytes`.
    ends: Vec<u32>,
    /// The indices of the names, in the order of their bytes.
    order: Vec<u32>,
}

impl PassedNames {
    /// Where the names behind a position begin in the order, and the name before it.
    fn find(&self, position: u64) -> Option<(usize, Vec<u8>)> {
        let index = usize::try_from(position).ok()?.checked_sub(1)?;
        let name = (index < self.ends.len()).then(|| self.name(index))?;
        let (Ok(at) | Err(at)) = self.search(name);
        Some((at + 1, name.to_vec()))
    }

    fn clear(&mut self) {
        *self = PassedNames::default();
    }

    fn name(&self, index: usize) -> &[u8] {
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.bytes[start as usize..self.ends[index] as usize]
    }

    fn in_order(&self, at: usize) -> Option<&[u8]> {
        self.order.get(at).map(|index| self.name(*index as usize))
    }

    fn search(&self, name: &[u8]) -> Result<usize, usize> {
        self.order.binary_search_by(|index| self.name(*index as usize).cmp(name))
    }

    /// The position behind a name, which is added if it is new. It is `expected` at a place in the order.
    fn position_behind(&mut self, name: &[u8], expected: &mut usize) -> Option<u64> {
        let is_behind_last = || self.in_order(self.order.len().wrapping_sub(1)) < Some(name);
        let at = match self.in_order(*expected) {
            Some(known) if known == name => Ok(*expected),
            None if is_behind_last() => Err(self.order.len()),
            _ => self.search(name),
        };
        let (Ok(place) | Err(place)) = at;
        *expected = place + 1;
        if at.is_err() {
            let end = u32::try_from(self.bytes.len() + name.len()).ok()?;
            self.order.insert(place, self.ends.len() as u32);
            self.bytes.extend_from_slice(name);
            self.ends.push(end);
        }
        Some(u64::from(self.order[place]) + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_one_position() {
        let mut names = PassedNames::default();
        let mut expected = 0;
        assert_eq!(["a", "c", "d"].map(|name| pass(&mut names, &mut expected, name)), [1, 2, 3]);
        // b is new, c was removed.
        expected = 1;
        assert_eq!(["b", "d", "e"].map(|name| pass(&mut names, &mut expected, name)), [4, 3, 5]);
        expected = 0;
        assert_eq!(["a", "b", "c"].map(|name| pass(&mut names, &mut expected, name)), [1, 4, 2]);
        assert_eq!(names.find(1), Some((1, b"a".to_vec())));
        assert_eq!(names.find(4), Some((2, b"b".to_vec())));
        assert_eq!(names.find(5), Some((5, b"e".to_vec())));
        assert_eq!([0, 6, u64::MAX].map(|position| names.find(position)), [None, None, None]);
    }

    fn pass(names: &mut PassedNames, expected: &mut usize, name: &str) -> u64 {
        names.position_behind(name.as_bytes(), expected).unwrap()
    }
}
