//! `uringfs rm`: removes files and trees in a volume.

use super::entries::Entries;
use super::error_sink::ErrorSink;
use super::glob;
use super::open_volume::{open, sync};
use super::visited::VisitedDirectories;
use super::volume_path::{VolumePath, last_name, with_path};
use rustix::io::Errno;
use std::ffi::OsString;
use uringfs::{Access, FileKind, Follow, Volume, VolumeError};
use uringfs_lab::Error;

/// What the command takes.
#[derive(clap::Args)]
pub struct Arguments {
    /// TARGET:/path, with wildcards
    #[arg(required = true, value_name = "TARGET:/path")]
    paths: Vec<OsString>,

    /// Directories, too, with all that is in them
    #[arg(short)]
    recursive: bool,
}

/// Runs the command; gives its exit code.
pub fn run(arguments: Arguments) -> Result<u8, Error> {
    let paths = VolumePath::parse_all(&arguments.paths)?;
    let volume = open(&paths[0].target, Access::ReadWrite)?;
    let errors = ErrorSink::default();
    for path in glob::expand_each(&volume, &paths, &errors) {
        errors.record(remove(&volume, &path, arguments.recursive, &errors));
    }
    sync(&volume, &paths[0].target)?;
    Ok(errors.exit_code())
}

fn remove(
    volume: &Volume,
    path: &VolumePath,
    recursive: bool,
    errors: &ErrorSink,
) -> Result<(), Error> {
    // Of a link with a slash behind it the link: what it leads to is not removed.
    let found = volume.inode(without_slashes(&path.bytes), Follow::No);
    let (_, inode) = found.map_err(|error| with_path(&path, error))?;
    if inode.kind != FileKind::Directory {
        volume.remove(&path.bytes).map_err(|error| with_path(&path, error))?;
    } else if !recursive {
        return Err(Error::input(format!("{path}: is a directory; rm -r removes it")));
    } else if last_name(&path.bytes).is_none() {
        return Err(Error::input(format!("{path}: cannot be removed; name what is in it")));
    } else {
        remove_tree(volume, path, errors);
    }
    Ok(())
}

/// A path without the slashes that it ends in; the root has none to lose.
fn without_slashes(path: &[u8]) -> &[u8] {
    match path.iter().rposition(|byte| *byte != b'/') {
        Some(last) => &path[..=last],
        None => path,
    }
}

/// Removes a directory and what is in it, as far as that can be, without recursion: trees may be deep.
fn remove_tree(volume: &Volume, top: &VolumePath, errors: &ErrorSink) {
    let mut visited = VisitedDirectories::default();
    // Each with whether what is in it has had its turn.
    let mut left = vec![(top.clone(), false)];
    while let Some((path, is_done)) = left.pop() {
        if is_done {
            let removed = volume.remove_directory(&path.bytes);
            let is_left = |error: &VolumeError| error.errno() == Errno::NOTEMPTY;
            // What stays in it has been told of.
            if errors.exit_code() == 0 || !removed.as_ref().is_err_and(is_left) {
                errors.record(removed.map_err(|error| with_path(&path, error)));
            }
            continue;
        }
        left.push((path.clone(), true));
        for (inner, entry) in Entries::new(volume, &path.bytes).with_paths(&path, errors) {
            match entry.kind {
                FileKind::Directory => {
                    let is_new = errors.record(visited.visit(&inner, entry.inode)).is_some();
                    left.extend(is_new.then_some((inner, false)));
                }
                _ => {
                    let removed = volume.remove(&inner.bytes);
                    errors.record(removed.map_err(|error| with_path(&inner, error)));
                }
            }
        }
    }
}
