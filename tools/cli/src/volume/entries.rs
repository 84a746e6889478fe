//! The entries of a directory in a volume.

use super::error_sink::ErrorSink;
use super::files::Files;
use super::volume_path::{VolumePath, as_path, join, with_path};
use std::iter::once;
use std::os::unix::ffi::OsStrExt;
use uringfs::Error as VolumeError;
use uringfs::volume::{DirEntry, FileType, InodeNumber};
use uringfs_fuse::control::RemoteEntry;

/// An entry of a directory.
pub(super) struct Entry {
    pub(super) name: Vec<u8>,
    pub(super) inode: InodeNumber,
    pub(super) kind: FileType,
}

/// Iterates over the entries of a directory, sorted by the bytes of their names. After a damaged entry the iteration
/// continues; after any other error it ends.
pub(super) struct Entries {
    entries: BoxedEntries,
}

impl Entries {
    pub(super) fn new(volume: &Files, directory: &[u8]) -> Self {
        Self {
            entries: entries(volume, directory).unwrap_or_else(|error| Box::new(once(Err(error)))),
        }
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
        self.entries.next()
    }
}

type BoxedEntries = Box<dyn Iterator<Item = Result<Entry, VolumeError>>>;

/// The entries, once the directory is open.
fn entries(volume: &Files, directory: &[u8]) -> Result<BoxedEntries, VolumeError> {
    Ok(match volume {
        Files::Volume(volume) => {
            let entry = |entry: DirEntry| Entry {
                name: entry.name().as_bytes().to_vec(),
                inode: InodeNumber(entry.ino()),
                kind: entry.file_type(),
            };
            Box::new(volume.read_dir(as_path(directory))?.map(move |found| found.map(entry)))
        }
        Files::Served(files) => {
            let entry = |RemoteEntry { name, number, kind }| Entry { name, inode: number, kind };
            let found = files.read_dir(directory)?.into_iter();
            Box::new(found.map(move |found| found.map(entry)))
        }
    })
}
