//! `uringfs mv`: moves and renames files in a volume.

use super::destination::{CreatedFiles, Destination, PathArguments, with_both_paths};
use super::error_sink::ErrorSink;
use super::exit_codes::refused;
use super::files::Files;
use super::glob::Missing;
use super::open_volume::{lookup, open_at, sync};
use super::overwrite::{NameAction, OverwriteOptions};
use super::replace_options::ReplaceOptions;
use super::verbose::VerboseOptions;
use super::volume_path::{VolumePath, as_path};
use uringfs::device::Access;
use uringfs::volume::Rename;
use uringfs_lab::Error;

/// The arguments of the command.
#[derive(clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    paths: PathArguments,

    #[command(flatten)]
    overwrite: OverwriteOptions,

    #[command(flatten)]
    replace: ReplaceOptions,

    #[command(flatten)]
    verbose: VerboseOptions,
}

/// Returns the exit code.
pub fn run(arguments: Arguments) -> Result<u8, Error> {
    let Arguments { paths, overwrite, replace, verbose } = arguments;
    let glob = paths.glob;
    let (sources, destination) = paths.split()?;
    let sources = VolumePath::parse_each(&sources)?;
    for source in &sources {
        destination.path.require_volume_of(source, BETWEEN_VOLUMES)?;
    }
    let volume = open_at(&destination.path, Access::ReadWrite)?;
    let errors = ErrorSink::default();
    let sources = glob.expand_each(&volume, &sources, Missing::Refused, &errors);
    destination.check(&volume, sources.len())?;
    let mut mv = MoveJob {
        volume: &volume,
        destination,
        overwrite,
        replace,
        verbose,
        moved: CreatedFiles::default(),
    };
    for source in &sources {
        errors.record(mv.move_one(source));
    }
    sync(&volume, &mv.destination.path.target)?;
    Ok(errors.exit_code())
}

const BETWEEN_VOLUMES: &str = "copy with uringfs cp -a, and remove the original";

struct MoveJob<'v> {
    volume: &'v Files,
    destination: Destination,
    overwrite: OverwriteOptions,
    replace: ReplaceOptions,
    verbose: VerboseOptions,
    /// Files that got their new name already.
    moved: CreatedFiles,
}

impl MoveJob<'_> {
    fn move_one(&mut self, source: &VolumePath) -> Result<(), Error> {
        let volume = self.volume;
        let to = self.destination.target_path(volume, &source.bytes);
        let keeps_existing = self.overwrite.skips_existing();
        let found = [source, &to].map(|path| lookup(volume, &path.bytes));
        if let [Ok((moved, inode)), Ok((number, existing))] = &found {
            self.moved.check(&to, *number)?;
            let action = self.overwrite.action(existing.kind, inode.kind);
            match action.map_err(|why| refused(format!("{to}: {why}")))? {
                NameAction::Skip => return Ok(()),
                // Directories are not merged: the existing one would be replaced.
                NameAction::Merge if keeps_existing => return Ok(()),
                _ => {}
            }
            if moved == number {
                return Err(refused(format!("{source} and {to} are the same file")));
            }
            if self.replace.keeps(&to, existing, inode) {
                return Ok(());
            }
        }
        // Also keeps an existing file that could not be read above.
        let how = if keeps_existing { Rename::NoReplace } else { Rename::Replace };
        let moved = volume.rename_with(as_path(&source.bytes), as_path(&to.bytes), how);
        moved.map_err(|error| with_both_paths(source, &to, error))?;
        if let [Ok((moved, _)), _] = found {
            self.moved.insert(moved);
        }
        self.verbose.report("renamed", &[source, &to])
    }
}
