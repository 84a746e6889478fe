//! `uringfs mkdir`: creates directories in a volume.

use super::error_sink::ErrorSink;
use super::open_volume::{is_directory, open, sync};
use super::volume_path::{VolumePath, join, with_path};
use rustix::io::Errno;
use std::ffi::OsString;
use uringfs::{Access, Volume};
use uringfs_lab::Error;

/// The arguments of the command.
#[derive(clap::Args)]
pub struct Arguments {
    /// TARGET:/path
    #[arg(required = true, value_name = "TARGET:/path")]
    paths: Vec<OsString>,

    /// Create parent directories as needed; no error if the directory exists
    #[arg(short)]
    parents: bool,
}

/// Returns the exit code.
pub fn run(arguments: Arguments) -> Result<u8, Error> {
    let paths = VolumePath::parse_all(&arguments.paths)?;
    let volume = open(&paths[0].target, Access::ReadWrite)?;
    let errors = ErrorSink::default();
    for path in &paths {
        errors.record(match arguments.parents {
            true => make_parents(&volume, path),
            false => {
                volume.make_directory(&path.bytes, 0o755).map_err(|error| with_path(path, error))
            }
        });
    }
    sync(&volume, &paths[0].target)?;
    Ok(errors.exit_code())
}

fn make_parents(volume: &Volume, path: &VolumePath) -> Result<(), Error> {
    let mut parent = b"/".to_vec();
    for name in path.bytes.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
        parent = join(&parent, name);
        match volume.make_directory(&parent, 0o755) {
            Err(error) if error.errno() == Errno::EXIST && is_directory(volume, &parent) => {}
            created => {
                created.map_err(|error| with_path(path.in_same_volume(parent.clone()), error))?
            }
        }
    }
    Ok(())
}
