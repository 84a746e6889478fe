//! `uringfs chmod`: changes the permissions of files in a volume.

use super::error_sink::ErrorSink;
use super::glob;
use super::open_volume::{open, sync};
use super::volume_path::{VolumePath, as_path, with_path};
use std::ffi::OsString;
use uringfs::device::Access;
use uringfs::volume::Follow;
use uringfs_lab::Error;

/// The arguments of the command.
#[derive(clap::Args)]
pub struct Arguments {
    /// Permissions in octal, as in 644
    #[arg(value_parser = parse_mode)]
    mode: u16,

    /// TARGET:/path, with wildcards
    #[arg(required = true, value_name = "TARGET:/path")]
    paths: Vec<OsString>,
}

fn parse_mode(text: &str) -> Result<u16, String> {
    match u16::from_str_radix(text, 8) {
        Ok(mode @ 0..=0o7777) => Ok(mode),
        _ => Err("expected octal digits up to 7777, as in 644".into()),
    }
}

/// Returns the exit code.
pub fn run(arguments: Arguments) -> Result<u8, Error> {
    let paths = VolumePath::parse_all(&arguments.paths)?;
    let volume = open(&paths[0].target, Access::ReadWrite)?;
    let errors = ErrorSink::default();
    for path in glob::expand_each(&volume, &paths, &errors) {
        let set = volume.set_attributes(as_path(&path.bytes), Follow::Yes, |inode| {
            inode.permissions = arguments.mode;
        });
        errors.record(set.map_err(|error| with_path(&path, error)));
    }
    sync(&volume, &paths[0].target)?;
    Ok(errors.exit_code())
}
