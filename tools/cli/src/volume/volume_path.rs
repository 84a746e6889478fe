//! Paths in volumes, written `TARGET:/path`, and errors about them.

use super::exit_codes::of_volume_error;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use uringfs::{Error as VolumeError, ErrorKind as VolumeErrorKind};
use uringfs_lab::Error;

/// A path in a volume, written `TARGET:/path`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumePath {
    pub(super) target: OsString,
    /// The absolute path in the volume, which begins with a slash.
    pub(super) bytes: Vec<u8>,
}

impl VolumePath {
    /// Splits the argument at the last `:/`. An argument without it is a target, with or without a colon at its end,
    /// and means the root directory of its volume.
    pub fn parse(argument: &OsStr) -> Result<Self, Error> {
        let bytes = argument.as_bytes();
        let (target, path) = match bytes.windows(2).rposition(|pair| pair == b":/") {
            Some(at) => (&bytes[..at], &bytes[at + 1..]),
            None => (bytes.strip_suffix(b":").unwrap_or(bytes), &b"/"[..]),
        };
        match target.is_empty() {
            false => {
                Ok(Self { target: OsStr::from_bytes(target).to_owned(), bytes: path.to_vec() })
            }
            true => Err(Error::input(format!(
                "{}: expected a path in a volume, as in TARGET:/path",
                argument.display()
            ))),
        }
    }

    /// Parses paths that must all be in the same volume.
    pub fn parse_all(arguments: &[OsString]) -> Result<Vec<Self>, Error> {
        match arguments.first() {
            Some(first) => Self::parse_in(&Self::parse(first)?.target, arguments),
            None => Ok(Vec::new()),
        }
    }

    /// Parses paths that must all be in the volume of this target.
    pub fn parse_in(target: &OsStr, arguments: &[OsString]) -> Result<Vec<Self>, Error> {
        let paths =
            arguments.iter().map(|one| Self::parse(one)).collect::<Result<Vec<_>, Error>>()?;
        match paths.iter().find(|path| !is_same_target(&path.target, target)) {
            Some(other) => Err(Error::input(format!(
                "{other}: not in the same volume as the other paths ({}); name paths of one volume",
                target.display()
            ))),
            None => Ok(paths),
        }
    }

    /// Another path in the same volume.
    pub(super) fn in_same_volume(&self, bytes: Vec<u8>) -> Self {
        Self { target: self.target.clone(), bytes }
    }
}

impl fmt::Display for VolumePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.target.display(), OsStr::from_bytes(&self.bytes).display())
    }
}

/// A path in a volume, for its calls.
pub(super) fn as_path(bytes: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(bytes))
}

/// The error of a volume with the path that it concerns. An error that the user can correct is an input error,
/// any other a run error.
pub(super) fn with_path(path: impl fmt::Display, error: VolumeError) -> Error {
    let code = of_volume_error(&error);
    let wrapped = match error.kind() {
        VolumeErrorKind::NotAVolume => {
            let why = format!("{error}; check the path");
            return Error::input(path.to_string()).because(why).exiting_with(code);
        }
        VolumeErrorKind::Refused(_) | VolumeErrorKind::Input | VolumeErrorKind::Unsupported => {
            Error::input(path.to_string())
        }
        _ => Error::run(path.to_string()),
    };
    wrapped.because(error).exiting_with(code)
}

/// Whether two targets are one file or device, by any of its names.
pub(super) fn is_same_target(one: &OsStr, other: &OsStr) -> bool {
    let resolved = |target: &OsStr| Path::new(target).canonicalize().ok();
    one == other || resolved(one).is_some_and(|one| Some(one) == resolved(other))
}

/// The path of a name in a directory.
pub(super) fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    let slash: &[u8] = if directory.ends_with(b"/") { b"" } else { b"/" };
    [directory, slash, name].concat()
}

/// The last name of a path. None for the root and for a path that ends in `..`.
pub(super) fn last_name(path: &[u8]) -> Option<&[u8]> {
    let name = path.split(|byte| *byte == b'/').rfind(|name| !name.is_empty() && *name != b".")?;
    (name != b"..").then_some(name)
}

/// The path of the directory that holds the last name of a path.
pub(super) fn parent(path: &[u8]) -> &[u8] {
    let end = path.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
    let slash = path[..end].iter().rposition(|byte| *byte == b'/').unwrap_or(0);
    &path[..slash + 1]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_splits_at_the_last_colon_and_slash() {
        let parse = |text: &str| VolumePath::parse(OsStr::new(text));
        let is = |text, target: &str, path: &str| {
            let found = parse(text).unwrap();
            assert_eq!((found.target.to_str(), &found.bytes[..]), (Some(target), path.as_bytes()));
            assert_eq!(found.to_string(), text);
        };
        is("v:/a/b", "v", "/a/b");
        is("a:/b:/c", "a:/b", "/c");
        is("./x:y:/", "./x:y", "/");
        for root in ["v", "v:"] {
            assert_eq!(parse(root).unwrap(), parse("v:/").unwrap());
        }
        let device = "/dev/disk/by-path/pci-0000:00:1f.2";
        assert_eq!(parse(device).unwrap().target, device);
        for bad in [":/a", ":", ""] {
            assert!(parse(bad).unwrap_err().to_string().contains("TARGET:/path"), "{bad}");
        }
    }

    #[test]
    fn the_root_and_dot_dot_have_no_last_name() {
        let is = |path: &str, name: Option<&str>| {
            assert_eq!(last_name(path.as_bytes()), name.map(str::as_bytes), "{path}");
        };
        is("/a/b", Some("b"));
        is("/a/b//", Some("b"));
        is("/a/.", Some("a"));
        is("/a/..", None);
        is("/", None);
    }

    #[test]
    fn the_parent_is_the_path_before_the_last_name() {
        let is = |path: &str, directory: &str| {
            assert_eq!(parent(path.as_bytes()), directory.as_bytes(), "{path}");
        };
        is("/a/b", "/a/");
        is("/a/b//", "/a/");
        is("/a", "/");
        is("/", "/");
    }
}
