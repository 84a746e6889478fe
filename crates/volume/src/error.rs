//! Errors of the control path: opening, formatting, names, commits. Reads and writes of file data
//! return an errno instead.

use std::fmt;
use std::io;

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

/// An error of the control path. `Display` is one line: what happened, to what, what to do.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    context: String,
    /// The key of a damaged record.
    at: Option<Vec<u8>>,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, context: impl Into<String>) -> Error {
        Error { kind, context: context.into(), at: None, source: None }
    }

    pub(crate) fn damaged(context: impl Into<String>) -> Error {
        Error::new(ErrorKind::Damaged, context)
    }

    /// The device failed during an action, such as "reading block 7".
    pub(crate) fn io(doing: impl Into<String>, errno: impl Into<Errno>) -> Error {
        let errno = errno.into();
        Error::new(ErrorKind::Io(errno), doing).with_source(errno)
    }

    /// Adds the cause. `Display` prints it after the context.
    pub(crate) fn with_source(
        mut self,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Error {
        self.source = Some(source.into());
        self
    }

    pub(crate) fn refused(errno: Errno, context: impl Into<String>) -> Error {
        Error::new(ErrorKind::Refused(errno), context)
    }

    /// Prefixes the context, as with "inode 7".
    pub(crate) fn context(mut self, what: impl fmt::Display) -> Error {
        self.context = format!("{what}: {}", self.context);
        self
    }

    /// Adds the key of the damaged record.
    pub(crate) fn with_key(mut self, key: Vec<u8>) -> Error {
        self.at = Some(key);
        self
    }

    /// The name of the damaged record at which a directory listing stopped. The listing can
    /// continue after it.
    pub fn damaged_name(&self) -> Option<&[u8]> {
        self.at.as_ref()?.get(8..)
    }

    /// The errno that a system call would return.
    pub fn errno(&self) -> Errno {
        match self.kind {
            ErrorKind::Refused(errno) | ErrorKind::Io(errno) => errno,
            ErrorKind::NoSpace => Errno::NOSPC,
            ErrorKind::Damaged => Errno::IO,
            ErrorKind::NotAVolume | ErrorKind::Input => Errno::INVAL,
            ErrorKind::Unsupported => Errno::OPNOTSUPP,
        }
    }

    /// The errno as a number, as of [`io::Error::raw_os_error`].
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
        out.write_str(&self.context)?;
        match &self.source {
            Some(source) => write!(out, ": {source}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|source| &**source as _)
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
        Error::new(kind, errno.to_string())
    }
}

/// The error of opening a device or making a reactor. Its message says what happened to what.
impl From<io::Error> for Error {
    fn from(error: io::Error) -> Error {
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
        Error { context: error.to_string(), ..Error::from(errno) }
    }
}

impl From<SubmitError> for Error {
    fn from(refused: SubmitError) -> Error {
        Error { context: refused.to_string(), ..Error::from(refused.error) }
    }
}

/// Keeps kind and message. The [`Error`] is what [`io::Error::get_ref`] returns.
impl From<Error> for io::Error {
    fn from(error: Error) -> io::Error {
        io::Error::new(error.io_kind(), error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_one_line_that_ends_with_its_cause() {
        let error = Error::io("reading block 7", Errno::IO);
        assert_eq!(error.kind(), ErrorKind::Io(Errno::IO));
        assert_eq!(error.to_string(), format!("reading block 7: {}", Errno::IO));
        assert!(std::error::Error::source(&error).is_some());
    }

    #[test]
    fn errors_convert_to_those_of_std_and_back() {
        let error = Error::refused(Errno::NOENT, "there is no \"a\"");
        let (raw, message) = (error.raw_os_error(), error.to_string());
        assert_eq!(error.io_kind(), io::ErrorKind::NotFound);
        let of_std = io::Error::from(error);
        assert_eq!((of_std.kind(), of_std.to_string()), (io::ErrorKind::NotFound, message.clone()));
        let back = Error::from(of_std);
        assert_eq!((back.raw_os_error(), back.to_string()), (raw, message));
        assert_eq!(Error::from(Errno::NOSPC).kind(), ErrorKind::NoSpace);
        assert_eq!(Error::from(io::Error::from(Errno::IO)).kind(), ErrorKind::Io(Errno::IO));
    }
}
