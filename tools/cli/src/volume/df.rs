//! `uringfs df`: the size of a volume and its free space.

use super::format;
use super::open_volume::open;
use super::size_change::BLOCK;
use crate::output::print;
use serde_json::{Value, json};
use std::ffi::OsString;
use uringfs::{Access, Volume};
use uringfs_lab::Error;

/// The arguments of the command.
#[derive(clap::Args)]
pub struct Arguments {
    /// A file or a block device with a volume
    target: OsString,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Returns the exit code.
pub fn run(arguments: Arguments) -> Result<u8, Error> {
    let volume = open(&arguments.target, Access::Read)?;
    let space = SpaceUsage::new(&volume);
    let text = match arguments.json {
        true => format!("{:#}\n", space.json()),
        false => format!(
            "{}: {} of {} used, {} free\n",
            arguments.target.display(),
            format::size(space.size - space.free),
            format::size(space.size),
            format::size(space.free),
        ),
    };
    print(&text)?;
    Ok(0)
}

/// The size of a volume and its free space, in bytes.
pub struct SpaceUsage {
    pub size: u64,
    /// Space for files. Blocks reserved for the catalog count as used.
    pub free: u64,
}

impl SpaceUsage {
    pub fn new(volume: &Volume) -> Self {
        let found = volume.statistics();
        Self { size: found.blocks * BLOCK, free: found.free_blocks * BLOCK }
    }

    fn json(&self) -> Value {
        json!({"size": self.size, "used": self.size - self.free, "free": self.free})
    }
}
