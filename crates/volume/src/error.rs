//! Errors of the control path: opening, formatting, names, commits. Reads and writes of file data
//! return an errno instead.

use std::fmt;

use rustix::io::Errno;

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
    pub(crate) fn io(doing: impl Into<String>, errno: Errno) -> Error {
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
}
