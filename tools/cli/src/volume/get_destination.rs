//! The destination of `get`. A destination that is named on the command line is followed if it is a symbolic link, and a
//! device, FIFO or socket takes the contents of a file, as from `cp`. Names below a directory follow no links.

use super::cat;
use super::exit_codes::{refused, with_cause_code};
use super::files::Files;
use super::host::{HostTree, file_id};
use super::image::ImageFiles;
use super::open_volume::{is_directory, lookup};
use super::overwrite::OverwriteOptions;
use super::quoting::for_message;
use super::volume_path::{VolumePath, last_name, with_path};
use rustix::fs::OFlags;
use std::ffi::OsStr;
use std::fs::{File as HostFile, Metadata};
use std::io::{self, ErrorKind};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use uringfs::Volume;
use uringfs::volume::FileType;
use uringfs_lab::Error;

/// Where the sources go.
pub enum GetDestination {
    /// The contents go to standard output.
    StandardOutput,
    /// The contents of the only source go into a device, FIFO or socket, or into a file without a name.
    Existing(PathBuf),
    /// The files get names below a directory: one path for each source.
    Names(HostTree, Vec<PathBuf>),
}

impl GetDestination {
    /// Finds out what a destination of the command line is.
    pub fn new(
        volume: &Files,
        paths: &[VolumePath],
        destination: &Path,
        overwrite: OverwriteOptions,
    ) -> Result<GetDestination, Error> {
        if destination == Path::new("-") {
            return Ok(GetDestination::StandardOutput);
        }
        match paths {
            [path] if !overwrite.skips_existing() && is_file(volume, path) => {
                GetDestination::of_file(volume, paths, destination)
            }
            _ => names(volume, paths, destination),
        }
    }

    /// The destination of the contents of one file.
    fn of_file(
        volume: &Files,
        paths: &[VolumePath],
        destination: &Path,
    ) -> Result<GetDestination, Error> {
        let is_link = destination.symlink_metadata().is_ok_and(|found| found.is_symlink());
        let found = match destination.metadata() {
            Err(error) if is_link && error.kind() == ErrorKind::NotFound => {
                let what = "is a symbolic link to a file that does not exist";
                return Err(refused(format!("{}: {what}", for_message(destination))));
            }
            Ok(found) if !found.is_dir() => found,
            // The kernel follows no links that others have made in a directory such as /tmp. They are replaced.
            _ => return names(volume, paths, destination),
        };
        if ImageFiles::of_volume(&paths[0].target)?.contains(&found) {
            // Refused there.
            return names(volume, paths, destination);
        }
        if is_link && is_standard_output(&found) {
            return Ok(GetDestination::StandardOutput);
        }
        if !found.is_file() {
            return Ok(GetDestination::Existing(destination.to_owned()));
        }
        if !is_link {
            return names(volume, paths, destination);
        }
        let is_same =
            |path: &PathBuf| path.metadata().is_ok_and(|named| file_id(&named) == file_id(&found));
        match destination.canonicalize().ok().filter(is_same) {
            Some(path) => names(volume, paths, &path),
            None => Ok(GetDestination::Existing(destination.to_owned())),
        }
    }
}

fn is_file(volume: &Files, path: &VolumePath) -> bool {
    lookup(volume, &path.bytes).is_ok_and(|(_, inode)| inode.kind == FileType::File)
}

fn is_standard_output(found: &Metadata) -> bool {
    let output = io::stdout().as_fd().try_clone_to_owned().map(HostFile::from);
    output
        .and_then(|output| output.metadata())
        .is_ok_and(|output| file_id(&output) == file_id(found))
}

/// The destination directory, and the path in it for each source: a name in the destination if that is a directory,
/// else the destination itself in its parent.
fn names(
    volume: &Files,
    paths: &[VolumePath],
    destination: &Path,
) -> Result<GetDestination, Error> {
    if let Ok(tree) = HostTree::open(destination) {
        let name = |path: &VolumePath| match last_name(&path.bytes) {
            Some(name) if !path.bytes.ends_with(b"/.") => PathBuf::from(OsStr::from_bytes(name)),
            // The entries of the root and of `/directory/.` go into the directory itself.
            _ => PathBuf::new(),
        };
        return Ok(GetDestination::Names(tree, paths.iter().map(name).collect()));
    }
    let not_a_directory = |what: &str| {
        Err(refused(format!("{}: is not a directory; {what}", for_message(destination))))
    };
    let [path] = paths else { return not_a_directory("create it to copy several files") };
    let is_for_directories = destination.as_os_str().as_bytes().ends_with(b"/");
    if is_for_directories && !is_directory(volume, &path.bytes) {
        return not_a_directory("create it first");
    }
    let name = destination.file_name().map(PathBuf::from);
    let parent = destination.parent().unwrap_or(Path::new(""));
    match (HostTree::open(parent), name) {
        (Ok(tree), Some(name)) => Ok(GetDestination::Names(tree, vec![name])),
        (Err(error), Some(_)) => Err(match is_in_volume(destination) {
            true => {
                let what = "is a path in a volume; uringfs cp copies from volume to volume";
                refused(format!("{}: {what}", for_message(destination)))
            }
            false => with_cause_code(create_error(destination).because(error)),
        }),
        (_, None) => not_a_directory("create it first"),
    }
}

/// Whether a path is in a volume, whose file exists.
fn is_in_volume(path: &Path) -> bool {
    let path = VolumePath::split(path.as_os_str());
    path.is_ok_and(|path| Path::new(&path.target).is_file())
}

/// Writes the contents of a file into a device, FIFO or socket that exists, or into a file without a name.
pub fn write_into(volume: &Files, path: &VolumePath, destination: &Path) -> Result<(), Error> {
    let shown = for_message(destination);
    let failed = |error: io::Error| {
        with_cause_code(Error::run(format!("{shown}: cannot be written")).because(error))
    };
    let found = destination.metadata().map_err(failed)?;
    let is_block_device = found.file_type().is_block_device();
    if is_block_device {
        Volume::require_closed(destination).map_err(|error| with_path(shown, error))?;
    }
    // A block device that is mounted or otherwise in use is not opened.
    let exclusive = if is_block_device { OFlags::EXCL } else { OFlags::empty() };
    let mut output = HostFile::options()
        .write(true)
        .truncate(found.is_file())
        .custom_flags((OFlags::NOCTTY | exclusive).bits() as i32)
        .open(destination)
        .map_err(failed)?;
    cat::write_contents(volume, path, &mut output, failed)?;
    if is_block_device { output.sync_all().map_err(failed) } else { Ok(()) }
}

/// The error of a file that cannot be created.
pub fn create_error(path: &Path) -> Error {
    Error::run(format!("{}: cannot be created", for_message(path)))
}
