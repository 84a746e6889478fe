//! Asks the server of a mounted volume, by its control socket.

use super::exit_codes::{not_found, with_io_code};
use super::open_volume::open;
use serde_json::Value;
use std::ffi::OsStr;
use std::io;
use std::path::Path;
use uringfs::device::Access;
use uringfs_fuse::control::{Client, Request};
use uringfs_lab::Error;

/// The result of a request to the server of a target. `None` if no server has the volume open, or none that this user can
/// ask.
pub(super) fn ask(target: &OsStr, request: Request) -> Result<Option<Value>, Error> {
    let failed = |error: io::Error| {
        let shown = Path::new(target).display();
        with_io_code(Error::run(format!("{shown}: {error}")), &error)
    };
    match Client::connect(target).map_err(failed)? {
        Some(client) => client.call(request).map(Some).map_err(failed),
        None => Ok(None),
    }
}

/// The reply of the server.
///
/// # Errors
/// Those of [`ask`]; the volume is not mounted, or has no control socket.
pub(super) fn require(target: &OsStr, request: Request) -> Result<Value, Error> {
    match ask(target, request)? {
        Some(reply) => Ok(reply),
        None => {
            // Says who has it open, if that is why.
            drop(open(target, Access::Read)?);
            Err(not_found(format!("{}: is not mounted", target.display())))
        }
    }
}
