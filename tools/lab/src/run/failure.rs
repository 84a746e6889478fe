//! The failure of a thread.

use std::fmt;

use uringfs::Errno;

/// The failure that ended a thread, or one wrong block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The error of the first I/O that failed.
    pub errno: Errno,
    /// The operation that failed, in words.
    pub what: String,
    /// Index of the file among the job's files, if it concerns a file.
    pub file: Option<u32>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.errno == Errno::ILSEQ {
            // fio's error for a wrong block. The system's text for EILSEQ is about characters.
            return write!(f, "{} (EILSEQ)", self.what);
        }
        write!(f, "{}: {}", self.what, self.errno)?;
        match self.errno {
            Errno::NOSPC => f.write_str(" (the target is full)"),
            Errno::NODEV | Errno::NXIO => f.write_str(" (the device is gone)"),
            _ => Ok(()),
        }
    }
}
