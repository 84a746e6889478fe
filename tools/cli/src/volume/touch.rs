//! `uringfs touch`: changes the times of files in a volume, and creates those that do not exist.

use super::error_sink::ErrorSink;
use super::files::Files;
use super::glob::{GlobOptions, Missing};
use super::mode_change::new_file_mode;
use super::open_volume::{lookup_with, open_at, sync};
use super::size_options::long_help;
use super::times::{parse_date, parse_stamp};
use super::verbose::VerboseOptions;
use super::volume_path::{VolumePath, as_path, with_path};
use std::ffi::OsString;
use uringfs::device::Access;
use uringfs::volume::{Follow, Time};
use uringfs::{Errno, Error as VolumeError};
use uringfs_fuse::control::Opening;
use uringfs_lab::Error;

/// The arguments of the command.
#[derive(clap::Args)]
#[command(disable_help_flag = true, arg = long_help())]
pub struct Arguments {
    /// TARGET:/path
    #[arg(required = true, value_name = "TARGET:/path")]
    paths: Vec<OsString>,

    #[command(flatten)]
    glob: GlobOptions,

    /// Do not create files that do not exist
    #[arg(short = 'c', long)]
    no_create: bool,

    /// Change only the access time
    #[arg(short = 'a')]
    access: bool,

    /// Change only the modification time
    #[arg(short = 'm')]
    modification: bool,

    /// This time instead of now: 2026-11-22, '2026-11-22 07:40:05', with Z or +01:00 at the end for a time zone,
    /// @SECONDS since 1970, yesterday, or '3 days ago'
    #[arg(short, long, value_parser = parse_date, conflicts_with = "reference", allow_hyphen_values = true)]
    date: Option<Time>,

    /// This time instead of now, as MMDDhhmm, YYMMDDhhmm or CCYYMMDDhhmm, and .ss for seconds
    #[arg(short = 't', value_name = "STAMP", value_parser = parse_stamp, conflicts_with_all = ["reference", "date"])]
    stamp: Option<Time>,

    /// The times of this file instead of now
    #[arg(short, long, value_name = "TARGET:/path")]
    reference: Option<OsString>,

    /// Change the times of a symbolic link, not of the file it leads to; creates no file
    #[arg(short = 'h', long)]
    no_dereference: bool,

    #[command(flatten)]
    verbose: VerboseOptions,
}

/// The access time and the modification time to set.
#[derive(Clone, Copy)]
struct Times {
    accessed: Option<Time>,
    modified: Option<Time>,
}

/// Returns the exit code.
pub fn run(arguments: Arguments) -> Result<u8, Error> {
    let paths = VolumePath::parse_all(&arguments.paths)?;
    let reference = match &arguments.reference {
        Some(path) => {
            let path = VolumePath::parse(path)?;
            path.require_volume_of(&paths[0], "name paths of one volume")?;
            Some(path)
        }
        None => None,
    };
    let volume = open_at(&paths[0], Access::ReadWrite)?;
    let times = times(&volume, &arguments, reference.as_ref())?;
    let errors = ErrorSink::default();
    for path in arguments.glob.expand_each(&volume, &paths, Missing::Created, &errors) {
        errors.record(touch(&volume, &path, times, &arguments));
    }
    sync(&volume, &paths[0].target)?;
    Ok(errors.exit_code())
}

fn times(
    volume: &Files,
    arguments: &Arguments,
    reference: Option<&VolumePath>,
) -> Result<Times, Error> {
    let [accessed, modified] = match (reference, arguments.date) {
        (Some(path), _) => {
            let found = lookup_with(volume, &path.bytes, Follow::Yes);
            let (_, inode) = found.map_err(|error| with_path(path, error))?;
            [inode.accessed, inode.modified]
        }
        (None, date) => [date.or(arguments.stamp).unwrap_or_else(Time::now); 2],
    };
    // Without either option, both times change.
    let is_chosen = |option| option || !(arguments.access || arguments.modification);
    Ok(Times {
        accessed: is_chosen(arguments.access).then_some(accessed),
        modified: is_chosen(arguments.modification).then_some(modified),
    })
}

fn touch(
    volume: &Files,
    path: &VolumePath,
    times: Times,
    arguments: &Arguments,
) -> Result<(), Error> {
    let follow = if arguments.no_dereference { Follow::No } else { Follow::Yes };
    let set = || {
        volume.set_attributes(as_path(&path.bytes), follow, |inode| {
            inode.accessed = times.accessed.unwrap_or(inode.accessed);
            inode.modified = times.modified.unwrap_or(inode.modified);
        })
    };
    let create = || {
        let opening = Opening::Create(new_file_mode().into());
        let opened = volume.open(as_path(&path.bytes), opening);
        opened.map(drop).and_then(|()| set())
    };
    let is_missing = |error: &VolumeError| error.errno() == Errno::NOENT;
    let (done, what) = match set() {
        Err(error) if is_missing(&error) && arguments.no_create => return Ok(()),
        Err(error) if is_missing(&error) && !arguments.no_dereference => (create(), "created"),
        done => (done, "changed times of"),
    };
    done.map_err(|error| with_path(path, error))?;
    arguments.verbose.report(what, &[path])
}
