//! `uringfs ln`: creates hard and symbolic links in a volume.

use super::open_volume::{open, sync};
use super::two_paths::{target_path, with_both_paths};
use super::volume_path::{VolumePath, as_path, with_path};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use uringfs::device::Access;
use uringfs_lab::Error;

/// The arguments of the command.
#[derive(clap::Args)]
pub struct Arguments {
    /// TARGET:/path of an existing file; with -s, the target of the link, stored as given
    source: OsString,

    /// TARGET:/path of the link, or of a directory to create it in
    #[arg(value_name = "TARGET:/new")]
    destination: OsString,

    /// Create a symbolic link
    #[arg(short)]
    symbolic: bool,
}

/// Returns the exit code.
pub fn run(arguments: Arguments) -> Result<u8, Error> {
    if arguments.symbolic {
        let path = VolumePath::parse(&arguments.destination)?;
        let volume = open(&path.target, Access::ReadWrite)?;
        let link_target = arguments.source.as_bytes();
        let path = target_path(&volume, &path.in_same_volume(link_target.to_vec()), &path);
        let created = volume.symlink(as_path(link_target), as_path(&path.bytes));
        created.map_err(|error| with_path(&path, error))?;
        sync(&volume, &path.target)?;
    } else {
        let paths = VolumePath::parse_all(&[arguments.source, arguments.destination])?;
        let volume = open(&paths[0].target, Access::ReadWrite)?;
        let to = target_path(&volume, &paths[0], &paths[1]);
        let linked = volume.hard_link(as_path(&paths[0].bytes), as_path(&to.bytes));
        linked.map_err(|error| with_both_paths(&paths[0], &to, error))?;
        sync(&volume, &paths[0].target)?;
    }
    Ok(0)
}
