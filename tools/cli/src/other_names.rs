//! The names `mkfs.uringfs` and `fsck.uringfs`, by which mkfs(8) and fsck(8) find the program. They are links to it.

use clap::{Command, CommandFactory, Parser};
use std::ffi::{OsStr, OsString};
use std::path::Path;

use crate::volume::fsck;

/// The link for `uringfs mkfs`.
pub const MKFS: &str = "mkfs.uringfs";
/// The link for `uringfs check` with the options and exit codes of fsck.
pub const FSCK: &str = "fsck.uringfs";

/// What the program's name asks for.
pub enum Request {
    /// A command line of `uringfs`.
    Uringfs(Vec<OsString>),
    /// A check with the options of fsck.
    Fsck(fsck::Arguments),
}

impl Request {
    /// Reads the command line of the process.
    ///
    /// # Errors
    /// The options cannot be used, or ask for help, under a name other than `uringfs`.
    pub fn parse(mut arguments: Vec<OsString>) -> Result<Request, clap::Error> {
        let name = arguments.first().map(Path::new).and_then(Path::file_name);
        match name.and_then(OsStr::to_str) {
            Some(FSCK) => fsck::Arguments::try_parse_from(arguments).map(Request::Fsck),
            Some(MKFS) => {
                arguments.splice(..1, ["uringfs".into(), "mkfs".into()]);
                Ok(Request::Uringfs(arguments))
            }
            _ => Ok(Request::Uringfs(arguments)),
        }
    }
}

/// The definitions of both names, for man pages.
pub fn commands(uringfs: &Command) -> [Command; 2] {
    let mkfs = uringfs.find_subcommand("mkfs").expect("it is a command");
    [mkfs.clone().name(MKFS).bin_name(MKFS).display_name(MKFS), fsck::Arguments::command()]
}
