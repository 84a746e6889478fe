//! `uringfs ctl`: controls the server of a volume, or of a configuration, and the cluster of an image.

use super::exit_codes::{not_found, refused, with_io_code};
use super::mounts::server_of_config;
use super::open_volume::require_server;
use super::quoting::for_message;
use super::target::{cluster_error, rbd_admin};
use crate::json::document;
use crate::output::print;
use clap::Subcommand;
use serde_json::{Value, json};
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;
use uringfs::device::backend::rbd::BlockedClient;
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
    /// List the clients that are shut out of the cluster of an image of Ceph's RBD, or let one in again.
    ///
    /// A writer that takes an image shuts out the client that had it. Requests that such a client still has under way
    /// may reach its image when its entry ends or is removed. So remove an entry only when the client's process has
    /// ended.
    Blocklist {
        /// An image of Ceph's RBD (rbd:POOL/IMAGE)
        target: PathBuf,
        /// Let this client in again: its address, as listed
        #[arg(long, value_name = "ADDRESS", conflicts_with = "json")]
        remove: Option<String>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Let uringfs serve read its configuration again.
    ///
    /// The command returns when that is done. Entries that stay in the file are served on without a pause. An error is
    /// printed, and then nothing has changed.
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
        Arguments::Blocklist { target, remove, json } => {
            blocklist(&target, remove.as_deref(), json)?;
        }
        Arguments::Reload { config } => {
            reload(&config)?;
            print(&format!("{}: reloaded\n", config.display()))?;
        }
    }
    Ok(0)
}

fn blocklist(target: &Path, remove: Option<&str>, as_json: bool) -> Result<(), Error> {
    let shown = for_message(target);
    let admin = rbd_admin(target)?.ok_or_else(|| {
        Error::input(format!(
            "{shown}: only images of Ceph's RBD (rbd:POOL/IMAGE) have a blocklist"
        ))
    })?;
    if let Some(address) = remove {
        let removed =
            admin.remove_from_blocklist(address).map_err(|error| cluster_error(&error))?;
        return match removed {
            true => print(&format!("{address}: removed\n")),
            false => Err(not_found(format!("{shown}: {address} is not on the blocklist"))),
        };
    }
    let entries = admin.blocklist().map_err(|error| cluster_error(&error))?;
    if as_json {
        let entry =
            |entry: &BlockedClient| json!({ "address": entry.address, "until": entry.until });
        let entries: Vec<Value> = entries.iter().map(entry).collect();
        return print(&document(json!({ "entries": entries })));
    }
    let width = entries.iter().map(|entry| entry.address.len()).max().unwrap_or(0);
    let line = |entry: &BlockedClient| format!("{:width$}  {}\n", entry.address, entry.until);
    print(&entries.iter().map(line).collect::<String>())
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
