//! `uringfs ln`: makes hard and symbolic links in a volume.

use super::open_volume::{open, sync};
use super::two_paths::{target_path, with_both_paths};
use super::volume_path::{VolumePath, with_path};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use uringfs::Access;
use uringfs_lab::Error;

/// What the command takes.
#[derive(clap::Args)]
pub struct Arguments {
    /// TARGET:/path of a file; with -s, what the link is to lead to, as it is to stand in it
    source: OsString,

    /// TARGET:/path: a directory to make the link in, or its name
    #[arg(value_name = "TARGET:/new")]
    destination: OsString,

    /// A symbolic link
    #[arg(short)]
    symbolic: bool,
}

/// Runs the command; gives its exit code.
pub fn run(arguments: Arguments) -> Result<u8, Error> {
    if arguments.symbolic {
        let path = VolumePath::parse(&arguments.destination)?;
        let volume = open(&path.target, Access::ReadWrite)?;
        let leads_to = arguments.source.as_bytes();
        let path = target_path(&volume, &path.in_same_volume(leads_to.to_vec()), &path);
        let made = volume.make_symlink(leads_to, &path.bytes);
        made.map_err(|error| with_path(&path, error))?;
        sync(&volume, &path.target)?;
    } else {
        let paths = VolumePath::parse_all(&[arguments.source, arguments.destination])?;
        let volume = open(&paths[0].target, Access::ReadWrite)?;
        let to = target_path(&volume, &paths[0], &paths[1]);
        let linked = volume.link(&paths[0].bytes, &to.bytes);
        linked.map_err(|error| with_both_paths(&paths[0], &to, error))?;
        sync(&volume, &paths[0].target)?;
    }
    Ok(0)
}
