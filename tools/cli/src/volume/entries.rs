//! The names in a directory of a volume.

use super::error_sink::ErrorSink;
use super::volume_path::{VolumePath, join, with_path};
use uringfs::{DirectoryEntry, Volume, VolumeError};

/// The names in a directory, in order of their bytes; a few at a time are in memory. Behind one that is
/// damaged the others follow; behind another error, none.
pub(super) struct Entries<'v> {
    volume: &'v Volume,
    directory: Vec<u8>,
    /// Behind which the next ones are, if there may be any.
    after: Option<Vec<u8>>,
    batch: std::vec::IntoIter<DirectoryEntry>,
}

impl<'v> Entries<'v> {
    pub(super) fn new(volume: &'v Volume, directory: &[u8]) -> Self {
        let batch = Vec::new().into_iter();
        Self { volume, directory: directory.to_vec(), after: Some(Vec::new()), batch }
    }

    /// The same with their paths, the directory's being this. Of what cannot be read it is told.
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
                Some(name) => with_path(&path.in_same_volume(join(&path.bytes, name)), error),
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
