//! The commands on volumes, and what they share: how a place in a volume is written, how a volume
//! is opened, and what is said of it.

pub mod about;
pub mod check;
pub mod chown;
pub mod du;
mod existing;
mod flight;
pub mod get;
mod glob;
mod hard_links;
mod host;
pub mod list;
pub mod mkfs;
pub mod names;
pub mod put;
pub mod resize;
pub mod show;
mod size;
mod source;
mod staged;
mod transfer;
pub mod truncate;
mod words;
pub mod xattr;

use rustix::io::Errno;
use std::cell::Cell;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use uringfs::{
    Access, Device, DirectoryEntry, FileKind, Follow, Volume, VolumeError, VolumeErrorKind,
};
use uringfs_lab::Error;

/// A path in the volume of a target, written `TARGET:/path`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    target: OsString,
    /// From the root on, with its slash.
    path: Vec<u8>,
}

impl Place {
    /// Splits at the last `:/`.
    pub fn parse(argument: &OsStr) -> Result<Self, Error> {
        let bytes = argument.as_bytes();
        match bytes.windows(2).rposition(|pair| pair == b":/") {
            Some(at) if at > 0 => Ok(Self {
                target: OsStr::from_bytes(&bytes[..at]).to_owned(),
                path: bytes[at + 1..].to_vec(),
            }),
            _ => Err(Error::input(format!(
                "{}: expected a path in a volume, as in TARGET:/path",
                argument.display()
            ))),
        }
    }

    /// Several, which must lie in the same volume.
    pub fn parse_all(arguments: &[OsString]) -> Result<Vec<Self>, Error> {
        let places =
            arguments.iter().map(|one| Self::parse(one)).collect::<Result<Vec<_>, Error>>()?;
        match places.iter().find(|place| place.target != places[0].target) {
            Some(other) => Err(Error::input(format!(
                "{other}: the other paths are in {}; name paths of one volume",
                places[0].target.display()
            ))),
            None => Ok(places),
        }
    }

    /// Another path in the same volume.
    fn at(&self, path: Vec<u8>) -> Self {
        Self { target: self.target.clone(), path }
    }

    /// What the volume says about this place.
    fn said(&self, error: VolumeError) -> Error {
        said(self, error)
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.target.display(), OsStr::from_bytes(&self.path).display())
    }
}

/// A volume's error, about something: the user's turn where the volume refuses, else the machine's.
fn said(about: &impl fmt::Display, error: VolumeError) -> Error {
    let told = match error.kind() {
        VolumeErrorKind::NotAVolume => {
            return Error::input(about.to_string()).because(format!("{error}; see uringfs mkfs"));
        }
        VolumeErrorKind::Refused(_) | VolumeErrorKind::Input | VolumeErrorKind::Unsupported => {
            Error::input(about.to_string())
        }
        _ => Error::run(about.to_string()),
    };
    told.because(error)
}

/// What went wrong with some of many names: each is told in a line, and the others have their turn.
#[derive(Default)]
struct Complaints {
    /// Of what went wrong first, the error's own; 0 of nothing.
    first: Cell<u8>,
    /// How many names went wrong, and how many had their turn.
    failed: Cell<u64>,
    turns: Cell<u64>,
}

impl Complaints {
    /// What was asked for; nothing, once it was told why.
    fn told<T>(&self, result: Result<T, Error>) -> Option<T> {
        self.turns.set(self.turns.get() + 1);
        let tell = |error: Error| {
            crate::complain(&error.to_string());
            if self.failed.replace(self.failed.get() + 1) == 0 {
                self.first.set(error.exit_code());
            }
        };
        result.map_err(tell).ok()
    }

    /// With which the program ends: 1 where some of several went wrong, and with one alone its error's.
    fn exit_code(&self) -> u8 {
        match (self.failed.get(), self.turns.get()) {
            (0, _) => 0,
            (1, 1) => self.first.get(),
            _ => 1,
        }
    }
}

/// Where `put` has files until they are whole: a directory whose inode says so.
const STAGING: &str = "/.uringfs-put";

/// Opens the volume of a file or a block device: nobody else has it open for writing then, and
/// nobody at all if this program writes. Then it also removes what a killed `put` has left.
fn open(target: &OsStr, access: Access) -> Result<Volume, Error> {
    let path = Path::new(target);
    let device = Device::open(path, access).map_err(|error| Error::input(error.to_string()))?;
    let opened = Volume::open_on(device).and_then(|volume| {
        if access == Access::ReadWrite {
            remove_staging(&volume)?;
        }
        Ok(volume)
    });
    opened.map_err(|error| said(&path.display(), error))
}

