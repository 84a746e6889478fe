//! Errors of opening, formatting, names and commits. Reads and writes of file data return an errno instead.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use uringfs_device::Errno;
use uringfs_reactor::SubmitError;

/// The result of a call that may fail with an [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The kind of an error, as far as a program acts on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The target holds no uringfs volume.
    NotAVolume,
    /// The target holds another format, such as a swap area, which was made over a volume. Nothing is written to it.
    OtherFormat,
    /// The metadata is damaged, or its parts do not fit together.
    Damaged,
    /// This uringfs does not support the volume's version or features, or the device is shorter than the
    /// volume; the message says what to do.
    Unsupported,
    /// The device failed.
    Io(Errno),
    /// No space for this operation. The volume remains usable.
    NoSpace,
    /// An argument is invalid.
    Input,
    /// The state of a name, a file or an attribute forbids the operation, as the errno says.
    Refused(Errno),
}

/// An error of a [`Volume`](crate::Volume). `Display` is one line: what happened, to what, what to do.
///
/// The line has the text of the cause. So [`source`](std::error::Error::source) is the error below that cause, as in
/// [`io::Error`]: a report that prints the whole chain repeats nothing.
///
/// ```
/// use std::{io, path::Path};
/// # use uringfs_volume as uringfs;
/// use uringfs::{Error, FormatOptions, Volume};
///
/// # let folder = tempfile::tempdir()?;
/// # let volume = Volume::create(folder.path().join("image"), &FormatOptions::new().size(64 << 20))?;
/// let error = volume.read("/logs/first").unwrap_err();
/// assert_eq!(error.io_kind(), io::ErrorKind::NotFound);
/// assert_eq!(error.path(), Some(Path::new("/logs/first")));
/// assert_eq!(error.to_string(), "'/logs/first': 'logs' does not exist");
/// let error = volume.read("/first").unwrap_err();
/// assert_eq!(error.to_string(), "'/first' does not exist");
/// # Ok::<_, Error>(())
/// ```
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    /// Empty if the cause says all.
    context: String,
    path: Option<PathBuf>,
    /// The key of a damaged record.
    key: Option<Vec<u8>>,
    cause: Option<Box<dyn std::error::Error + Send + Sync>>,
    /// The advice, at the end of the line.
    advice: Option<&'static str>,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, context: impl Into<String>) -> Error {
        let context = context.into();
        Error { kind, context, path: None, key: None, cause: None, advice: None }
    }

    /// The error of a volume that another process has open, as that has reported it.
    #[doc(hidden)]
    pub fn reported(kind: ErrorKind, message: String, damaged_name: Option<&[u8]>) -> Error {
        let key = damaged_name.map(|name| [&[0; 8], name].concat());
        Error { key, ..Error::new(kind, message) }
    }

    pub(crate) fn damaged(context: impl Into<String>) -> Error {
        Error::new(ErrorKind::Damaged, context)
    }

    /// The device failed during an action, such as "reading block 7".
    pub(crate) fn io(doing: impl Into<String>, errno: impl Into<Errno>) -> Error {
        let errno = errno.into();
        Error::new(ErrorKind::Io(errno), doing).with_cause(errno)
    }

    /// Adds the cause. `Display` prints it after the context.
    pub(crate) fn with_cause(
        mut self,
        cause: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Error {
        self.cause = Some(cause.into());
        self
    }

    /// Adds what to do. `Display` ends with it.
    pub(crate) fn with_advice(mut self, advice: &'static str) -> Error {
        self.advice = Some(advice);
        self
    }

    pub(crate) fn has_advice(&self) -> bool {
        self.advice.is_some()
    }

    /// Removes what to do, because it would not help.
    pub(crate) fn without_advice(mut self) -> Error {
        self.advice = None;
        self
    }

    /// Adds the path that the call was about, unless the error has one.
    pub(crate) fn of_path(mut self, path: &[u8]) -> Error {
        self.path.get_or_insert_with(|| OsString::from_vec(path.to_vec()).into());
        self
    }

    pub(crate) fn refused(errno: Errno, context: impl Into<String>) -> Error {
        Error::new(ErrorKind::Refused(errno), context)
    }

    /// Prefixes the context, as with "inode 7".
    pub(crate) fn context(mut self, what: impl fmt::Display) -> Error {
        self.context = match self.context.is_empty() {
            true => what.to_string(),
            false => format!("{what}: {}", self.context),
        };
        self
    }

    /// Adds the key of the damaged record.
    pub(crate) fn with_key(mut self, key: Vec<u8>) -> Error {
        self.key = Some(key);
        self
    }

    /// The name of the damaged record at which a directory listing stopped. The listing can
    /// continue after it.
    pub fn damaged_name(&self) -> Option<&[u8]> {
        self.key.as_ref()?.get(8..)
    }

    /// The path that the failed call was about, as it was given; for a call with two paths, the one that is the reason.
    /// For a volume that cannot be opened or created, it is the path of its file or device. `None` for calls without a
    /// path.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// The message for a program that shows the path in its own way. It names only the part of the path that matters, if
    /// any: `'logs' does not exist`.
    pub fn message(&self) -> String {
        let mut text = match &self.cause {
            Some(cause) if self.context.is_empty() => cause.to_string(),
            Some(cause) => format!("{}: {cause}", self.context),
            None => self.context.clone(),
        };
        if let Some(advice) = self.advice {
            text = format!("{text}: {advice}");
        }
        text
    }

    /// The errno that a system call would return.
    pub fn errno(&self) -> Errno {
        match self.kind {
            ErrorKind::Refused(errno) | ErrorKind::Io(errno) => errno,
            ErrorKind::NoSpace => Errno::NOSPC,
            ErrorKind::Damaged => Errno::IO,
            ErrorKind::NotAVolume | ErrorKind::OtherFormat | ErrorKind::Input => Errno::INVAL,
            ErrorKind::Unsupported => Errno::OPNOTSUPP,
        }
    }

    /// The errno as a number, as from [`io::Error::raw_os_error`].
    pub fn raw_os_error(&self) -> i32 {
        self.errno().raw_os_error()
    }

    /// The kind that std gives the errno: `NotFound`, `AlreadyExists`, `StorageFull` and so on.
    pub fn io_kind(&self) -> io::ErrorKind {
        io::Error::from(self.errno()).kind()
    }

    /// The kind, by which a program can act.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }
}

