//! `uringfs truncate`: shrinks files in a volume, or extends them by a hole.

use super::error_sink::ErrorSink;
use super::files::Files;
use super::glob::{GlobOptions, Missing};
use super::mode_change::new_file_mode;
use super::open_volume::{open_at, sync};
use super::size_change::SizeChange;
use super::verbose::{VerboseOptions, quoted};
use super::volume_path::{VolumePath, as_path, with_path};
use std::ffi::OsString;
use uringfs::device::Access;
use uringfs::{Errno, Reactor, ReactorOptions};
use uringfs_fuse::control::Opening;
use uringfs_lab::Error;

/// The arguments of the command.
#[derive(clap::Args)]
pub struct Arguments {
    /// New size, as in 4096 or 1G. K and KiB are 1024 bytes, KB is 1000; M, G and T likewise. A prefix changes the
    /// current size: + extend by, - reduce by, < at most, > at least, / round down to a multiple, % round up
    #[arg(short, long, value_parser = SizeChange::parse, allow_hyphen_values = true)]
    size: SizeChange,

    /// Do not create files that do not exist
    #[arg(short = 'c', long)]
    no_create: bool,

    /// TARGET:/path
    #[arg(required = true, value_name = "TARGET:/path")]
    paths: Vec<OsString>,

    #[command(flatten)]
    glob: GlobOptions,

    #[command(flatten)]
    verbose: VerboseOptions,
}

/// Returns the exit code.
pub fn run(arguments: Arguments) -> Result<u8, Error> {
    let paths = VolumePath::parse_all(&arguments.paths)?;
    let volume = open_at(&paths[0], Access::ReadWrite)?;
    let reactor = Reactor::new(ReactorOptions::default())
        .map_err(|error| Error::run("cannot start I/O").because(error))?;
    let errors = ErrorSink::default();
    for path in arguments.glob.expand_each(&volume, &paths, Missing::Created, &errors) {
        errors.record(set_size(&volume, &reactor, &path, &arguments));
    }
    sync(&volume, &paths[0].target)?;
    Ok(errors.exit_code())
}

fn set_size(
    volume: &Files,
    reactor: &Reactor,
    path: &VolumePath,
    arguments: &Arguments,
) -> Result<(), Error> {
    let opening = match arguments.no_create {
        true => Opening::Write,
        false => Opening::Create(new_file_mode().into()),
    };
    let file = match volume.open(as_path(&path.bytes), opening) {
        Err(error) if arguments.no_create && error.errno() == Errno::NOENT => return Ok(()),
        opened => opened.map_err(|error| with_path(path, error))?,
    };
    let too_long = || Error::input(format!("{path}: the new size is too large"));
    let size = arguments.size.apply(file.len()).ok_or_else(too_long)?;
    let cut = file.set_len(reactor, size);
    cut.map_err(|errno| Error::run(format!("{path}: cannot change the size")).because(errno))?;
    arguments.verbose.print(&[b"changed size of ", &quoted(path), format!(" to {size}").as_bytes()])
}
