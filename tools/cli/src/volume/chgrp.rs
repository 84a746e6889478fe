//! `uringfs chgrp`: changes the group of files in a volume.

use super::chown::{ChownOptions, Owner, OwnerId, change_all};
use super::size_options::long_help;
use uringfs_lab::Error;

/// The arguments of the command. As in coreutils, only `--help` prints help.
#[derive(clap::Args)]
#[command(disable_help_flag = true, arg = long_help())]
pub struct Arguments {
    /// A number, or the name of a group of this machine
    #[arg(value_parser = OwnerId::group)]
    group: OwnerId,

    #[command(flatten)]
    options: ChownOptions,
}

/// Returns the exit code.
pub fn run(arguments: Arguments) -> Result<u8, Error> {
    change_all(arguments.options, Owner { user: None, group: Some(arguments.group) })
}
