//! Why a thread gave up, in words.

use rustix::io::Errno;
use std::fmt;

/// Why a thread gave up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The error of the first I/O that failed.
    pub errno: Errno,
    /// What was being done, in words.
    pub what: String,
    /// Which of the job's files it was done to, where it was one.
    pub file: Option<u32>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.errno == Errno::ILSEQ {
            // What fio ends with when a block is wrong; the words for it are about letters.
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
