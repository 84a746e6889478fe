//! The entries of a directory in a volume.

use super::error_sink::ErrorSink;
use super::volume_path::{VolumePath, join, with_path};
use uringfs::{DirectoryEntry, Volume, VolumeError};

/// Iterates over the entries of a directory, sorted by the bytes of their names, and holds a batch of them in memory.
/// After a damaged entry the iteration continues; after any other error it ends.
pub(super) struct Entries<'v> {
    volume: &'v Volume,
    directory: Vec<u8>,
    /// The last name returned: the next batch starts after it. None after the end.
    after: Option<Vec<u8>>,
    batch: std::vec::IntoIter<DirectoryEntry>,
}

impl<'v> Entries<'v> {
    pub(super) fn new(volume: &'v Volume, directory: &[u8]) -> Self {
        let batch = Vec::new().into_iter();
        Self { volume, directory: directory.to_vec(), after: Some(Vec::new()), batch }
    }

    /// The entries with their paths, where `path` is the path of the directory. Reports unreadable entries to `errors`.
    pub(super) fn with_paths(
        mut self,
        path: &VolumePath,
        errors: &ErrorSink,
    ) -> impl Iterator<Item = (VolumePath, DirectoryEntry)> {
        std::iter::from_fn(move || self.next_with_path(path, errors))
    }

    pub(super) fn next_with_path(
        &mut self,
        path: &VolumePath,
        errors: &ErrorSink,
    ) -> Option<(VolumePath, DirectoryEntry)> {
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

impl Iterator for Entries<'_> {
    type Item = Result<DirectoryEntry, VolumeError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.batch.len() == 0 {
            match self.volume.entries(&self.directory, self.after.as_ref()?) {
                Ok(batch) => self.batch = batch.into_iter(),
                Err(error) => {
                    self.after = error.damaged_name().map(<[u8]>::to_vec);
                    return Some(Err(error));
                }
            }
        }
        let entry = self.batch.next()?;
        self.after = Some(entry.name.clone());
        Some(Ok(entry))
    }
}
