//! `uringfs cp`: copies files and trees inside a volume, or from one volume to another. A new file appears under its
//! name when it is complete, and an existing one is replaced then; holes stay holes.

use super::copy_progress::CopyProgress;
use super::cp_tree::{AttributeOptions, CopyJob};
use super::destination::{CreatedFiles, Destination, PathArguments};
use super::error_sink::ErrorSink;
use super::exclude::ExcludeOptions;
use super::exit_codes::NO_SPACE;
use super::file_data::FileData;
use super::files::Files;
use super::glob::Missing;
use super::hard_links::HardLinks;
use super::mode_change::umask;
use super::open_volume::{open_at, sync};
use super::overwrite::OverwriteOptions;
use super::put_staging::{make_staging_directory, remove_staging_directory};
use super::quiet::QuietOptions;
use super::replace_options::ReplaceOptions;
use super::total_bytes;
use super::verbose::VerboseOptions;
use super::volume_path::{VolumePath, is_same_target, with_path};
use uringfs::device::Access;
use uringfs_lab::Error;

/// The arguments of the command.
#[derive(clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    paths: PathArguments,

    #[command(flatten)]
    attributes: AttributeOptions,

    #[command(flatten)]
    overwrite: OverwriteOptions,

    #[command(flatten)]
    replace: ReplaceOptions,

    #[command(flatten)]
    exclude: ExcludeOptions,

    #[command(flatten)]
    verbose: VerboseOptions,

    #[command(flatten)]
    quiet: QuietOptions,
}

/// Returns the exit code.
pub fn run(arguments: Arguments) -> Result<u8, Error> {
    let glob = arguments.paths.glob;
    let (sources, destination) = arguments.paths.split()?;
    let sources = VolumePath::parse_all(&sources)?;
    let (from, to) = (sources[0].target.clone(), destination.path.target.clone());
    let volume = open_at(&destination.path, Access::ReadWrite)?;
    let other = match is_same_target(&from, &to) {
        true => None,
        false => Some(open_at(&sources[0], Access::Read)?),
    };
    let errors = ErrorSink::default();
    let source = other.as_ref().unwrap_or(&volume);
    let sources = glob.expand_each(source, &sources, Missing::Refused, &errors);
    destination.check(&volume, sources.len())?;
    let mut job = CopyJob {
        source,
        volume: &volume,
        is_one_volume: other.is_none(),
        attributes: arguments.attributes,
        overwrite: arguments.overwrite,
        replace: arguments.replace,
        exclude: arguments.exclude,
        verbose: arguments.verbose,
        umask: umask(),
        staging: Vec::new(),
        next: 0,
        data: FileData::new()?,
        progress: CopyProgress::start(arguments.quiet, || {
            total_bytes::of_volume(source, &sources)
        })?,
        created: CreatedFiles::default(),
        links: HardLinks::new(),
        directories: Vec::new(),
        errors: &errors,
    };
    let done = copy_all(&volume, &mut job, &destination, &sources);
    // In any case, so that no partial file stays.
    let cleaned_up = match job.staging.is_empty() {
        true => Ok(()),
        false => remove_staging_directory(&volume, &job.staging)
            .map_err(|error| with_path(&destination.path, error)),
    };
    job.progress.finish();
    let synced = sync(&volume, &to);
    let stopped = "the files copied so far stay, and no file is incomplete";
    let done = done.map_err(|error| match error.exit_code() {
        NO_SPACE => {
            let files = || total_bytes::files_of_volume(source, &sources, &job.exclude);
            job.progress.counts.with_files_left(error, files)
        }
        _ => error.when_interrupted(stopped),
    });
    done.and(cleaned_up).and(synced)?;
    Ok(errors.exit_code())
}

fn copy_all(
    volume: &Files,
    job: &mut CopyJob<'_>,
    destination: &Destination,
    sources: &[VolumePath],
) -> Result<(), Error> {
    let staging = make_staging_directory(volume);
    job.staging = staging.map_err(|error| with_path(&destination.path, error))?;
    for source in sources {
        let target = match source.bytes.ends_with(b"/.") {
            // The contents of the source go into the destination itself.
            true => destination.path.clone(),
            false => destination.target_path(volume, &source.bytes),
        };
        job.copy_tree(source, target)?;
    }
    job.finish_directories();
    Ok(())
}
