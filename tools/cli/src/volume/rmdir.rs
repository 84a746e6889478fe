//! `uringfs rmdir`: removes empty directories from a volume.

use super::error_sink::ErrorSink;
use super::exit_codes::refused;
use super::files::Files;
use super::glob::{GlobOptions, Missing};
use super::open_volume::{open_at, sync};
use super::verbose::VerboseOptions;
use super::volume_path::{VolumePath, as_path, last_name, parent, with_path};
use std::ffi::OsString;
use uringfs::device::Access;
use uringfs_lab::Error;

/// The arguments of the command.
#[derive(clap::Args)]
pub struct Arguments {
    /// TARGET:/path
    #[arg(required = true, value_name = "TARGET:/path")]
    paths: Vec<OsString>,

    #[command(flatten)]
    glob: GlobOptions,

    /// Also remove the parents, up to the root: rmdir -p v:/a/b is like rmdir v:/a/b v:/a
    #[arg(short, long)]
    parents: bool,

    #[command(flatten)]
    verbose: VerboseOptions,
}

/// Returns the exit code.
pub fn run(arguments: Arguments) -> Result<u8, Error> {
    let paths = VolumePath::parse_all(&arguments.paths)?;
    let volume = open_at(&paths[0], Access::ReadWrite)?;
    let errors = ErrorSink::default();
    for path in arguments.glob.expand_each(&volume, &paths, Missing::Refused, &errors) {
        errors.record(remove(&volume, path, &arguments));
    }
    sync(&volume, &paths[0].target)?;
    Ok(errors.exit_code())
}

fn remove(volume: &Files, path: VolumePath, arguments: &Arguments) -> Result<(), Error> {
    let mut next = Some(path);
    while let Some(path) = next {
        if last_name(&path.bytes).is_none() {
            return Err(refused(format!("{path}: cannot be removed")));
        }
        arguments.verbose.report("rmdir: removing directory,", &[&path])?;
        volume.remove_dir(as_path(&path.bytes)).map_err(|error| with_path(&path, error))?;
        let above = parent(&path.bytes);
        let above = above.strip_suffix(b"/").unwrap_or(above);
        let goes_on = arguments.parents && last_name(above).is_some();
        next = goes_on.then(|| path.in_same_volume(above.to_vec()));
    }
    Ok(())
}
