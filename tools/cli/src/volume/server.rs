//! Asks the server of a volume, mounted or not, by its control socket.

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
        Some(client) => reached(target, client.call(request)),
        None => Ok(None),
    }
}

/// The files of a volume that a server has open, as [`ask`].
pub(super) fn files(target: &OsStr) -> Result<Option<RemoteFiles>, Error> {
    match connect(target)? {
        Some(client) => reached(target, client.files()),
        None => Ok(None),
    }
}

/// A connection to the server of a volume, as [`ask`].
pub(super) fn connect(target: &OsStr) -> Result<Option<Client>, Error> {
    if is_saving(Path::new(target)) {
        return Ok(None);
    }
    Client::connect(target).map_err(|error| failed(target, &error))
}

/// `None` if the server has the target open, but not as a volume, or is closing it.
fn reached<T>(target: &OsStr, replied: io::Result<T>) -> Result<Option<T>, Error> {
    match replied {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        replied => replied.map(Some).map_err(|error| failed(target, &error)),
    }
}

fn failed(target: &OsStr, error: &io::Error) -> Error {
    with_io_code(Error::run(format!("{}: {error}", Path::new(target).display())), error)
}
