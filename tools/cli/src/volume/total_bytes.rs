//! The bytes of all files below some paths without their holes, for the progress of a copy, and the number of files.
//! Files and directories that cannot be read are left out: the copy reports them.

use super::entries::Entries;
use super::exclude::ExcludeOptions;
use super::files::Files;
use super::open_volume::lookup;
use super::volume_path::{VolumePath, join};
use std::ffi::OsString;
use std::fs::Metadata;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use uringfs::volume::{FileType, Inode};

/// The bytes of files on the host.
pub fn of_host(paths: &[OsString]) -> u64 {
    let mut bytes = 0;
    walk_host(
        paths,
        |_| false,
        |found| {
            if found.is_file() {
                bytes += found.len().min(found.blocks() * 512);
            }
        },
    );
    bytes
}

/// The number of files on the host that are not excluded, without directories.
pub fn files_of_host(paths: &[OsString], exclude: &ExcludeOptions) -> u64 {
    let mut files = 0;
    walk_host(paths, |path| exclude.excludes(path.as_os_str().as_bytes()), |_| files += 1);
    files
}

/// Visits all files on the host below some paths but directories.
fn walk_host(
    paths: &[OsString],
    is_excluded: impl Fn(&Path) -> bool,
    mut visit: impl FnMut(&Metadata),
) {
    let mut left: Vec<PathBuf> = paths.iter().map(PathBuf::from).collect();
    while let Some(path) = left.pop() {
        let Ok(found) = path.symlink_metadata() else { continue };
        if is_excluded(&path) {
            continue;
        }
        if found.is_dir() {
            let entries = path.read_dir().into_iter().flatten().flatten();
            left.extend(entries.map(|entry| entry.path()));
        } else {
            visit(&found);
        }
    }
}

/// The bytes of files in a volume.
pub fn of_volume(volume: &Files, paths: &[VolumePath]) -> u64 {
    let mut bytes = 0_u64;
    walk_volume(
        volume,
        paths,
        |_| false,
        |inode| {
            if inode.kind == FileType::File {
                bytes = bytes.saturating_add(inode.size.min(inode.allocated()));
            }
        },
    );
    bytes
}

/// The number of files in a volume that are not excluded, without directories.
pub fn files_of_volume(volume: &Files, paths: &[VolumePath], exclude: &ExcludeOptions) -> u64 {
    let mut files = 0;
    walk_volume(volume, paths, |path| exclude.excludes(path), |_| files += 1);
    files
}

/// Visits all files in a volume below some paths but directories. A directory with two names in a damaged volume is
/// visited up to a bound.
fn walk_volume(
    volume: &Files,
    paths: &[VolumePath],
    is_excluded: impl Fn(&[u8]) -> bool,
    mut visit: impl FnMut(&Inode),
) {
    const MAX_DIRECTORIES: u64 = 1 << 20;
    let mut left: Vec<Vec<u8>> = paths.iter().map(|path| path.bytes.clone()).collect();
    let mut directories = 0;
    while let Some(path) = left.pop() {
        let Ok((_, inode)) = lookup(volume, &path) else { continue };
        if is_excluded(&path) {
            continue;
        }
        match inode.kind {
            FileType::Directory if directories < MAX_DIRECTORIES => {
                directories += 1;
                let entries = Entries::new(volume, &path).flatten();
                left.extend(entries.map(|entry| join(&path, &entry.name)));
            }
            FileType::Directory => {}
            _ => visit(&inode),
        }
    }
}
