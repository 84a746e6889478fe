//! The names by which mkfs(8), fsck(8), mount(8) and umount(8) find the program. They are links to it.

use clap::{Command, CommandFactory, Parser};
use std::ffi::{OsStr, OsString};
use std::path::Path;

use crate::volume::{fsck, mount_helper};

/// The link for `uringfs mkfs`.
pub const MKFS: &str = "mkfs.uringfs";
/// The link for `uringfs check` with the options and exit codes of fsck.
pub const FSCK: &str = "fsck.uringfs";

/// The links for `uringfs mount`, for `mount -t uringfs` and for the type that mounted volumes have.
const MOUNT: [&str; 2] = ["mount.uringfs", "mount.fuse.uringfs"];
/// The link for `uringfs umount`: with it, umount(8) returns when the volume is closed.
const UMOUNT: &str = "umount.fuse.uringfs";

/// The request that a command line makes under the program's name.
pub enum Request {
    /// A command line of `uringfs`.
    Uringfs(Vec<OsString>),
    /// A command line of `mkfs.uringfs`.
    Mkfs(Vec<OsString>),
    /// A check with the options of fsck.
    Fsck(fsck::Arguments),
    /// A mount with the options of mount(8).
    Mount(mount_helper::MountArguments),
    /// The same for umount(8).
    Umount(mount_helper::UmountArguments),
}

impl Request {
    /// Reads the command line of the process.
    ///
    /// # Errors
    /// The options cannot be used, or ask for help, under a name other than `uringfs`.
    pub fn parse(arguments: Vec<OsString>) -> Result<Request, clap::Error> {
        let name = arguments.first().map(Path::new).and_then(Path::file_name);
        match name.and_then(OsStr::to_str) {
            Some(FSCK) => fsck::Arguments::try_parse_from(arguments).map(Request::Fsck),
            Some(name) if MOUNT.contains(&name) => {
                mount_helper::MountArguments::try_parse_from(arguments).map(Request::Mount)
            }
            Some(UMOUNT) => {
                mount_helper::UmountArguments::try_parse_from(arguments).map(Request::Umount)
            }
            Some(MKFS) => Ok(Request::Mkfs(arguments)),
            _ => Ok(Request::Uringfs(arguments)),
        }
    }
}

/// The definitions of the names for mount(8) and umount(8), for man pages.
pub fn mount_commands() -> [Command; 3] {
    let [short, long] = MOUNT.map(|name| named(mount_helper::MountArguments::command(), name));
    [short, long, named(mount_helper::UmountArguments::command(), UMOUNT)]
}

/// The definitions of the names that users type, for man pages and completions.
pub fn commands(uringfs: &Command) -> [Command; 2] {
    let mkfs = uringfs.find_subcommand("mkfs").expect("it is a command");
    [named(mkfs.clone(), MKFS), fsck::Arguments::command()]
}

fn named(command: Command, name: &'static str) -> Command {
    command.name(name).bin_name(name).display_name(name)
}
