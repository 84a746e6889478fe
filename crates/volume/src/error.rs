//! What goes wrong on the control path: opening, formatting, names, commits. Bytes of files answer
//! an errno instead.

use std::fmt;

use rustix::io::Errno;

/// Which kind of trouble, as far as a program would act on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The target holds no uringfs volume.
    NotAVolume,
    /// The volume holds bytes that it did not write.
    Damaged,
    /// The volume needs a newer uringfs, or a larger device.
    Unsupported,
    /// The device failed.
    Io(Errno),
    /// Nothing is free that this could use; all that was there is still usable.
    NoSpace,
    /// Something asked for cannot be.
    Input,
    /// A name, a file or an attribute forbids it, as a system call would say.
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

    /// The device failed while this was done: "reading block 7".
    pub(crate) fn io(doing: impl Into<String>, errno: Errno) -> Error {
        Error::new(ErrorKind::Io(errno), doing).because(errno)
    }

    /// Adds the error that caused this one; it is printed after the context.
    pub(crate) fn because(
        mut self,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Error {
        self.source = Some(source.into());
        self
    }

    pub(crate) fn refused(errno: Errno, context: impl Into<String>) -> Error {
        Error::new(ErrorKind::Refused(errno), context)
    }

    /// Says what it is about: "inode 7".
    pub(crate) fn of(mut self, what: impl fmt::Display) -> Error {
        self.context = format!("{what}: {}", self.context);
        self
    }

    /// Says which record it is about, by its key.
    pub(crate) fn at(mut self, key: Vec<u8>) -> Error {
        self.at = Some(key);
        self
    }

    /// Of a listing that came to a damaged record, the name it has: behind that the listing can go on.
    pub fn damaged_name(&self) -> Option<&[u8]> {
        self.at.as_ref()?.get(8..)
    }

    /// What a system call would answer.
    pub fn errno(&self) -> Errno {
        match self.kind {
            ErrorKind::Refused(errno) | ErrorKind::Io(errno) => errno,
            ErrorKind::NoSpace => Errno::NOSPC,
            ErrorKind::Damaged => Errno::IO,
            ErrorKind::NotAVolume | ErrorKind::Input => Errno::INVAL,
            ErrorKind::Unsupported => Errno::OPNOTSUPP,
        }
    }

    /// Which kind it is.
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
    fn an_error_is_one_line_and_ends_with_its_cause() {
        let error = Error::io("reading block 7", Errno::IO);
        assert_eq!(error.kind(), ErrorKind::Io(Errno::IO));
        assert_eq!(error.to_string(), format!("reading block 7: {}", Errno::IO));
        assert!(std::error::Error::source(&error).is_some());
    }
}
