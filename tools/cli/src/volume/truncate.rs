//! `uringfs truncate`: files in a volume cut off, or made longer by a hole.

use super::{Place, close, glob, open};
use rustix::io::Errno;
use std::ffi::OsString;
use uringfs::{Access, OpenOptions, Reactor, ReactorOptions};
use uringfs_lab::Error;
use uringfs_lab::job::parse_size;

/// What the command takes.
#[derive(clap::Args)]
pub struct Arguments {
    /// How long they become, as in 4096 or 1G
    #[arg(short, long, value_parser = parse_size)]
    size: u64,

    /// Leave out what is not there instead of making it
    #[arg(short = 'c', long)]
    no_create: bool,

    /// TARGET:/path, with wildcards
    #[arg(required = true, value_name = "TARGET:/path")]
    paths: Vec<OsString>,
}

/// Runs the command; gives its exit code.
pub fn run(arguments: Arguments) -> Result<u8, Error> {
    let places = Place::parse_all(&arguments.paths)?;
    let volume = open(&places[0].target, Access::ReadWrite)?;
    let reactor = Reactor::new(ReactorOptions::default())
        .map_err(|error| Error::run("cannot begin").because(error))?;
    let create = (!arguments.no_create).then_some(0o644);
    for place in glob::expand_all(&volume, &places)? {
        let options = OpenOptions { create, ..OpenOptions::direct() };
        let file = match volume.open(&place.path, options) {
            Err(error) if arguments.no_create && error.errno() == Errno::NOENT => continue,
            opened => opened.map_err(|error| place.said(error))?,
        };
        let cut = reactor.block_on(file.set_size(arguments.size));
        cut.map_err(|errno| Error::run(format!("{place}: cannot be cut")).because(errno))?;
    }
    close(&volume, &places[0].target)?;
    Ok(0)
}
