//! Opens the volume of a command and makes its changes durable.

use super::exit_codes::{IN_USE, not_found, with_io_code};
use super::files::Files;
use super::mounts::mounted_from;
use super::put_staging::remove_leftovers;
use super::quoting::for_message;
use super::saving_server::wait_for_saving_server;
use super::server;
use super::target::is_uri;
use super::volume_path::{VolumePath, as_path, with_path, with_path_instead};
use serde_json::Value;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use uringfs::device::{Access, Device};
use uringfs::volume::{Follow, Inode, InodeNumber};
use uringfs::{Errno, Error as VolumeError, Volume};
use uringfs_fuse::control::Request;
use uringfs_lab::Error;

/// Opens the volume in a file or on a block device. Fails if another program has it open for writing, or for
/// `ReadWrite` if another program has it open at all. `ReadWrite` also removes files that a killed `put` has left.
/// Warns on standard error of damage with which the volume can be opened.
pub(super) fn open(target: &OsStr, access: Access) -> Result<Volume, Error> {
    open_for(target, b"/", access)
}

/// The files of the volume for a command on a path, also if a server has it open. If its server cannot be asked, the error says which
/// file below the mount point it is.
pub(super) fn open_at(path: &VolumePath, access: Access) -> Result<Files, Error> {
    match server::files(&path.target)? {
        Some(files) => Ok(Files::Served(files)),
        None => open_for(&path.target, &path.bytes, access).map(Files::Volume),
    }
}

/// The reply of the server that has the volume of a target open.
///
/// # Errors
/// Those of [`server::ask`]; no server has the volume open, or it has no control socket.
pub(super) fn require_server(target: &OsStr, request: Request) -> Result<Value, Error> {
    match server::ask(target, request)? {
        Some(reply) => Ok(reply),
        None => {
            // Another process may have it open without a socket: the error names that process.
            drop(open(target, Access::Read)?);
            Err(not_found(format!("{}: is neither mounted nor served", target.display())))
        }
    }
}

fn open_for(target: &OsStr, path: &[u8], access: Access) -> Result<Volume, Error> {
    let volume = open_quietly_for(target, path, access)?;
    for flaw in volume.warnings() {
        let target = for_message(target);
        crate::output::print_warning(&format!("{target}: {flaw}"));
    }
    Ok(volume)
}

/// The same without warnings: for a second opening, and for commands that report damage themselves.
pub(super) fn open_quietly(target: &OsStr, access: Access) -> Result<Volume, Error> {
    open_quietly_for(target, b"/", access)
}

fn open_quietly_for(target: &OsStr, meant: &[u8], access: Access) -> Result<Volume, Error> {
    let path = Path::new(target);
    wait_for_saving_server(path);
    refuse_mounted_export(path, meant)?;
    let device = Device::open(path, access).map_err(|error| missing_path_hint(path, &error))?;
    print_notice(path, &device);
    let opened = Volume::open_on(device).and_then(|volume| {
        if access == Access::ReadWrite {
            remove_leftovers(&Files::Volume(volume.clone()))?;
        }
        Ok(volume)
    });
    opened.map_err(|error| with_path_instead(for_message(path), meant, error))
}

/// Opens the file, block device or export of a target.
pub(super) fn open_device(path: &Path, access: Access) -> Result<Device, Error> {
    refuse_mounted_export(path, b"/")?;
    let device = Device::open(path, access).map_err(|error| open_error(path, &error))?;
    print_notice(path, &device);
    Ok(device)
}

/// Warns of an image that was taken from another client.
fn print_notice(path: &Path, device: &Device) {
    if let Some(notice) = device.notice() {
        crate::output::print_warning(&format!("{}: {notice}", for_message(path)));
    }
}

/// Refuses an export with a mounted volume before it is opened: a server with room for one client would not answer.
fn refuse_mounted_export(path: &Path, meant: &[u8]) -> Result<(), Error> {
    match is_uri(path) && mounted_from(path).is_some() {
        true => Volume::require_closed(path)
            .map_err(|error| with_path_instead(for_message(path), meant, error)),
        false => Ok(()),
    }
}

/// The error of opening or creating a target, which the message of `error` names.
pub(super) fn open_error(path: &Path, error: &io::Error) -> Error {
    with_holder(path, with_io_code(Error::input(open_message(path, error)), error))
}

fn open_message(path: &Path, error: &io::Error) -> String {
    let message = error.to_string();
    match message.strip_prefix(&path.display().to_string()) {
        Some(rest) => format!("{}{rest}", for_message(path)),
        None => message,
    }
}

/// Replaces the error of a target in use by one that names the process which has its volume open, if one has.
pub(super) fn with_holder(path: &Path, error: Error) -> Error {
    let is_in_use = error.exit_code() == IN_USE;
    match is_in_use.then(|| Volume::require_closed(path)) {
        Some(Err(open)) if open.errno() == Errno::BUSY => with_path(for_message(path), open),
        _ => error,
    }
}

/// The error of opening a target. A target that does not exist and has a colon may be meant as a path in a volume.
fn missing_path_hint(path: &Path, error: &io::Error) -> Error {
    if is_uri(path) {
        return open_error(path, error);
    }
    let has_colon = path.as_os_str().as_bytes().contains(&b':');
    let message = || open_message(path, error);
    match error.kind() == io::ErrorKind::NotFound {
        true if has_colon => {
            not_found(format!("{}; a path in a volume is written TARGET:/path", message()))
        }
        true => not_found(format!("{}; uringfs mkfs creates a volume", message())),
        false => open_error(path, error),
    }
}

/// Makes all changes durable.
pub(super) fn sync(volume: &Files, target: &OsStr) -> Result<(), Error> {
    volume.sync().map_err(|error| with_path(for_message(target), error))
}

/// Whether the path is a directory or a link to one.
pub(super) fn is_directory(volume: &Files, path: &[u8]) -> bool {
    let found = volume.metadata(as_path(path));
    found.is_ok_and(|metadata| metadata.is_dir())
}

/// The inode of a path, and its number. Follows no link at the path's end.
pub(super) fn lookup(volume: &Files, path: &[u8]) -> Result<(InodeNumber, Inode), VolumeError> {
    lookup_with(volume, path, Follow::No)
}

/// The same, with a choice whether it follows a link at the path's end.
pub(super) fn lookup_with(
    volume: &Files,
    path: &[u8],
    follow: Follow,
) -> Result<(InodeNumber, Inode), VolumeError> {
    let metadata = match follow {
        Follow::Yes => volume.metadata(as_path(path)),
        Follow::No => volume.symlink_metadata(as_path(path)),
    }?;
    Ok((InodeNumber(metadata.ino()), metadata.into_inode()))
}
