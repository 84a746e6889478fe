//! `uringfs ctl`: controls the server of a mounted volume.

use super::exit_codes::refused;
use super::open_volume::require_server;
use crate::output::print;
use clap::Subcommand;
use std::ffi::OsString;
use std::time::Duration;
use uringfs_fuse::control::{MAX_FREEZE, Request};
use uringfs_lab::Error;

/// The subcommands.
#[derive(Subcommand)]
pub enum Arguments {
    /// Make everything durable, then hold back every change, so that the device can be copied.
    ///
    /// Programs that write wait, those that read go on. After the time the volume thaws by itself; then ctl thaw fails,
    /// and a copy that was made since is worthless.
    Freeze {
        /// The file or block device with a mounted volume
        target: OsString,
        /// The time after which it thaws by itself
        #[arg(
            long,
            value_name = "SECONDS",
            default_value_t = 60,
            value_parser = clap::value_parser!(u64).range(1..=MAX_FREEZE.as_secs())
        )]
        timeout: u64,
    },
    /// Let changes in again.
    Thaw {
        /// The file or block device with a mounted volume
        target: OsString,
    },
}

/// Returns the exit code.
pub fn run(arguments: Arguments) -> Result<u8, Error> {
    match arguments {
        Arguments::Freeze { target, timeout } => {
            require_server(&target, Request::Freeze(Duration::from_secs(timeout)))?;
            print(&format!("{}: frozen, for {timeout} seconds at most\n", target.display()))?;
        }
        Arguments::Thaw { target } => {
            let thawed = require_server(&target, Request::Thaw)?;
            if thawed["was_frozen"] != true {
                let what = format!("{}: is not frozen, or no longer", target.display());
                return Err(refused(what));
            }
            print(&format!("{}: thawed\n", target.display()))?;
        }
    }
    Ok(0)
}
