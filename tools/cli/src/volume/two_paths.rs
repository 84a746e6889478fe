//! The source and the destination of `mv` and `ln`.

use super::open_volume::is_directory;
use super::volume_path::{VolumePath, join, last_name, with_path};
use uringfs::{Error as VolumeError, Volume};
use uringfs_lab::Error;

/// The destination itself; if it is a directory, the last name of `source` in it.
pub(super) fn target_path(
    volume: &Volume,
    source: &VolumePath,
    destination: &VolumePath,
) -> VolumePath {
    match last_name(&source.bytes) {
        Some(name) if is_directory(volume, &destination.bytes) => {
            destination.in_same_volume(join(&destination.bytes, name))
        }
        _ => destination.clone(),
    }
}

pub(super) fn with_both_paths(
    source: &VolumePath,
    destination: &VolumePath,
    error: VolumeError,
) -> Error {
    with_path(format!("{source} to {destination}"), error)
}
