//! `uringfs df`: the sizes of volumes and their free space.

use super::error_sink::ErrorSink;
use super::files::Files;
use super::open_volume::{lookup, open_at, require_server};
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
use uringfs_fuse::control::Request;
use uringfs_lab::Error;

/// The arguments of the command.
#[derive(clap::Args)]
pub struct Arguments {
    /// Files or block devices with volumes, or paths in them
    #[arg(required = true, value_name = "TARGET")]
    targets: Vec<OsString>,

    /// Print the kind of file system, which is uringfs
    #[arg(short = 'T', long)]
    print_type: bool,

    /// As --si
    #[arg(short = 'H', overrides_with_all = ["mebibytes", "kibibytes", "human_readable"])]
    si_short: bool,

    /// Print sizes in units of 1048576 bytes
    #[arg(short = 'm', overrides_with_all = ["kibibytes", "human_readable", "si", "si_short"])]
    mebibytes: bool,

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
        let files = open_at(&path, Access::Read)?;
        lookup(&files, &path.bytes).map_err(|error| with_path(&path, error))?;
        let space = match files {
            Files::Volume(volume) => SpaceUsage::new(&volume),
            Files::Served(_) => {
                SpaceUsage::from_reply(&require_server(&path.target, Request::Space)?)
            }
        };
        Ok((path.target, space))
    };
    let volumes: Vec<(OsString, SpaceUsage)> =
        arguments.targets.iter().filter_map(|target| errors.record(space(target))).collect();
    match (arguments.json, volumes.is_empty()) {
        (true, _) => print(&document(json(&volumes)))?,
        (false, true) => {}
        (false, false) => print(&table(&volumes, &arguments))?,
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
fn table(volumes: &[(OsString, SpaceUsage)], arguments: &Arguments) -> String {
    let sizes = SizeOptions { si: arguments.sizes.si || arguments.si_short, ..arguments.sizes };
    let unit = if arguments.mebibytes { 1 << 20 } else { 1024 };
    let (size, available) = match (sizes.are_scaled(), arguments.mebibytes) {
        (true, _) => ("Size", "Avail"),
        (false, true) => ("1M-blocks", "Available"),
        (false, false) => ("1K-blocks", "Available"),
    };
    let text = |bytes| sizes.text(bytes, unit);
    let row = |(target, space): &(OsString, SpaceUsage)| {
        let used = space.size - space.free;
        let percent = (u128::from(used) * 100).div_ceil(u128::from(space.size).max(1));
        let (target, kind) = (target.display().to_string(), "uringfs".to_owned());
        [target, kind, text(space.size), text(used), text(space.free), format!("{percent}%")]
    };
    let mut rows = vec![["Filesystem", "Type", size, "Used", available, "Use%"].map(str::to_owned)];
    rows.extend(volumes.iter().map(row));
    let mut widths = [14, 4, 5, 5, 5, 4];
    for (at, width) in widths.iter_mut().enumerate() {
        *width = rows.iter().map(|row| row[at].chars().count()).fold(*width, usize::max);
    }
    let [name, kind, size, used, free, share] = widths;
    let line = |[a, b, c, d, e, f]: &[String; 6]| {
        let b = if arguments.print_type { format!(" {b:<kind$}") } else { String::new() };
        format!("{a:<name$}{b} {c:>size$} {d:>used$} {e:>free$} {f:>share$}\n")
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

    /// Of a volume that a server has open.
    pub fn from_reply(reply: &Value) -> Self {
        let bytes = |name: &str| reply[name].as_u64().unwrap_or(0);
        let size = bytes("size");
        Self { size, free: bytes("free").min(size) }
    }
}
