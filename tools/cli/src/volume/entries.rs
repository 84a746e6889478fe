//! The entries of a directory in a volume.

use super::error_sink::ErrorSink;
use super::volume_path::{VolumePath, as_path, join, with_path};
use std::os::unix::ffi::OsStrExt;
use uringfs::volume::{FileType, InodeNumber, ReadDir};
use uringfs::{Error as VolumeError, Volume};

/// An entry of a directory.
pub(super) struct Entry {
    pub(super) name: Vec<u8>,
    pub(super) inode: InodeNumber,
    pub(super) kind: FileType,
}

/// Iterates over the entries of a directory, sorted by the bytes of their names. After a damaged entry the iteration
/// continues; after any other error it ends.
pub(super) struct Entries {
    /// An error if the directory cannot be opened; then none.
    entries: Result<ReadDir, Option<VolumeError>>,
}

impl Entries {
    pub(super) fn new(volume: &Volume, directory: &[u8]) -> Self {
        Self { entries: volume.read_dir(as_path(directory)).map_err(Some) }
    }

    /// The entries with their paths, where `path` is the path of the directory. Reports unreadable entries to `errors`.
    pub(super) fn with_paths(
        mut self,
        path: &VolumePath,
        errors: &ErrorSink,
    ) -> impl Iterator<Item = (VolumePath, Entry)> {
        std::iter::from_fn(move || self.next_with_path(path, errors))
    }

    pub(super) fn next_with_path(
        &mut self,
        path: &VolumePath,
        errors: &ErrorSink,
    ) -> Option<(VolumePath, Entry)> {
        self.find_map(|entry| {
            let entry = entry.map_err(|error| match error.damaged_name() {
                Some(name) => with_path(path.in_same_volume(join(&path.bytes, name)), error),
                None => with_path(path, error),
            });
            errors
                .record(entry)
                .map(|entry| (path.in_same_volume(join(&path.bytes, &entry.name)), entry))
        })
    }
}

impl Iterator for Entries {
    type Item = Result<Entry, VolumeError>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = match &mut self.entries {
            Ok(entries) => entries.next()?,
            Err(error) => return error.take().map(Err),
        };
        Some(next.map(|entry| Entry {
            name: entry.name().as_bytes().to_vec(),
            inode: InodeNumber(entry.ino()),
            kind: entry.file_type(),
        }))
    }
}
