//! `mount.uringfs` and `umount.fuse.uringfs`: the commands that mount(8) and umount(8) run, also for lines of
//! /etc/fstab. The options are those that they pass to every such program.

use super::{mount, umount};
use crate::suggestions::Suggestions;
use std::ffi::OsString;
use std::path::PathBuf;
use uringfs_lab::Error;

/// Mount a volume for mount(8)
#[derive(clap::Parser)]
#[command(version)]
pub struct MountArguments {
    /// The file or block device with the volume
    target: OsString,

    /// The directory to mount it on
    directory: PathBuf,

    /// Options, as those of `uringfs mount`
    #[arg(short = 'o', value_name = "OPTION,...", value_delimiter = ',')]
    #[arg(value_parser = Suggestions::new(mount::OPTIONS), hide_possible_values = true)]
    options: Vec<String>,

    /// The type of the file system
    #[arg(short = 't', value_name = "TYPE")]
    _kind: Option<String>,

    /// Do everything but the mount
    #[arg(short = 'f')]
    fake: bool,

    /// Say more; ignored
    #[arg(short = 'v', action = clap::ArgAction::Count)]
    _verbose: u8,

    /// Ignore unknown options; they are refused all the same
    #[arg(short = 's')]
    _sloppy: bool,

    /// Leave /etc/mtab alone, as always
    #[arg(short = 'n')]
    _no_mtab: bool,
}

/// Unmount a volume for umount(8), and return when it is closed
#[derive(clap::Parser)]
#[command(version)]
pub struct UmountArguments {
    /// The directory
    directory: PathBuf,

    /// Free the directory at once
    #[arg(short = 'l')]
    lazy: bool,

    /// The type of the file system
    #[arg(short = 't', value_name = "TYPE")]
    _kind: Option<String>,

    /// Force; without effect
    #[arg(short = 'f')]
    _force: bool,

    /// Say more; ignored
    #[arg(short = 'v', action = clap::ArgAction::Count)]
    _verbose: u8,

    /// Leave /etc/mtab alone, as always
    #[arg(short = 'n')]
    _no_mtab: bool,

    /// Mount again for reading if it is in use; without effect
    #[arg(short = 'r')]
    _read_only: bool,
}

/// Returns the exit code.
pub fn run_mount(arguments: MountArguments) -> Result<u8, Error> {
    if arguments.fake {
        return Ok(0);
    }
    let MountArguments { target, directory, options, .. } = arguments;
    mount::run(mount::Arguments::new(target, directory, options))
}

/// Returns the exit code.
pub fn run_umount(arguments: &UmountArguments) -> Result<u8, Error> {
    umount::unmount_and_wait(&arguments.directory, arguments.lazy)
}