impl fmt::Display for Error {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let message = self.message();
        match &self.path {
            Some(path) => out.write_str(&with_path(path, message)),
            None => out.write_str(&message),
        }
    }
}

/// A name or a path as printable text, in quotes.
pub(crate) fn quoted(name: &[u8]) -> String {
    format!("'{}'", name.escape_ascii())
}

/// A message with the whole path, in place of the last name if it begins with that.
fn with_path(path: &Path, message: String) -> String {
    let whole = quoted(path.as_os_str().as_bytes());
    let begins_with =
        |path: &str| message.strip_prefix(path).is_some_and(|rest| rest.starts_with([' ', ':']));
    if begins_with(&whole) || begins_with(&path.to_string_lossy()) {
        return message;
    }
    let name = path.file_name().map(|name| quoted(name.as_bytes()));
    match name.and_then(|name| message.strip_prefix(&*name)) {
        Some(rest) => format!("{whole}{rest}"),
        None => format!("{whole}: {message}"),
    }
}

/// Names the path in the error of a call.
pub(crate) trait OfPath {
    /// See [`Error::of_path`].
    fn of_path(self, path: &[u8]) -> Self;
}

impl<T> OfPath for Result<T, Error> {
    fn of_path(self, path: &[u8]) -> Self {
        self.map_err(|error| error.of_path(path))
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.cause.as_ref()?.source()
    }
}

/// The error of an operation on a file's data.
impl From<Errno> for Error {
    fn from(errno: Errno) -> Error {
        let kind = match errno {
            Errno::IO => ErrorKind::Io(errno),
            Errno::NOSPC => ErrorKind::NoSpace,
            errno => ErrorKind::Refused(errno),
        };
        let error = Error::new(kind, "").with_cause(errno);
        match errno {
            Errno::BADF => error
                .with_advice("open the file with `.read(true)` to read, `.write(true)` to write"),
            _ => error,
        }
    }
}

/// The error of opening a device or making a reactor, with its message, or the [`Error`] or [`SubmitError`] in it.
impl From<io::Error> for Error {
    fn from(error: io::Error) -> Error {
        let error = match error.downcast::<Error>() {
            Ok(error) => return error,
            Err(error) => error,
        };
        let error = match error.downcast::<SubmitError>() {
            Ok(refused) => return Error::from(refused),
            Err(error) => error,
        };
        let errno = Errno::from_io_error(&error).unwrap_or(match error.kind() {
            io::ErrorKind::NotFound => Errno::NOENT,
            io::ErrorKind::PermissionDenied => Errno::ACCESS,
            io::ErrorKind::AlreadyExists => Errno::EXIST,
            io::ErrorKind::ResourceBusy => Errno::BUSY,
            io::ErrorKind::IsADirectory => Errno::ISDIR,
            io::ErrorKind::ReadOnlyFilesystem => Errno::ROFS,
            io::ErrorKind::StorageFull => Errno::NOSPC,
            io::ErrorKind::InvalidInput => Errno::INVAL,
            io::ErrorKind::Unsupported => Errno::OPNOTSUPP,
            _ => Errno::IO,
        });
        Error::from(errno).with_cause(error)
    }
}

