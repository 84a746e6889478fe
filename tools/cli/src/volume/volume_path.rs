//! Paths in volumes, written `TARGET:/path`, and errors about them.

use super::exit_codes::{IN_USE, of_volume_error};
use super::host_arguments::{check_is_no_file, check_names_volume};
use super::mounts;
use super::quoting::{ForMessage, for_message, quoted, quoted_if_needed};
use super::target::{canonical, is_uri};
use crate::path_option::SEPARATOR;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use uringfs::device::backend::RemoteTarget;
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
    /// Splits the argument at the last `:/`, or a URI at the first one after its host. An argument without it is a
    /// target, with or without a colon at its end, and means the root directory of its volume.
    ///
    /// # Errors
    /// There is no target, or an argument without a colon names no volume, or one with a colon names a file of this
    /// machine.
    pub fn parse(argument: &OsStr) -> Result<Self, Error> {
        let found = Self::split(argument)?;
        if is_uri(&found.target) {
            return Ok(found);
        }
        match found.target == argument || argument.as_bytes().contains(&SEPARATOR) {
            true => check_names_volume(&found.target)?,
            false => check_is_no_file(argument, &found.target)?,
        }
        Ok(found)
    }

    pub(super) fn split(argument: &OsStr) -> Result<Self, Error> {
        let bytes = argument.as_bytes();
        let separator = bytes.iter().position(|byte| *byte == SEPARATOR).or_else(|| {
            match RemoteTarget::uri_length(bytes) {
                Some(length) => (length < bytes.len()).then_some(length),
                None => bytes.windows(2).rposition(|pair| pair == b":/"),
            }
        });
        let (target, path) = match separator {
            Some(at) => (&bytes[..at], &bytes[at + 1..]),
            None => (bytes.strip_suffix(b":").unwrap_or(bytes), &b"/"[..]),
        };
        match target.is_empty() {
            false => {
                Ok(Self { target: OsStr::from_bytes(target).to_owned(), bytes: path.to_vec() })
            }
            true => Err(Error::input(format!(
                "{}: expected a path in a volume, as in TARGET:/path",
                for_message(argument)
            ))),
        }
    }

    /// Parses paths that must all be in the same volume.
    pub fn parse_all(arguments: &[OsString]) -> Result<Vec<Self>, Error> {
        let paths = Self::parse_each(arguments)?;
        for path in paths.iter().skip(1) {
            path.require_volume_of(&paths[0], "name paths of one volume")?;
        }
        Ok(paths)
    }

    /// Parses paths, which may be in different volumes.
    pub fn parse_each(arguments: &[OsString]) -> Result<Vec<Self>, Error> {
        arguments.iter().map(|one| Self::parse(one)).collect()
    }

    /// Checks that the path is in the volume of another one. `advice` says what to do if not.
    pub fn require_volume_of(&self, other: &Self, advice: &str) -> Result<(), Error> {
        match is_same_target(&self.target, &other.target) {
            true => Ok(()),
            false => {
                Err(Error::input(format!("{self} is in another volume than {other}; {advice}")))
            }
        }
    }

    /// The argument that means this path.
    pub fn argument(&self) -> Vec<u8> {
        [self.target.as_bytes(), b":", &self.bytes].concat()
    }

    /// Another path in the same volume.
    pub(super) fn in_same_volume(&self, bytes: Vec<u8>) -> Self {
        Self { target: self.target.clone(), bytes }
    }
}

/// In quotes if a shell needs them.
impl fmt::Display for VolumePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&quoted_if_needed(&self.argument()))
    }
}

/// A path in a volume, for its calls.
pub(super) fn as_path(bytes: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(bytes))
}

/// The subject of an error of a volume.
pub(super) trait Subject: fmt::Display {
    /// Its path in the volume, if it is a single one.
    fn path(&self) -> Option<&[u8]> {
        None
    }

    /// The file or device of the volume, if it is the volume as a whole.
    fn target(&self) -> Option<&Path> {
        None
    }
}

impl Subject for VolumePath {
    fn path(&self) -> Option<&[u8]> {
        Some(&self.bytes)
    }
}

impl<T: Subject + ?Sized> Subject for &T {
    fn path(&self) -> Option<&[u8]> {
        (**self).path()
    }

    fn target(&self) -> Option<&Path> {
        (**self).target()
    }
}

impl Subject for ForMessage<'_> {
    fn target(&self) -> Option<&Path> {
        Some(Path::new(self.0))
    }
}

impl Subject for String {}

/// The error of a volume with the path that it concerns. An error that the user can correct is an input error,
/// any other a run error.
pub(super) fn with_path(subject: impl Subject, error: VolumeError) -> Error {
    with_path_instead(subject, b"/", error)
}

