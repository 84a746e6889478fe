//! `uringfs umount`: unmounts a volume, and returns when it is closed.

use super::exit_codes::{not_found, with_io_code};
use super::mounts::{mounted_from, server_of, volume_on};
use super::quoting::for_message;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
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
    let shown = for_message(given);
    let failed = |error: io::Error| with_io_code(Error::run(format!("{shown}: {error}")), &error);
    let path = given.canonicalize().map_err(failed)?;
    let found = volume_on(&path).map_err(failed)?.or_else(|| mounted_from(&path));
    let Some(mounted) = found else {
        return Err(not_found(format!("{shown}: no volume is mounted there")));
    };
    let server = server_of(&mounted.directory).and_then(open_process);
    let directory = for_message(&mounted.directory);
    unmount(&mounted.directory, lazy).map_err(|error| match error.kind() {
        io::ErrorKind::ResourceBusy => Error::in_use(format!(
            "{directory}: programs use files or directories there (fuser -vm {directory} lists them); end them, or \
             use umount -l, which frees the directory at once"
        )),
        _ => failed(error),
    })?;
    if !lazy {
        wait_until_closed(server, &mounted.source).map_err(failed)?;
    }
    Ok(0)
}

fn open_process(process: u32) -> Option<OwnedFd> {
    let process = Pid::from_raw(process.try_into().ok()?)?;
    pidfd_open(process, PidfdFlags::empty()).ok()
}

/// Waits until the process that served the volume has let it go: until it has ended, as the file of the volume may have
/// another name by now, and its lock is free.
fn wait_until_closed(server: Option<OwnedFd>, source: &Path) -> io::Result<()> {
    if let Some(server) = server {
        poll(&mut [PollFd::new(&server, PollFlags::IN)], None)?;
    }
    match File::open(source) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        file => file?.lock(),
    }
}
