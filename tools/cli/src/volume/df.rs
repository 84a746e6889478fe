//! `uringfs df`: the sizes of volumes and their free space.

use super::error_sink::ErrorSink;
use super::open_volume::{lookup, open};
use super::size_change::BLOCK;
use super::size_options::SizeOptions;
use super::volume_path::{VolumePath, with_path};
use crate::json::{document, with_bytes};
use crate::output::print;
use serde_json::{Value, json};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use uringfs::Volume;
use uringfs::device::Access;
use uringfs_lab::Error;

/// The arguments of the command.
#[derive(clap::Args)]
pub struct Arguments {
    /// Files or block devices with volumes, or paths in them
    #[arg(required = true, value_name = "TARGET")]
    targets: Vec<OsString>,

    #[command(flatten)]
    sizes: SizeOptions,

    /// Print JSON, with sizes in bytes
    #[arg(long)]
    json: bool,
}

/// Returns the exit code.
pub fn run(arguments: Arguments) -> Result<u8, Error> {
    let errors = ErrorSink::default();
    let space = |argument: &OsString| {
        let path = VolumePath::parse(argument)?;
        let volume = open(&path.target, Access::Read)?;
        lookup(&volume, &path.bytes).map_err(|error| with_path(&path, error))?;
        Ok((path.target, SpaceUsage::new(&volume)))
    };
    let volumes: Vec<(OsString, SpaceUsage)> =
        arguments.targets.iter().filter_map(|target| errors.record(space(target))).collect();
    match (arguments.json, volumes.is_empty()) {
        (true, _) => print(&document(json(&volumes)))?,
        (false, true) => {}
        (false, false) => print(&table(&volumes, arguments.sizes))?,
    }
    Ok(errors.exit_code())
}

fn json(volumes: &[(OsString, SpaceUsage)]) -> Value {
    let volume = |(target, space): &(OsString, SpaceUsage)| {
        let used = space.size - space.free;
        let fields = json!({"size": space.size, "used": used, "free": space.free});
        with_bytes("target", target.as_bytes(), fields)
    };
    json!({ "volumes": volumes.iter().map(volume).collect::<Vec<_>>() })
}

/// The columns of `df` of coreutils, except for the mount point: a volume has none.
fn table(volumes: &[(OsString, SpaceUsage)], sizes: SizeOptions) -> String {
    let (size, available) = match sizes.human_readable {
        true => ("Size", "Avail"),
        false => ("1K-blocks", "Available"),
    };
    let text = |bytes| sizes.text(bytes, 1024);
    let row = |(target, space): &(OsString, SpaceUsage)| {
        let used = space.size - space.free;
        let percent = (u128::from(used) * 100).div_ceil(u128::from(space.size));
        let target = target.display().to_string();
        [target, text(space.size), text(used), text(space.free), format!("{percent}%")]
    };
    let mut rows = vec![["Filesystem", size, "Used", available, "Use%"].map(str::to_owned)];
    rows.extend(volumes.iter().map(row));
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
}