impl From<SubmitError> for Error {
    fn from(refused: SubmitError) -> Error {
        Error::from(refused.error).with_cause(refused)
    }
}

/// Keeps kind, message and source. The [`Error`] is what [`io::Error::get_ref`] returns.
impl From<Error> for io::Error {
    fn from(error: Error) -> io::Error {
        io::Error::new(error.io_kind(), error)
    }
}

#[cfg(test)]
mod tests {
    use uringfs_device::Payload;

    use super::*;

    #[test]
    fn an_error_is_one_line_that_ends_with_its_cause() {
        let error = Error::io("reading block 7", Errno::IO);
        assert_eq!(error.kind(), ErrorKind::Io(Errno::IO));
        assert_eq!(error.to_string(), format!("reading block 7: {}", Errno::IO));
        let error = Error::from(io::Error::other("no such thing")).context("opening");
        assert_eq!(error.to_string(), "opening: no such thing");
        let error = error.with_advice("look for it");
        assert_eq!(error.to_string(), "opening: no such thing: look for it");
        assert_eq!(error.without_advice().to_string(), "opening: no such thing");
    }

    #[test]
    fn a_message_has_the_whole_path_once() {
        let of = |path: &[u8], what: &str| {
            let error = Error::refused(Errno::NOENT, what).of_path(path);
            assert_eq!(error.message(), what);
            error.to_string()
        };
        assert_eq!(of(b"/a/b", "'b' does not exist"), "'/a/b' does not exist");
        assert_eq!(of(b"/a/b", "'a' does not exist"), "'/a/b': 'a' does not exist");
        assert_eq!(of(b"/a/b", "'/a/b' is taken"), "'/a/b' is taken");
        assert_eq!(of(b"b", "'b' does not exist"), "'b' does not exist");
        assert_eq!(of(b"v.img", "v.img does not exist"), "v.img does not exist");
        assert_eq!(of(b"/", "nothing can be changed"), "'/': nothing can be changed");
        assert_eq!(of(b"/a\n", "it is full"), r"'/a\n': it is full");
    }

    #[test]
    fn a_handle_that_may_not_do_something_gets_advice() {
        let text = Error::from(Errno::BADF).to_string();
        assert!(text.contains("open the file with `.read(true)` to read"), "{text}");
    }

    /// The chain as reports print it: each error, then its source.
    fn chain(error: &dyn std::error::Error) -> Vec<String> {
        std::iter::successors(Some(error), |error| error.source()).map(|e| e.to_string()).collect()
    }

    #[test]
    fn a_report_of_the_chain_repeats_nothing() {
        let error = Error::io("reading block 7", Errno::IO);
        assert_eq!(chain(&error), [error.to_string()]);
        // An error that does not show its source itself.
        #[derive(Debug)]
        struct Outer(Errno);
        impl fmt::Display for Outer {
            fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("outer")
            }
        }
        impl std::error::Error for Outer {
            fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
                Some(&self.0)
            }
        }
        let error = Error::damaged("the catalog").with_cause(Outer(Errno::IO));
        let lines = ["the catalog: outer".to_owned(), Errno::IO.to_string()];
        assert_eq!(chain(&error), lines);
        assert_eq!(chain(&io::Error::from(error)), lines);
    }

    #[test]
    fn errors_convert_to_those_of_std_and_back() {
        let error = Error::refused(Errno::NOENT, "there is no a").of_path(b"/a").of_path(b"/b");
        let (raw, message) = (error.raw_os_error(), error.to_string());
        assert_eq!(error.io_kind(), io::ErrorKind::NotFound);
        let of_std = io::Error::from(error);
        assert_eq!((of_std.kind(), of_std.to_string()), (io::ErrorKind::NotFound, message.clone()));
        assert_eq!(message, "'/a': there is no a");
        let back = Error::from(of_std);
        assert_eq!((back.raw_os_error(), back.to_string()), (raw, message));
        assert_eq!(back.path(), Some(Path::new("/a")));
        let refused = SubmitError::new(Errno::AGAIN, Payload::Length(0));
        let of_std = io::Error::from(refused);
        assert_eq!(of_std.kind(), io::ErrorKind::WouldBlock);
        assert_eq!(Error::from(of_std).errno(), Errno::AGAIN);
        assert_eq!(Error::from(Errno::NOSPC).kind(), ErrorKind::NoSpace);
        assert_eq!(Error::from(io::Error::from(Errno::IO)).kind(), ErrorKind::Io(Errno::IO));
    }
}
