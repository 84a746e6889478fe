//! The bytes of all files below some paths without their holes, for the progress of a copy. What cannot be read is left out: the copy
//! reports it.

use super::entries::Entries;
use super::open_volume::lookup;
use super::volume_path::{VolumePath, join};
use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use uringfs::Volume;
use uringfs::volume::FileType;

/// The bytes of files on the host.
pub fn of_host(paths: &[OsString]) -> u64 {
    let mut left: Vec<PathBuf> = paths.iter().map(PathBuf::from).collect();
    let mut bytes = 0;
    while let Some(path) = left.pop() {
        let Ok(found) = path.symlink_metadata() else { continue };
        if found.is_dir() {
            let entries = path.read_dir().into_iter().flatten().flatten();
            left.extend(entries.map(|entry| entry.path()));
        } else if found.is_file() {
            bytes += found.len().min(found.blocks() * 512);
        }
    }
    bytes
}

/// The bytes of files in a volume. A directory with two names in a damaged volume counts up to a bound.
pub fn of_volume(volume: &Volume, paths: &[VolumePath]) -> u64 {
    const MAX_DIRECTORIES: u64 = 1 << 20;
    let mut left: Vec<Vec<u8>> = paths.iter().map(|path| path.bytes.clone()).collect();
    let (mut bytes, mut directories) = (0_u64, 0);
    while let Some(path) = left.pop() {
        let Ok((_, inode)) = lookup(volume, &path) else { continue };
        match inode.kind {
            FileType::Directory if directories < MAX_DIRECTORIES => {
                directories += 1;
                let entries = Entries::new(volume, &path).flatten();
                left.extend(entries.map(|entry| join(&path, &entry.name)));
            }
            FileType::File => bytes = bytes.saturating_add(inode.size.min(inode.allocated())),
            _ => {}
        }
    }
    bytes
}
