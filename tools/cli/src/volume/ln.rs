//! `uringfs ln`: creates hard and symbolic links in a volume.

use super::destination::{CreatedFiles, Destination, PathArguments, is_same_name, with_both_paths};
use super::error_sink::ErrorSink;
use super::exit_codes::refused;
use super::glob::Missing;
use super::open_volume::{lookup, open, sync};
use super::quoting;
use super::verbose::{VerboseOptions, quoted};
use super::volume_path::{VolumePath, as_path, join, parent, with_path};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use uringfs::device::Access;
use uringfs::volume::Rename;
use uringfs::{Errno, Error as VolumeError, Volume};
use uringfs_lab::Error;

/// The arguments of the command. With -s the sources are the targets of the links, stored as given.
#[derive(clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    paths: PathArguments,

    /// Create symbolic links; their targets are stored as given
    #[arg(short, long)]
    symbolic: bool,

    /// Replace existing files
    #[arg(short, long)]
    force: bool,

    #[command(flatten)]
    verbose: VerboseOptions,
}

/// Returns the exit code.
pub fn run(arguments: Arguments) -> Result<u8, Error> {
    let Arguments { paths, symbolic, force, verbose } = arguments;
    let glob = paths.glob;
    let (sources, destination) = paths.split()?;
    let target = destination.path.target.clone();
    let errors = ErrorSink::default();
    let (volume, links): (Volume, Vec<Link>) = match symbolic {
        true => {
            let links = sources.into_iter().map(Link::Symbolic).collect();
            (open(&target, Access::ReadWrite)?, links)
        }
        false => {
            let paths = VolumePath::parse_each(&sources)?;
            for path in &paths {
                destination.path.require_volume_of(path, "a hard link cannot lead there")?;
            }
            let volume = open(&target, Access::ReadWrite)?;
            let paths = glob.expand_each(&volume, &paths, Missing::Refused, &errors);
            (volume, paths.into_iter().map(Link::Hard).collect())
        }
    };
    destination.check(&volume, links.len())?;
    let created = CreatedFiles::default();
    let mut job = LinkJob { volume: &volume, destination, force, verbose, created };
    for link in links {
        errors.record(job.create(&link));
    }
    sync(&volume, &target)?;
    Ok(errors.exit_code())
}

/// A link to create.
enum Link {
    /// A name for an existing file.
    Hard(VolumePath),
    /// A symbolic link with this target.
    Symbolic(OsString),
}

impl Link {
    fn create(&self, volume: &Volume, path: &[u8]) -> Result<(), VolumeError> {
        match self {
            Link::Hard(source) => volume.hard_link(as_path(&source.bytes), as_path(path)),
            Link::Symbolic(target) => volume.symlink(as_path(target.as_bytes()), as_path(path)),
        }
    }

    /// The error with the paths that it concerns.
    fn error(&self, to: &VolumePath, error: VolumeError) -> Error {
        match self {
            Link::Hard(source) => with_both_paths(source, to, error),
            Link::Symbolic(_) => with_path(to, error),
        }
    }
}

struct LinkJob<'v> {
    volume: &'v Volume,
    destination: Destination,
    force: bool,
    verbose: VerboseOptions,
    created: CreatedFiles,
}

impl LinkJob<'_> {
    fn create(&mut self, link: &Link) -> Result<(), Error> {
        let source = match link {
            Link::Hard(path) => &path.bytes[..],
            Link::Symbolic(target) => target.as_bytes(),
        };
        let to = self.destination.target_path(self.volume, source);
        match link.create(self.volume, &to.bytes) {
            Err(error) if self.force && error.errno() == Errno::EXIST => self.replace(link, &to)?,
            created => created.map_err(|error| link.error(&to, error))?,
        }
        let created = lookup(self.volume, &to.bytes);
        self.created.insert(created.map_err(|error| with_path(&to, error))?.0);
        let to = quoted(&to);
        match link {
            Link::Hard(path) => self.verbose.print(&[&to, b" => ", &quoted(path)]),
            Link::Symbolic(target) => {
                let target = quoting::quoted(target.as_bytes());
                self.verbose.print(&[&to, b" -> ", target.as_bytes()])
            }
        }
    }

    /// Replaces an existing file in one step: creates the link under a temporary name and renames it.
    fn replace(&self, link: &Link, to: &VolumePath) -> Result<(), Error> {
        let (volume, error) = (self.volume, |error| link.error(to, error));
        let number = |path: &[u8]| lookup(volume, path).map(|(number, _)| number);
        let existing = number(&to.bytes).map_err(error)?;
        self.created.check(to, existing)?;
        if let Link::Hard(source) = link
            && number(&source.bytes).map_err(error)? == existing
        {
            return match is_same_name(volume, &source.bytes, &to.bytes) {
                true => Err(refused(format!("{source} and {to} are the same file"))),
                // It is this link already.
                false => Ok(()),
            };
        }
        let name = format!(".uringfs-ln-{}", std::process::id());
        let temporary = join(parent(&to.bytes), name.as_bytes());
        link.create(volume, &temporary).map_err(error)?;
        volume.rename_with(as_path(&temporary), as_path(&to.bytes), Rename::Replace).map_err(
            |failed| {
                // The cause of a failure here is the error that is reported.
                let _ = volume.remove_file(as_path(&temporary));
                error(failed)
            },
        )
    }
}
