//! The sources and the destination of `mv`, `ln` and `cp`, as in coreutils: the destination is the last path or that
//! of `-t`.

use super::exit_codes::refused;
use super::files::Files;
use super::glob::GlobOptions;
use super::open_volume::lookup_with;
use super::quoting::for_message;
use super::volume_path::{VolumePath, join, last_name, parent, with_path};
use std::collections::HashSet;
use std::ffi::OsString;
use uringfs::Error as VolumeError;
use uringfs::volume::{FileType, Follow, InodeNumber};
use uringfs_lab::Error;

/// The paths of the command line.
#[derive(clap::Args)]
pub struct PathArguments {
    /// The sources, and last the destination: a new name, or a directory for the sources
    #[arg(required = true, value_name = "TARGET:/path")]
    paths: Vec<OsString>,

    /// Directory for the sources; all other paths are sources
    #[arg(short = 't', long, value_name = "TARGET:/dir", conflicts_with = "no_target_directory")]
    target_directory: Option<OsString>,

    /// The destination is the new name, even if it is a directory
    #[arg(short = 'T', long)]
    no_target_directory: bool,

    /// For the sources.
    #[command(flatten)]
    pub glob: GlobOptions,
}

/// The destination of a command.
pub struct Destination {
    pub path: VolumePath,
    kind: DestinationKind,
    /// Whether a link to a directory stands for the directory.
    follow: Follow,
}

#[derive(PartialEq, Eq)]
enum DestinationKind {
    /// A directory for the sources.
    Directory,
    /// The new name of the only source.
    Name,
    /// A directory if it exists as one, else the new name.
    DirectoryOrName,
}

impl PathArguments {
    /// The sources, and the destination.
    pub fn split(self) -> Result<(Vec<OsString>, Destination), Error> {
        let mut sources = self.paths;
        if let Some(directory) = self.target_directory {
            let path = VolumePath::parse(&directory)?;
            return Ok((
                sources,
                Destination { path, kind: DestinationKind::Directory, follow: Follow::Yes },
            ));
        }
        let last = sources.pop().expect("the command line has a path");
        let kind = match (&sources[..], self.no_target_directory) {
            ([], _) => {
                let what = format!("{}: the destination is missing", for_message(&last));
                return Err(Error::input(what));
            }
            ([_], true) => DestinationKind::Name,
            ([_, another, ..], true) => {
                let what = format!("{}: -T takes one source", for_message(another));
                return Err(Error::input(what));
            }
            ([_], false) => DestinationKind::DirectoryOrName,
            (_, false) => DestinationKind::Directory,
        };
        Ok((sources, Destination { path: VolumePath::parse(&last)?, kind, follow: Follow::Yes }))
    }
}

impl Destination {
    /// A link to a directory is a name like any other.
    pub fn without_following(self) -> Self {
        Self { follow: Follow::No, ..self }
    }

    fn is_directory(&self, volume: &Files) -> bool {
        lookup_with(volume, &self.path.bytes, self.follow)
            .is_ok_and(|(_, inode)| inode.kind == FileType::Directory)
    }

    /// Checks that there is a directory for this number of sources.
    pub fn check(&self, volume: &Files, sources: usize) -> Result<(), Error> {
        let is_for_several = self.kind == DestinationKind::Directory || sources > 1;
        match is_for_several && !self.is_directory(volume) {
            true => Err(refused(format!("{}: is not a directory", self.path))),
            false => Ok(()),
        }
    }

    /// The path of the new file for a source: the destination, or the source's last name in it.
    pub fn target_path(&self, volume: &Files, source: &[u8]) -> VolumePath {
        let is_name = self.kind == DestinationKind::Name;
        match last_name(source) {
            Some(name) if !is_name && self.is_directory(volume) => {
                self.path.in_same_volume(join(&self.path.bytes, name))
            }
            _ => self.path.clone(),
        }
    }
}

/// Files that a command has created. It never replaces them: two sources of one name are an error.
#[derive(Default)]
pub struct CreatedFiles(HashSet<InodeNumber>);

impl CreatedFiles {
    pub fn insert(&mut self, file: InodeNumber) {
        self.0.insert(file);
    }

    /// Checks that the existing file at a path was not created by this command.
    pub fn check(&self, path: &VolumePath, existing: InodeNumber) -> Result<(), Error> {
        match self.0.contains(&existing) {
            true => Err(refused(format!("{path}: was already created by this command"))),
            false => Ok(()),
        }
    }
}

/// Whether two paths lead to the same name in the same directory.
pub fn is_same_name(volume: &Files, one: &[u8], other: &[u8]) -> bool {
    let name = |path| {
        let (directory, _) = lookup_with(volume, parent(path), Follow::Yes).ok()?;
        Some((directory, last_name(path)?.to_vec()))
    };
    name(one).is_some_and(|one| Some(one) == name(other))
}

/// The error of a volume about a source and its new path.
pub fn with_both_paths(source: &VolumePath, target: &VolumePath, error: VolumeError) -> Error {
    with_path(format!("{source} to {target}"), error)
}
