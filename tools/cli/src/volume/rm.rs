//! `uringfs rm`: removes files and directories from a volume.

use super::entries::Entries;
use super::error_sink::ErrorSink;
use super::exit_codes::refused;
use super::files::Files;
use super::glob::{GlobOptions, Missing};
use super::open_volume::{lookup, open_at, sync};
use super::verbose::VerboseOptions;
use super::visited::VisitedDirectories;
use super::volume_path::{VolumePath, as_path, last_name, with_path, without_slashes};
use std::ffi::OsString;
use uringfs::device::Access;
use uringfs::volume::FileType;
use uringfs::{Errno, Error as VolumeError};
use uringfs_lab::Error;

/// The arguments of the command.
#[derive(clap::Args)]
pub struct Arguments {
    /// TARGET:/path
    #[arg(required_unless_present = "force", value_name = "TARGET:/path")]
    paths: Vec<OsString>,

    #[command(flatten)]
    glob: GlobOptions,

    /// Remove directories and their contents recursively
    #[arg(short, long, short_alias = 'R')]
    recursive: bool,

    /// No error for names that do not exist, for patterns without a match, and without any path
    #[arg(short, long)]
    force: bool,

    #[command(flatten)]
    verbose: VerboseOptions,
}

/// Returns the exit code.
pub fn run(arguments: Arguments) -> Result<u8, Error> {
    let paths = VolumePath::parse_all(&arguments.paths)?;
    let Some(first) = paths.first() else { return Ok(0) };
    let volume = open_at(first, Access::ReadWrite)?;
    let errors = ErrorSink::default();
    let missing = if arguments.force { Missing::Ignored } else { Missing::Refused };
    for path in arguments.glob.expand_each(&volume, &paths, missing, &errors) {
        errors.record(remove(&volume, &path, &arguments, &errors));
    }
    sync(&volume, &first.target)?;
    Ok(errors.exit_code())
}

fn remove(
    volume: &Files,
    path: &VolumePath,
    arguments: &Arguments,
    errors: &ErrorSink,
) -> Result<(), Error> {
    // Slashes at the end would follow a link, but rm must never remove the target of a link.
    let inode = match lookup(volume, without_slashes(&path.bytes)) {
        Err(error) if arguments.force && is_missing(&error) => return Ok(()),
        found => found.map_err(|error| with_path(path, error))?.1,
    };
    if inode.kind != FileType::Directory {
        volume.remove_file(as_path(&path.bytes)).map_err(|error| with_path(path, error))?;
        arguments.verbose.report("removed", &[path])?;
    } else if last_name(&path.bytes).is_none() {
        let what = "cannot be removed; name its entries instead";
        let of_volume = "to remove the whole volume, remove its file with rm, or use uringfs wipe";
        return Err(refused(match path.bytes == b"/" {
            true => format!("{path}: is the root directory, and {what}; {of_volume}"),
            false => format!("{path}: {what}"),
        }));
    } else if !arguments.recursive {
        return Err(refused(format!("{path}: is a directory; use rm -r to remove it")));
    } else {
        remove_tree(volume, path, arguments.verbose, errors);
    }
    Ok(())
}

/// Whether the error means that the file, or a directory of its path, does not exist.
fn is_missing(error: &VolumeError) -> bool {
    matches!(error.errno(), Errno::NOENT | Errno::NOTDIR)
}

/// Removes a directory and its contents as far as possible. Uses no recursion, as trees may be deep.
fn remove_tree(volume: &Files, top: &VolumePath, verbose: VerboseOptions, errors: &ErrorSink) {
    let mut visited = VisitedDirectories::default();
    // Each directory, with whether its contents were already processed.
    let mut left = vec![(top.clone(), false)];
    while let Some((path, is_done)) = left.pop() {
        if is_done {
            let removed = volume.remove_dir(as_path(&path.bytes));
            let is_left = |error: &VolumeError| error.errno() == Errno::NOTEMPTY;
            // The errors of the entries that are left were already reported.
            if errors.exit_code() == 0 || !removed.as_ref().is_err_and(is_left) {
                let removed = removed.map_err(|error| with_path(&path, error));
                errors.record(removed.and_then(|()| verbose.report("removed directory", &[&path])));
            }
            continue;
        }
        left.push((path.clone(), true));
        for (inner, entry) in Entries::new(volume, &path.bytes).with_paths(&path, errors) {
            match entry.kind {
                FileType::Directory => {
                    let is_new = errors.record(visited.visit(&inner, entry.inode)).is_some();
                    left.extend(is_new.then_some((inner, false)));
                }
                _ => {
                    let removed = volume.remove_file(as_path(&inner.bytes));
                    let removed = removed.map_err(|error| with_path(&inner, error));
                    errors.record(removed.and_then(|()| verbose.report("removed", &[&inner])));
                }
            }
        }
    }
}
