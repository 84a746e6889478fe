//! `uringfs ln`: creates hard and symbolic links in a volume.

use super::destination::{CreatedFiles, Destination, PathArguments, is_same_name, with_both_paths};
use super::error_sink::ErrorSink;
use super::exit_codes::refused;
use super::files::Files;
use super::glob::Missing;
use super::open_volume::{lookup, open_at, sync};
use super::quoting;
use super::verbose::{VerboseOptions, quoted};
use super::volume_path::{VolumePath, as_path, join, parent, with_path};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use uringfs::device::Access;
use uringfs::volume::Rename;
use uringfs::{Errno, Error as VolumeError};
use uringfs_lab::Error;

/// The arguments of the command. With -s the sources are the targets of the links, stored as given.
#[derive(clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    paths: PathArguments,

    /// Create symbolic links; their targets are stored as given
    #[arg(short, long)]
    symbolic: bool,

    /// With -s: sources are paths in the volume, and the links lead there relative to their own directory. Links in
    /// the paths are not resolved
    #[arg(short, long, requires = "symbolic")]
    relative: bool,

    /// A destination that is a link to a directory is a name, not the directory
    #[arg(short, long)]
    no_dereference: bool,

    /// Replace existing files
    #[arg(short, long)]
    force: bool,

    #[command(flatten)]
    verbose: VerboseOptions,
}

/// Returns the exit code.
pub fn run(arguments: Arguments) -> Result<u8, Error> {
    let Arguments { paths, symbolic, relative, no_dereference, force, verbose } = arguments;
    let glob = paths.glob;
    let (sources, destination) = paths.split()?;
    let destination = match no_dereference {
        true => destination.without_following(),
        false => destination,
    };
    let errors = ErrorSink::default();
    let (volume, links): (Files, Vec<Link>) = match symbolic {
        true if !relative => {
            sources.iter().try_for_each(|text| check_link_text(text, &destination.path))?;
            let links = sources.into_iter().map(Link::Symbolic).collect();
            (open_at(&destination.path, Access::ReadWrite)?, links)
        }
        _ => {
            let paths = VolumePath::parse_each(&sources)?;
            for path in &paths {
                destination.path.require_volume_of(path, "a link cannot lead there")?;
            }
            let volume = open_at(&destination.path, Access::ReadWrite)?;
            // A symbolic link may lead to a name that does not exist.
            let missing = if relative { Missing::Created } else { Missing::Refused };
            let paths = glob.expand_each(&volume, &paths, missing, &errors);
            let kind = if relative { Link::Relative } else { Link::Hard };
            (volume, paths.into_iter().map(kind).collect())
        }
    };
    destination.check(&volume, links.len())?;
    let created = CreatedFiles::default();
    let mut job = LinkJob { volume: &volume, destination, force, verbose, created };
    for link in links {
        errors.record(job.create(&link));
    }
    sync(&volume, &job.destination.path.target)?;
    Ok(errors.exit_code())
}

/// Refuses the whole name of a file of the same volume as the text of a symbolic link: no path in a volume begins with
/// the volume's name.
fn check_link_text(text: &OsStr, destination: &VolumePath) -> Result<(), Error> {
    let Ok(path) = VolumePath::parse(text) else { return Ok(()) };
    if path.target == *text || destination.require_volume_of(&path, "").is_err() {
        return Ok(());
    }
    let inside = quoting::quoted(&path.bytes);
    let advice = format!("a link in a volume has a path in the volume: give {inside}, or use -r");
    Err(Error::input(format!("{path}: {advice}")))
}

/// A link to create.
enum Link {
    /// A name for an existing file.
    Hard(VolumePath),
    /// A symbolic link with this target.
    Symbolic(OsString),
    /// A symbolic link to this path, relative to the link's directory.
    Relative(VolumePath),
}

impl Link {
    fn create(&self, volume: &Files, path: &[u8]) -> Result<(), VolumeError> {
        match self {
            Link::Hard(source) => volume.hard_link(as_path(&source.bytes), as_path(path)),
            Link::Symbolic(target) => volume.symlink(as_path(target.as_bytes()), as_path(path)),
            Link::Relative(source) => {
                // At a temporary name in the same directory, too.
                volume.symlink(as_path(&relative_path(parent(path), &source.bytes)), as_path(path))
            }
        }
    }

    /// The error with the paths that it concerns.
    fn error(&self, to: &VolumePath, error: VolumeError) -> Error {
        match self {
            Link::Hard(source) => with_both_paths(source, to, error),
            Link::Symbolic(_) | Link::Relative(_) => with_path(to, error),
        }
    }
}

struct LinkJob<'v> {
    volume: &'v Files,
    destination: Destination,
    force: bool,
    verbose: VerboseOptions,
    created: CreatedFiles,
}

impl LinkJob<'_> {
    fn create(&mut self, link: &Link) -> Result<(), Error> {
        let source = match link {
            Link::Hard(path) | Link::Relative(path) => &path.bytes[..],
            Link::Symbolic(target) => target.as_bytes(),
        };
        let to = self.destination.target_path(self.volume, source);
        match link.create(self.volume, &to.bytes) {
            Err(error) if self.force && error.errno() == Errno::EXIST => self.replace(link, &to)?,
            created => created.map_err(|error| link.error(&to, error))?,
        }
        let created = lookup(self.volume, &to.bytes);
        self.created.insert(created.map_err(|error| with_path(&to, error))?.0);
        let (shown, to) = (quoted(&to), to.bytes);
        let symbolic = |target: &[u8]| {
            let target = quoting::quoted(target);
            self.verbose.print(&[&shown, b" -> ", target.as_bytes()])
        };
        match link {
            Link::Hard(path) => self.verbose.print(&[&shown, b" => ", &quoted(path)]),
            Link::Symbolic(target) => symbolic(target.as_bytes()),
            Link::Relative(source) => symbolic(&relative_path(parent(&to), &source.bytes)),
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

/// The path from a directory to a file, both absolute. Resolves `.` and `..` without looking at links.
fn relative_path(directory: &[u8], file: &[u8]) -> Vec<u8> {
    let (directory, file) = (names(directory), names(file));
    let shared = directory.iter().zip(&file).take_while(|(one, other)| one == other).count();
    let up = std::iter::repeat_n(&b".."[..], directory.len() - shared);
    let path = up.chain(file[shared..].iter().copied()).collect::<Vec<_>>().join(&b'/');
    if path.is_empty() { b".".to_vec() } else { path }
}

fn names(path: &[u8]) -> Vec<&[u8]> {
    let mut names = Vec::new();
    for name in path.split(|byte| *byte == b'/') {
        match name {
            b"" | b"." => {}
            b".." => _ = names.pop(),
            name => names.push(name),
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relative_paths_lead_from_the_directory_to_the_file() {
        let is = |directory: &str, file: &str, path: &str| {
            let found = relative_path(directory.as_bytes(), file.as_bytes());
            assert_eq!(found, path.as_bytes(), "{directory} {file}");
        };
        is("/", "/a", "a");
        is("/d/", "/a", "../a");
        is("/d/e/", "/d/f/a", "../f/a");
        is("/d/", "/d/a", "a");
        is("/d/", "/d", ".");
        is("/d/e/", "/", "../..");
        is("/d/../e/", "/./e/a", "a");
    }
}
