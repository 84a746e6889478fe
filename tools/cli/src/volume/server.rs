//! Asks the server of a mounted volume, by its control socket.

use super::exit_codes::with_io_code;
use super::saving_server::is_saving;
use serde_json::Value;
use std::ffi::OsStr;
use std::io;
use std::path::Path;
use uringfs_fuse::control::{Client, RemoteFiles, Request};
use uringfs_lab::Error;

/// The result of a request to the server of a target. `None` if no server has the volume open, or none that this user can
/// ask.
pub(super) fn ask(target: &OsStr, request: Request) -> Result<Option<Value>, Error> {
    match connect(target)? {
        Some(client) => client.call(request).map(Some).map_err(|error| failed(target, &error)),
        None => Ok(None),
    }
}

/// The files of a mounted volume, as [`ask`].
pub(super) fn files(target: &OsStr) -> Result<Option<RemoteFiles>, Error> {
    match connect(target)? {
        Some(client) => client.files().map(Some).map_err(|error| failed(target, &error)),
        None => Ok(None),
    }
}

/// A connection to the server of a mounted volume, as [`ask`].
pub(super) fn connect(target: &OsStr) -> Result<Option<Client>, Error> {
    if is_saving(Path::new(target)) {
        return Ok(None);
    }
    Client::connect(target).map_err(|error| failed(target, &error))
}

fn failed(target: &OsStr, error: &io::Error) -> Error {
    with_io_code(Error::run(format!("{}: {error}", Path::new(target).display())), error)
}
