//! Paths in volumes, written `TARGET:/path`, and errors about them.

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
    /// Splits the argument at the last `:/`.
    pub fn parse(argument: &OsStr) -> Result<Self, Error> {
        let bytes = argument.as_bytes();
        match bytes.windows(2).rposition(|pair| pair == b":/") {
            Some(at) if at > 0 => Ok(Self {
                target: OsStr::from_bytes(&bytes[..at]).to_owned(),
                bytes: bytes[at + 1..].to_vec(),
            }),
            _ => Err(Error::input(format!(
                "{}: expected a path in a volume, as in TARGET:/path",
                argument.display()
            ))),
        }
    }

    /// Parses paths that must all be in the same volume.
    pub fn parse_all(arguments: &[OsString]) -> Result<Vec<Self>, Error> {
        let paths =
            arguments.iter().map(|one| Self::parse(one)).collect::<Result<Vec<_>, Error>>()?;
        match paths.iter().find(|path| path.target != paths[0].target) {
            Some(other) => Err(Error::input(format!(
                "{other}: not in the same volume as the other paths ({}); name paths of one volume",
                paths[0].target.display()
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
    let wrapped = match error.kind() {
        VolumeErrorKind::NotAVolume => {
            return Error::input(path.to_string()).because(format!("{error}; check the path"));
        }
        VolumeErrorKind::Refused(_) | VolumeErrorKind::Input | VolumeErrorKind::Unsupported => {
            Error::input(path.to_string())
        }
        _ => Error::run(path.to_string()),
    };
    wrapped.because(error)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_splits_at_the_last_colon_and_slash() {
        let parse = |text: &str| VolumePath::parse(OsStr::new(text));
        let is = |text, target: &str, path: &str| {
            let found = parse(text).unwrap();
            assert_eq!((found.target.to_str(), &found.bytes[..]), (Some(target), path.as_bytes()));
            assert_eq!(found.to_string(), text);
        };
        is("v:/a/b", "v", "/a/b");
        is("a:/b:/c", "a:/b", "/c");
        is("./x:y:/", "./x:y", "/");
        for bad in ["v", "v:a", ":/a", ""] {
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
}
