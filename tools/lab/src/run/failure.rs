//! The failure of a thread.

use crate::LOST_TARGET;
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
    /// The device is full or gone, or the file has become shorter: no fault of the job.
    pub is_lost: bool,
}

impl Failure {
    /// A failure with this error.
    pub fn new(errno: Errno, what: String, file: Option<u32>) -> Self {
        Self { errno, what, file, is_lost: LOST_TARGET.contains(&errno) }
    }

    /// Whether the target is gone, or is not as long as it was.
    pub fn target_is_gone(&self) -> bool {
        self.is_lost && !matches!(self.errno, Errno::NOSPC | Errno::DQUOT)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.errno == Errno::ILSEQ {
            // fio's error for a wrong block. The system's text for EILSEQ is about characters.
            return write!(f, "{} (EILSEQ)", self.what);
        }
        write!(f, "{}: {}", self.what, self.errno)?;
        match self.errno {
            _ if self.file.is_none() => Ok(()),
            Errno::NOSPC => f.write_str(" (the target is full)"),
            Errno::NODEV | Errno::NXIO => f.write_str(" (the device is gone)"),
            _ if self.is_lost => f.write_str(" (the target has become shorter, or is gone)"),
            _ => Ok(()),
        }
    }
}
