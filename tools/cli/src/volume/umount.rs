//! `uringfs umount`: unmounts a volume, and returns when it is closed.

use super::exit_codes::{not_found, with_io_code};
use super::mounts::{mounted_from, server_of, user_in_another_namespace, volume_on};
use super::quoting::for_message;
use super::target::is_uri;
use crate::output::print_error;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::fmt::Display;
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
    let found = match is_uri(given) {
        true => mounted_from(given),
        false => {
            let path = given.canonicalize().map_err(failed)?;
            volume_on(&path).map_err(failed)?.or_else(|| mounted_from(&path))
        }
    };
    let Some(mounted) = found else {
        return Err(not_found(format!("{shown}: no volume is mounted there")));
    };
    let server = server_of(&mounted.directory).and_then(Server::open);
    let directory = for_message(&mounted.directory);
    unmount(&mounted.directory, lazy).map_err(|error| match error.kind() {
        io::ErrorKind::ResourceBusy => Error::in_use(format!(
            "{directory}: programs use files or directories there (fuser -vm {directory} lists them); end them, or \
             use umount -l, which frees the directory at once"
        )),
        _ => failed(error),
    })?;
    if lazy {
        return Ok(0);
    }
    // The file of the volume may have another name by now, so its lock is not enough.
    if let Some(server) = server
        && let Some(user) = server.wait_until_ended(&directory).map_err(failed)?
    {
        return Err(Error::in_use(format!(
            "{directory}: unmounted, but process {user} has it mounted in a mount namespace of its own; the volume is \
             closed when that ends"
        )));
    }
    // The lock on an export ends with its process.
    if is_uri(&mounted.source) {
        return Ok(0);
    }
    match File::open(&mounted.source) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        file => file.and_then(|file| file.lock()).map_err(failed),
    }?;
    Ok(0)
}

/// The longest wait without a word.
const QUIET: Timespec = Timespec { tv_sec: 0, tv_nsec: 500_000_000 };

/// The process that serves a mount.
struct Server {
    number: u32,
    process: OwnedFd,
}

impl Server {
    fn open(number: u32) -> Option<Server> {
        let process = pidfd_open(Pid::from_raw(number.try_into().ok()?)?, PidfdFlags::empty());
        Some(Server { number, process: process.ok()? })
    }

    /// Waits until it has ended, or returns the process that keeps it from that.
    fn wait_until_ended(&self, directory: &impl Display) -> io::Result<Option<u32>> {
        let ended = &mut [PollFd::new(&self.process, PollFlags::IN)];
        if poll(ended, Some(&QUIET))? > 0 {
            return Ok(None);
        }
        print_error(&format!("{directory}: waiting until process {} has saved it", self.number));
        loop {
            if let Some(user) = user_in_another_namespace(self.number) {
                return Ok(Some(user));
            }
            if poll(ended, Some(&QUIET))? > 0 {
                return Ok(None);
            }
        }
    }
}
