//! `uringfs ctl`: controls the server of a volume, or of a configuration.

use super::exit_codes::{not_found, refused, with_io_code};
use super::mounts::server_of_config;
use super::open_volume::require_server;
use super::quoting::for_message;
use crate::output::print;
use clap::Subcommand;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;
use uringfs_fuse::control::{Client, MAX_FREEZE, Request};
use uringfs_lab::Error;

/// The subcommands.
#[derive(Subcommand)]
pub enum Arguments {
    /// Make everything durable, then hold back every change, so that the device can be copied.
    ///
    /// Programs that write wait, those that read go on. After the time the volume thaws by itself; then ctl thaw fails,
    /// and a copy that was made since is worthless.
    Freeze {
        /// The file or block device with a volume that is mounted or served
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
        /// The file or block device with a volume that is mounted or served
        target: OsString,
    },
    /// Let uringfs serve read its configuration again.
    ///
    /// The command returns when that is done. What stays in the file is served on without a pause. An error is printed, and
    /// then nothing has changed.
    Reload {
        /// The file that uringfs serve --config was started with
        config: PathBuf,
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
        Arguments::Reload { config } => {
            reload(&config)?;
            print(&format!("{}: reloaded\n", config.display()))?;
        }
    }
    Ok(0)
}

fn reload(config: &Path) -> Result<(), Error> {
    let shown = for_message(config);
    let failed = |error: io::Error| with_io_code(Error::run(error.to_string()), &error);
    let unknown = |error| with_io_code(Error::input(format!("{shown}: {error}")), &error);
    let Some(process) = server_of_config(&config.canonicalize().map_err(unknown)?) else {
        return Err(not_found(format!("{shown}: no server was started with it")));
    };
    match Client::of_process(process).map_err(failed)? {
        Some(client) => client.call(Request::Reload).map(|_| ()).map_err(failed),
        None => Err(refused(format!(
            "{shown}: process {process} takes no commands of this user; send it SIGHUP"
        ))),
    }
}
