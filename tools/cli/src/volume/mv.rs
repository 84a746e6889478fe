//! `uringfs mv`: moves and renames files in a volume.

use super::open_volume::{lookup, open, sync};
use super::overwrite::{NameAction, OverwriteOptions};
use super::two_paths::{target_path, with_both_paths};
use super::verbose::VerboseOptions;
use super::volume_path::{VolumePath, as_path};
use std::ffi::OsString;
use uringfs::device::Access;
use uringfs::volume::Rename;
use uringfs_lab::Error;

/// The arguments of the command.
#[derive(clap::Args)]
pub struct Arguments {
    /// TARGET:/path
    #[arg(value_name = "TARGET:/path")]
    source: OsString,

    /// TARGET:/path of the new name, or of a directory to move the source into
    #[arg(value_name = "TARGET:/new")]
    destination: OsString,

    #[command(flatten)]
    overwrite: OverwriteOptions,

    #[command(flatten)]
    verbose: VerboseOptions,
}

/// Returns the exit code.
pub fn run(arguments: Arguments) -> Result<u8, Error> {
    let paths = VolumePath::parse_all(&[arguments.source, arguments.destination])?;
    let volume = open(&paths[0].target, Access::ReadWrite)?;
    let to = target_path(&volume, &paths[0], &paths[1]);
    let keeps_existing = arguments.overwrite.skips_existing();
    let found = [&paths[0], &to].map(|path| lookup(&volume, &path.bytes));
    if let [Ok((_, moved)), Ok((_, existing))] = found {
        let action = arguments.overwrite.action(existing.kind, moved.kind);
        match action.map_err(|why| Error::input(format!("{to}: {why}")))? {
            NameAction::Skip => return Ok(0),
            // Directories are not merged: the existing one would be replaced.
            NameAction::Merge if keeps_existing => return Ok(0),
            _ => {}
        }
    }
    // Also keeps an existing file that could not be read above.
    let how = if keeps_existing { Rename::NoReplace } else { Rename::Replace };
    let moved = volume.rename_with(as_path(&paths[0].bytes), as_path(&to.bytes), how);
    moved.map_err(|error| with_both_paths(&paths[0], &to, error))?;
    arguments.verbose.report("renamed", &[&paths[0], &to])?;
    sync(&volume, &paths[0].target)?;
    Ok(0)
}