/// Removes what is half-written: directories with the flag of staging. What else has their names is the user's.
fn remove_staging(volume: &Volume) -> Result<(), VolumeError> {
    for path in stagings() {
        match volume.inode(&path, Follow::No) {
            Ok((_, inode)) if inode.is_staging => remove_with_all(volume, &path)?,
            Ok(_) => {}
            Err(error) if error.errno() == Errno::NOENT => break,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// A staging directory, and all that is in it.
fn remove_with_all(volume: &Volume, staging: &[u8]) -> Result<(), VolumeError> {
    for entry in Entries::of(volume, staging) {
        let entry = entry?;
        let path = join(staging, &entry.name);
        match entry.kind {
            FileKind::Directory => volume.remove_directory(path)?,
            _ => volume.remove(path)?,
        }
    }
    volume.remove_directory(staging)
}

/// The first name for a staging directory that nothing has.
fn free_staging(volume: &Volume) -> Result<Vec<u8>, VolumeError> {
    for path in stagings() {
        match volume.inode(&path, Follow::No) {
            Ok(_) => {}
            Err(error) if error.errno() == Errno::NOENT => return Ok(path),
            Err(error) => return Err(error),
        }
    }
    unreachable!("a directory does not hold every name")
}

/// Names of staging directories: the first is the usual one, the others are for where the user has that.
fn stagings() -> impl Iterator<Item = Vec<u8>> {
    let others = (1_u64..).map(|number| format!("{STAGING}-{number}"));
    std::iter::once(STAGING.to_owned()).chain(others).map(String::into_bytes)
}

/// An extended attribute's name and value.
type Xattr = (Vec<u8>, Vec<u8>);

/// Makes all changes durable.
fn close(volume: &Volume, target: &OsStr) -> Result<(), Error> {
    volume.sync().map_err(|error| said(&target.display(), error))
}

/// The names in a directory, in order of their bytes; a few at a time are in memory. Behind one that is
/// damaged the others follow; behind another error, none.
struct Entries<'v> {
    volume: &'v Volume,
    directory: Vec<u8>,
    /// Behind which the next ones are, if there may be any.
    after: Option<Vec<u8>>,
    batch: std::vec::IntoIter<DirectoryEntry>,
}

impl<'v> Entries<'v> {
    fn of(volume: &'v Volume, directory: &[u8]) -> Self {
        let batch = Vec::new().into_iter();
        Self { volume, directory: directory.to_vec(), after: Some(Vec::new()), batch }
    }

    /// The same with their places, the directory's being this. Of what cannot be read it is told.
    fn places(
        mut self,
        place: &Place,
        complaints: &Complaints,
    ) -> impl Iterator<Item = (Place, DirectoryEntry)> {
        std::iter::from_fn(move || self.next_place(place, complaints))
    }

    fn next_place(
        &mut self,
        place: &Place,
        complaints: &Complaints,
    ) -> Option<(Place, DirectoryEntry)> {
        self.find_map(|entry| {
            let entry = entry.map_err(|error| match error.damaged_name() {
                Some(name) => place.at(join(&place.path, name)).said(error),
                None => place.said(error),
            });
            complaints.told(entry).map(|entry| (place.at(join(&place.path, &entry.name)), entry))
        })
    }
}

impl Iterator for Entries<'_> {
    type Item = Result<DirectoryEntry, VolumeError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.batch.len() == 0 {
            match self.volume.entries(&self.directory, self.after.as_ref()?) {
                Ok(batch) => self.batch = batch.into_iter(),
                Err(error) => {
                    self.after = error.damaged_name().map(<[u8]>::to_vec);
                    return Some(Err(error));
                }
            }
        }
        let entry = self.batch.next()?;
        self.after = Some(entry.name.clone());
        Some(Ok(entry))
    }
}

/// A name in a directory.
fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    let slash: &[u8] = if directory.ends_with(b"/") { b"" } else { b"/" };
    [directory, slash, name].concat()
}

/// The last name of a path: none of the root's, and of what ends in `..`.
fn last_name(path: &[u8]) -> Option<&[u8]> {
    let name = path.split(|byte| *byte == b'/').rfind(|name| !name.is_empty() && *name != b".")?;
    (name != b"..").then_some(name)
}

/// Whether it leads to a directory.
fn is_directory(volume: &Volume, path: &[u8]) -> bool {
    let found = volume.inode(path, Follow::Yes);
    found.is_ok_and(|(_, inode)| inode.kind == FileKind::Directory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_splits_at_the_last_colon_and_slash() {
        let place = |text: &str| Place::parse(OsStr::new(text));
        let is = |text, target: &str, path: &str| {
            let found = place(text).unwrap();
            assert_eq!((found.target.to_str(), &found.path[..]), (Some(target), path.as_bytes()));
            assert_eq!(found.to_string(), text);
        };
        is("v:/a/b", "v", "/a/b");
        is("a:/b:/c", "a:/b", "/c");
        is("./x:y:/", "./x:y", "/");
        for bad in ["v", "v:a", ":/a", ""] {
            assert!(place(bad).unwrap_err().to_string().contains("TARGET:/path"), "{bad}");
        }
    }

    #[test]
    fn last_names_are_those_that_can_be_made() {
        let is = |path: &str, name: Option<&str>| {
            assert_eq!(last_name(path.as_bytes()), name.map(str::as_bytes), "{path}");
        };
        is("/a/b", Some("b"));
        is("/a/b//", Some("b"));
        is("/a/.", Some("a"));
        is("/a/..", None);
        is("/", None);
    }
}