/// The same. If the volume is mounted, the error names the path below the mount point that `instead` means.
pub(super) fn with_path_instead(
    subject: impl Subject,
    instead: &[u8],
    error: VolumeError,
) -> Error {
    let code = of_volume_error(&error);
    let why = after_path(subject.path(), message(&error));
    let path = subject.to_string();
    if code == IN_USE
        && let Some(advice) = subject.target().and_then(|it| mounts::advice(it, instead))
    {
        // The part that names the holder of the lock; the rest is for programs other than a mount.
        let who = why.split(';').next().unwrap_or_default();
        return Error::in_use(format!("{path}: {who}; {advice}"));
    }
    let wrapped = match error.kind() {
        VolumeErrorKind::NotAVolume => {
            return Error::input(path).because(format!("{why}; check the path")).exiting_with(code);
        }
        VolumeErrorKind::Refused(_)
        | VolumeErrorKind::Input
        | VolumeErrorKind::OtherFormat
        | VolumeErrorKind::Unsupported => Error::input(path),
        _ => Error::run(path),
    };
    wrapped.because(why).exiting_with(code)
}

/// The message of an error of a volume. For a full volume it names the command that enlarges it.
pub(super) fn message(error: &VolumeError) -> String {
    let text = error.message();
    match text.starts_with("the volume is full") || text == "no free blocks" {
        true => format!("{text}; uringfs resize enlarges it"),
        false => text,
    }
}

/// The message of an error that will follow its path. Leaves out the name at its beginning, if it is that of the path;
/// any other has the quotes of all names.
fn after_path(path: Option<&[u8]>, message: String) -> String {
    let Some((name, rest)) = split_name(&message) else { return message };
    let is_of = |path: &[u8]| without_slashes(path) == name || last_name(path) == Some(&name);
    match path.is_some_and(is_of) {
        true => rest.to_owned(),
        false => format!("{} {rest}", quoted(&name)),
    }
}

/// The name at the beginning of a message of the library, and the rest.
fn split_name(message: &str) -> Option<(Vec<u8>, &str)> {
    let mut rest = message.strip_prefix('\'')?.bytes().enumerate();
    let mut name = Vec::new();
    while let Some((at, byte)) = rest.next() {
        match byte {
            b'\'' => return Some((name, message[at + 2..].strip_prefix(' ')?)),
            b'\\' => name.push(match rest.next()?.1 {
                b't' => b'\t',
                b'r' => b'\r',
                b'n' => b'\n',
                b'x' => {
                    let mut digit = || char::from(rest.next()?.1).to_digit(16);
                    (digit()? * 16 + digit()?) as u8
                }
                byte => byte,
            }),
            byte => name.push(byte),
        }
    }
    None
}

/// The path without slashes at the end. The root stays as it is.
pub(super) fn without_slashes(path: &[u8]) -> &[u8] {
    match path.iter().rposition(|byte| *byte != b'/') {
        Some(last) => &path[..=last],
        None => path,
    }
}

/// Whether two targets are one file or device, by any of its names.
pub(super) fn is_same_target(one: &OsStr, other: &OsStr) -> bool {
    let resolved = |target: &OsStr| canonical(Path::new(target));
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
        let parse = |text: &str| VolumePath::split(OsStr::new(text));
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
        let uri = "nbd+unix:///n?socket=/run/s";
        let found = parse("nbd+unix:///n?socket=/run/s:/a:/b").unwrap();
        assert_eq!((found.target.to_str(), &found.bytes[..]), (Some(uri), &b"/a:/b"[..]));
        assert_eq!(parse(uri).unwrap(), parse(&format!("{uri}:/")).unwrap());
        is("nbd://host:10809/n:/a", "nbd://host:10809/n", "/a");
        let option = parse("a:/b\0/c:/d").unwrap();
        assert_eq!((option.target.to_str(), &option.bytes[..]), (Some("a:/b"), &b"/c:/d"[..]));
        let device = "/dev/disk/by-path/pci-0000:00:1f.2";
        assert_eq!(parse(device).unwrap().target, device);
        for bad in [":/a", ":", ""] {
            assert!(parse(bad).unwrap_err().to_string().contains("TARGET:/path"), "{bad}");
        }
    }

    #[test]
    fn a_message_after_a_path_does_not_repeat_its_name() {
        let is = |path: Option<&str>, message: &str, rest| {
            assert_eq!(after_path(path.map(str::as_bytes), message.to_owned()), rest);
        };
        for (path, name) in [("/a/d", "d"), ("/a/d", "/a/d"), ("/a/d/", "d"), ("/", "/")] {
            is(Some(path), &format!("'{name}' is a directory"), "is a directory");
        }
        is(Some("/a b"), "'a b' is a directory", "is a directory");
        is(Some("/\t'\\é"), r"'\t\'\\\xc3\xa9' is a directory", "is a directory");
        is(Some("/a/d"), "'a' does not exist", "'a' does not exist");
        is(Some("/d"), "the volume is full", "the volume is full");
        is(Some("/a/d"), r"'\xfe' does not exist", r"''$'\376' does not exist");
        is(None, "'d' is a directory", "'d' is a directory");
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
