//! `uringfs df`: the size of a volume and its free space.

use super::open_volume::open;
use super::size_change::BLOCK;
use super::size_options::SizeOptions;
use crate::output::print;
use serde_json::{Value, json};
use std::ffi::{OsStr, OsString};
use uringfs::Volume;
use uringfs::device::Access;
use uringfs_lab::Error;

/// The arguments of the command.
#[derive(clap::Args)]
pub struct Arguments {
    /// A file or a block device with a volume
    target: OsString,

    #[command(flatten)]
    sizes: SizeOptions,

    /// Print JSON, with sizes in bytes
    #[arg(long)]
    json: bool,
}

/// Returns the exit code.
pub fn run(arguments: Arguments) -> Result<u8, Error> {
    let volume = open(&arguments.target, Access::Read)?;
    let space = SpaceUsage::new(&volume);
    let text = match arguments.json {
        true => format!("{:#}\n", space.json()),
        false => table(&arguments.target, &space, arguments.sizes),
    };
    print(&text)?;
    Ok(0)
}

/// The columns of `df` of coreutils, except for the mount point: a volume has none.
fn table(target: &OsStr, space: &SpaceUsage, sizes: SizeOptions) -> String {
    let (size, available) = match sizes.human_readable {
        true => ("Size", "Avail"),
        false => ("1K-blocks", "Available"),
    };
    let text = |bytes| sizes.text(bytes, 1024);
    let used = space.size - space.free;
    let percent = (u128::from(used) * 100).div_ceil(u128::from(space.size));
    let rows = [
        ["Filesystem", size, "Used", available, "Use%"].map(str::to_owned),
        [
            target.display().to_string(),
            text(space.size),
            text(used),
            text(space.free),
            format!("{percent}%"),
        ],
    ];
    let mut widths = [14, 5, 5, 5, 4];
    for (at, width) in widths.iter_mut().enumerate() {
        *width = rows.iter().map(|row| row[at].chars().count()).fold(*width, usize::max);
    }
    let [name, size, used, free, share] = widths;
    let line = |[a, b, c, d, e]: &[String; 5]| {
        format!("{a:<name$} {b:>size$} {c:>used$} {d:>free$} {e:>share$}\n")
    };
    rows.iter().map(line).collect()
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
