//! A path in the volume of a target, and what a volume says about it.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use uringfs::{VolumeError, VolumeErrorKind};
use uringfs_lab::Error;

/// A path in the volume of a target, written `TARGET:/path`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    pub(super) target: OsString,
    /// From the root on, with its slash.
    pub(super) path: Vec<u8>,
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
    pub(super) fn at(&self, path: Vec<u8>) -> Self {
        Self { target: self.target.clone(), path }
    }

    /// What the volume says about this place.
    pub(super) fn said(&self, error: VolumeError) -> Error {
        said(self, error)
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.target.display(), OsStr::from_bytes(&self.path).display())
    }
}

/// A volume's error, about something: the user's turn where the volume refuses, else the machine's.
pub(super) fn said(about: &impl fmt::Display, error: VolumeError) -> Error {
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

/// A name in a directory.
pub(super) fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    let slash: &[u8] = if directory.ends_with(b"/") { b"" } else { b"/" };
    [directory, slash, name].concat()
}

/// The last name of a path: none of the root's, and of what ends in `..`.
pub(super) fn last_name(path: &[u8]) -> Option<&[u8]> {
    let name = path.split(|byte| *byte == b'/').rfind(|name| !name.is_empty() && *name != b".")?;
    (name != b"..").then_some(name)
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
