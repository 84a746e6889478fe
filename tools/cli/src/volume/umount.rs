//! `uringfs umount`: unmounts a volume, and returns when it is closed.

use super::exit_codes::{not_found, with_io_code};
use super::mounts::{Mounted, mounted_volumes};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use uringfs_fuse::unmount;
use uringfs_lab::Error;

/// The arguments of the command.
#[derive(clap::Args)]
pub struct Arguments {
    /// The directory that a volume is mounted on, or the file or block device of the volume
    #[arg(value_name = "DIRECTORY|TARGET")]
    mounted: PathBuf,

    /// Free the directory at once. Programs that use the mount keep it until they end
    #[arg(short, long)]
    lazy: bool,
}

/// Returns the exit code.
pub fn run(arguments: Arguments) -> Result<u8, Error> {
    unmount_and_wait(&arguments.mounted, arguments.lazy)
}

/// Unmounts what is mounted on a directory, or from a target. Unless `lazy`, returns when the volume is closed.
pub(super) fn unmount_and_wait(given: &Path, lazy: bool) -> Result<u8, Error> {
    let shown = given.display();
    let failed = |error: io::Error| with_io_code(Error::run(format!("{shown}: {error}")), &error);
    let path = given.canonicalize().map_err(failed)?;
    let is_meant = |mounted: &Mounted| mounted.directory == path || mounted.source == path;
    let Some(mounted) = mounted_volumes().map_err(failed)?.into_iter().find(is_meant) else {
        return Err(not_found(format!("{shown}: no volume is mounted there")));
    };
    let directory = mounted.directory.display();
    unmount(&mounted.directory, lazy).map_err(|error| match error.kind() {
        io::ErrorKind::ResourceBusy => Error::in_use(format!(
            "{directory}: programs use files or directories there (fuser -vm {directory} lists them); end them, or \
             use umount -l, which frees the directory at once"
        )),
        _ => failed(error),
    })?;
    if !lazy {
        wait_until_closed(&mounted.source).map_err(failed)?;
    }
    Ok(0)
}

/// Waits until the process that served the volume has let it go: until its lock is free.
fn wait_until_closed(source: &Path) -> io::Result<()> {
    File::open(source)?.lock()
}
