//! `uringfs mkdir`: creates directories in a volume.

use super::error_sink::ErrorSink;
use super::open_volume::{is_directory, open, sync};
use super::verbose::VerboseOptions;
use super::volume_path::{VolumePath, as_path, join, with_path};
use rustix::io::Errno;
use std::ffi::OsString;
use uringfs::Volume;
use uringfs::device::Access;
use uringfs_lab::Error;

/// The arguments of the command.
#[derive(clap::Args)]
pub struct Arguments {
    /// TARGET:/path
    #[arg(required = true, value_name = "TARGET:/path")]
    paths: Vec<OsString>,

    /// Create parent directories as needed; no error if the directory exists
    #[arg(short, long)]
    parents: bool,

    #[command(flatten)]
    verbose: VerboseOptions,
}

/// Returns the exit code.
pub fn run(arguments: Arguments) -> Result<u8, Error> {
    let paths = VolumePath::parse_all(&arguments.paths)?;
    let volume = open(&paths[0].target, Access::ReadWrite)?;
    let errors = ErrorSink::default();
    for path in &paths {
        errors.record(match arguments.parents {
            true => make_parents(&volume, path, arguments.verbose),
            false => make(&volume, path, arguments.verbose),
        });
    }
    sync(&volume, &paths[0].target)?;
    Ok(errors.exit_code())
}

fn make(volume: &Volume, path: &VolumePath, verbose: VerboseOptions) -> Result<(), Error> {
    volume.create_dir(as_path(&path.bytes)).map_err(|error| with_path(path, error))?;
    verbose.report("mkdir: created directory", &[path])
}

fn make_parents(volume: &Volume, path: &VolumePath, verbose: VerboseOptions) -> Result<(), Error> {
    let mut parent = b"/".to_vec();
    for name in path.bytes.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
        parent = join(&parent, name);
        match volume.create_dir(as_path(&parent)) {
            Err(error) if error.errno() == Errno::EXIST && is_directory(volume, &parent) => {}
            created => {
                let made = path.in_same_volume(parent.clone());
                created.map_err(|error| with_path(&made, error))?;
                verbose.report("mkdir: created directory", &[&made])?;
            }
        }
    }
    Ok(())
}
