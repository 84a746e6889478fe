//! `uringfs put`: copies files and trees of the host into a volume.

use crate::output::print;
use crate::volume::copy_progress::CopyProgress;
use crate::volume::hard_links::HardLinks;
use crate::volume::image::ImageFiles;
use crate::volume::open_volume::{is_directory, open, sync};
use crate::volume::overwrite::OverwriteOptions;
use crate::volume::pipeline::Pipeline;
use crate::volume::volume_path::{VolumePath, join};
use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use uringfs::Volume;
use uringfs::device::Access;
use uringfs_lab::Error;

use super::job::{PutErrors, PutJob};

/// The arguments of the command.
#[derive(clap::Args)]
pub struct Arguments {
    /// Files and directories; - reads standard input
    #[arg(required = true, value_name = "SRC")]
    sources: Vec<OsString>,

    /// TARGET:/path of a directory to copy into, or of the new file or directory
    #[arg(value_name = "TARGET:/path")]
    destination: OsString,

    #[command(flatten)]
    overwrite: OverwriteOptions,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Returns the exit code.
pub fn run(arguments: Arguments) -> Result<u8, Error> {
    let path = VolumePath::parse(&arguments.destination)?;
    let volume = open(&path.target, Access::ReadWrite)?;
    let targets = targets(&volume, &arguments.sources, &path)?;
    let mut put = PutJob {
        volume: &volume,
        destination: &path,
        image: ImageFiles::of_volume(&path.target)?,
        overwrite: arguments.overwrite,
        staging: Vec::new(),
        pipeline: Pipeline::new()?,
        progress: CopyProgress::start()?,
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
    let PutJob { progress, errors, .. } = put;
    let synced = sync(&volume, &path.target);
    let done = done.and(cleaned_up).and(synced);
    let code = errors.finish(done.is_ok() && progress.counts.is_empty());
    done?;
    let code = code?;
    print(&progress.report(arguments.json))?;
    Ok(code)
}

/// The path in the volume for each source: a name in the destination if that is a directory, else the destination.
fn targets(
    volume: &Volume,
    sources: &[OsString],
    destination: &VolumePath,
) -> Result<Vec<Vec<u8>>, Error> {
    if !is_directory(volume, &destination.bytes) {
        if sources.len() > 1 || destination.bytes.ends_with(b"/") {
            let what = format!("{destination}: is not a directory; create it with uringfs mkdir");
            return Err(Error::input(what));
        }
        return Ok(vec![destination.bytes.clone()]);
    }
    let name = |source: &OsString| {
        if source == "-" {
            let what =
                format!("{destination}: is a directory; give a file name for standard input");
            return Err(Error::input(what));
        }
        let path = Path::new(source);
        let named = path.file_name().map(ToOwned::to_owned).or_else(|| {
            let whole = path.canonicalize().ok()?;
            Some(whole.file_name()?.to_owned())
        });
        match named {
            Some(name) => Ok(join(&destination.bytes, name.as_bytes())),
            None => {
                let what = "cannot derive a name; give the destination name";
                Err(Error::input(format!("{}: {what}", path.display())))
            }
        }
    };
    sources.iter().map(name).collect()
}
