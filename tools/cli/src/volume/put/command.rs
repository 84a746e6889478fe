//! `uringfs put`: copies files and trees of the host into a volume.

use crate::volume::archive_options::archive_options;
use crate::volume::copy_progress::CopyProgress;
use crate::volume::exclude::ExcludeOptions;
use crate::volume::exit_codes::{NO_SPACE, refused};
use crate::volume::files::Files;
use crate::volume::hard_links::HardLinks;
use crate::volume::image::ImageFiles;
use crate::volume::open_volume::{is_directory, open_at, sync};
use crate::volume::overwrite::OverwriteOptions;
use crate::volume::pipeline::Pipeline;
use crate::volume::quiet::QuietOptions;
use crate::volume::total_bytes;
use crate::volume::verbose::VerboseOptions;
use crate::volume::volume_path::{VolumePath, join};
use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use uringfs::device::Access;
use uringfs_lab::Error;

use super::job::{PutErrors, PutJob};
use super::tree::names_contents;

/// The arguments of the command.
#[derive(clap::Args)]
#[command(args = archive_options())]
pub struct Arguments {
    /// Files and directories; - reads standard input
    #[arg(required = true, value_name = "SRC")]
    sources: Vec<OsString>,

    /// TARGET:/path of a directory to copy into, or of the new file or directory
    #[arg(value_name = "TARGET:/path")]
    destination: OsString,

    #[command(flatten)]
    overwrite: OverwriteOptions,

    #[command(flatten)]
    exclude: ExcludeOptions,

    #[command(flatten)]
    verbose: VerboseOptions,

    #[command(flatten)]
    quiet: QuietOptions,

    /// Print JSON
    #[arg(long, conflicts_with_all = ["verbose", "quiet"])]
    json: bool,
}

/// Returns the exit code.
pub fn run(arguments: Arguments) -> Result<u8, Error> {
    let path = VolumePath::parse(&arguments.destination)?;
    let volume = open_at(&path, Access::ReadWrite)?;
    let targets = targets(&volume, &arguments.sources, &path)?;
    let mut put = PutJob {
        volume: &volume,
        destination: &path,
        image: ImageFiles::of_volume(&path.target)?,
        overwrite: arguments.overwrite,
        exclude: arguments.exclude,
        verbose: arguments.verbose,
        staging: Vec::new(),
        pipeline: Pipeline::new()?,
        progress: CopyProgress::start(arguments.quiet, || {
            total_bytes::of_host(&arguments.sources)
        })?,
        files: HashMap::new(),
        next: 0,
        created: HashSet::new(),
        links: HardLinks::new(),
        directories: Vec::new(),
        errors: PutErrors::default(),
    };
    let done = put.run(&arguments.sources, targets);
    // In any case, so that no partial file stays.
    let cleaned_up = put.clean_up();
    let PutJob { progress, errors, exclude, .. } = put;
    let synced = sync(&volume, &path.target);
    let done = done.and(cleaned_up).and(synced);
    let code = errors.finish(done.is_ok() && progress.counts.is_empty());
    done.map_err(|error| match error.exit_code() {
        NO_SPACE => {
            let files = || total_bytes::files_of_host(&arguments.sources, &exclude);
            progress.counts.with_files_left(error, files)
        }
        _ => error.when_interrupted(STOPPED),
    })?;
    let code = code?;
    progress.print_report(arguments.quiet, arguments.json, code)?;
    Ok(code)
}

/// The state after Ctrl-C.
const STOPPED: &str = "the files copied so far stay, and no file is incomplete";

/// The path in the volume for each source: a name in the destination if that is a directory, else the destination. As
/// in `cp -r`, the contents of `dir/.` go into the destination itself.
fn targets(
    volume: &Files,
    sources: &[OsString],
    destination: &VolumePath,
) -> Result<Vec<Vec<u8>>, Error> {
    if !is_directory(volume, &destination.bytes) {
        let is_new_directory = |source: &OsString| Path::new(source).is_dir();
        let needs_directory = destination.bytes.ends_with(b"/");
        if sources.len() > 1 || needs_directory && !sources.iter().all(is_new_directory) {
            let what = format!("{destination}: is not a directory; create it with uringfs mkdir");
            return Err(refused(what));
        }
        return Ok(vec![destination.bytes.clone()]);
    }
    let name = |source: &OsString| {
        if source == "-" {
            let what =
                format!("{destination}: is a directory; give a file name for standard input");
            return Err(Error::input(what));
        }
        Ok(match Path::new(source).file_name() {
            Some(name) if !names_contents(source) => join(&destination.bytes, name.as_bytes()),
            _ => destination.bytes.clone(),
        })
    };
    sources.iter().map(name).collect()
}
