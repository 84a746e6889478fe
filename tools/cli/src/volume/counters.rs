//! `uringfs counters`: shows the counters of a volume's server.

use super::open_volume::require_server;
use crate::json::document;
use crate::output::print;
use serde_json::Value;
use std::ffi::OsString;
use uringfs_fuse::control::Request;
use uringfs_lab::Error;

/// The arguments of the command.
#[derive(clap::Args)]
pub struct Arguments {
    /// The file or block device with a volume that is mounted or served
    target: OsString,

    /// Print JSON, with the counters that are 0, too
    #[arg(long)]
    json: bool,
}

/// Returns the exit code.
pub fn run(arguments: Arguments) -> Result<u8, Error> {
    let counters = require_server(&arguments.target, Request::Counters)?;
    match arguments.json {
        true => print(&document(counters))?,
        false => print(&text(&counters))?,
    }
    Ok(0)
}

/// A line for each counter that is not 0.
fn text(counters: &Value) -> String {
    let section = |name: &str| counters[name].as_object().into_iter().flatten();
    let reactors = section("reactors").map(|(name, value)| (name.clone(), value));
    let volume = section("volume").map(|(name, value)| (format!("volume.{name}"), value));
    let all: Vec<_> = reactors.chain(volume).filter(|(_, value)| **value != 0).collect();
    let width = all.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    all.iter().map(|(name, value)| format!("{name:<width$}  {value}\n")).collect()
}
