//! [`DirectoryStream`]: the entries of a directory, with positions to return to, as `telldir` and `seekdir` need them.
//!
//! Names come and go, so a position is not a place in the directory. It is the number of an entry that was returned,
//! and stands for the place behind its name. The stream keeps the names that it has returned.

use std::cmp::Ordering;
use std::collections::VecDeque;
use std::fmt;

use uringfs_device::Errno;

use crate::core::blocking::WaitMode;
use crate::error::Error;
use crate::namespace::directory::DirectoryEntry;
use crate::volume::inode_ref::InodeRef;

/// The entries of a directory of a file server, which knows it by [`InodeRef`] and returns to positions (`seekdir`): see
/// [`InodeRef::read_dir`]. [`ReadDir`](crate::ReadDir) is the one for programs with paths. In the order of the names'
/// bytes, without `.` and `..`.
///
/// An entry that is created or removed meanwhile may or may not be returned; each other one is returned once. The stream
/// keeps each name that it has returned, and 4 bytes with it, until it is dropped or returns to position 0.
pub struct DirectoryStream {
    directory: InodeRef,
    /// Entries that were read ahead.
    batch: VecDeque<DirectoryEntry>,
    /// The next batch begins after this name.
    after: Vec<u8>,
    position: u64,
    passed: PassedNames,
}

impl InodeRef {
    /// The entries of this directory, in the order of their names' bytes, without `.` and `..`.
    ///
    /// # Errors
    /// ENOTDIR; errors of the catalog.
    pub async fn read_dir(&self) -> Result<DirectoryStream, Error> {
        match self.metadata().await?.is_dir() {
            true => Ok(DirectoryStream::new(self.clone())),
            false => {
                let what = format!("inode {} is not a directory", self.number().0);
                Err(Error::refused(Errno::NOTDIR, what))
            }
        }
    }
}

impl DirectoryStream {
    fn new(directory: InodeRef) -> DirectoryStream {
        DirectoryStream {
            directory,
            batch: VecDeque::new(),
            after: Vec::new(),
            position: 0,
            passed: PassedNames::default(),
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
    /// more. Position 0 starts again and invalidates all others.
    ///
    /// # Errors
    /// EINVAL for a number that was never this stream's position.
    pub fn seek(&mut self, position: u64) -> Result<(), Error> {
        if position == self.position {
            return Ok(());
        }
        let name = match position {
            0 => {
                self.passed = PassedNames::default();
                Some(&b""[..])
            }
            _ => self.passed.rewind(position),
        };
        let Some(name) = name else {
            let what = format!("{position} is no position of this directory's stream");
            return Err(Error::refused(Errno::INVAL, what));
        };
        self.after = name.to_vec();
        self.batch.clear();
        self.position = position;
        Ok(())
    }

    /// The next entry, without passing it; `None` at the end.
    ///
    /// # Errors
    /// Errors of the catalog. After a damaged name ([`Error::damaged_name`]) the stream
    /// continues behind it.
    pub async fn peek(&mut self) -> Result<Option<&DirectoryEntry>, Error> {
        if self.batch.is_empty() {
            let InodeRef { volume, .. } = &self.directory;
            let (number, after) = (self.directory.number(), self.after.clone());
            match volume.entries_for_lookups(WaitMode::Async, number, after).await {
                Ok(batch) => self.batch = batch.into(),
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
        let position = self.passed.position_behind(&name);
        self.position = position.ok_or_else(|| {
            Error::refused(Errno::NOMEM, "the stream has passed 4 GiB of names; start it again")
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

/// The names that a stream has returned. A name's number, from 1, is the position behind it.
#[derive(Default)]
struct PassedNames {
    bytes: Vec<u8>,
    /// The end of each name in `bytes`.
    ends: Vec<u32>,
    /// The stream is before this index, if it has returned to a position.
    next: usize,
}

impl PassedNames {
    /// Continues behind a position. Returns the name before it.
    fn rewind(&mut self, position: u64) -> Option<&[u8]> {
        let next = usize::try_from(position).ok().filter(|next| *next <= self.ends.len())?;
        self.next = next;
        self.get(next.checked_sub(1)?)
    }

    fn get(&self, index: usize) -> Option<&[u8]> {
        let end = *self.ends.get(index)?;
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        Some(&self.bytes[start as usize..end as usize])
    }

    /// The position behind a name, which is added unless it follows here: it was passed before.
    fn position_behind(&mut self, name: &[u8]) -> Option<u64> {
        while let Some(passed) = self.get(self.next) {
            match passed.cmp(name) {
                // It was removed, or stands here out of order because it was created late.
                Ordering::Less => self.next += 1,
                Ordering::Equal => {
                    self.next += 1;
                    return Some(self.next as u64);
                }
                Ordering::Greater => break,
            }
        }
        let is_last = self.next == self.ends.len();
        let end = u32::try_from(self.bytes.len() + name.len()).ok()?;
        self.bytes.extend_from_slice(name);
        self.ends.push(end);
        if is_last {
            self.next = self.ends.len();
        }
        Some(self.ends.len() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_passed_again_keeps_its_position() {
        let mut names = PassedNames::default();
        let positions: Vec<_> = ["a", "c", "d"].map(|name| pass(&mut names, name)).into();
        assert_eq!(positions, [1, 2, 3]);
        assert_eq!(names.rewind(1), Some(&b"a"[..]));
        // b is new, c was removed.
        let positions: Vec<_> = ["b", "d", "e"].map(|name| pass(&mut names, name)).into();
        assert_eq!(positions, [4, 3, 5]);
        assert_eq!(names.rewind(4), Some(&b"b"[..]));
        assert_eq!(names.rewind(6), None);
        assert_eq!(names.rewind(u64::MAX), None);
    }

    fn pass(names: &mut PassedNames, name: &str) -> u64 {
        names.position_behind(name.as_bytes()).unwrap()
    }
}
