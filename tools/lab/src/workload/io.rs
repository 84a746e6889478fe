//! One I/O of a workload, the part of a file that it works on, and the length of a pass.

use crate::job::IoOp;

/// The next I/O to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NextIo {
    /// Index of the file among the job's files.
    pub file: u32,
    /// Read, write or trim.
    pub op: IoOp,
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub length: u32,
}

/// The part of one file that the job works on, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Region {
    /// First byte.
    pub begin: u64,
    /// Length in bytes.
    pub length: u64,
}

/// The length of a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Amount {
    /// No end: the clock ends the run.
    Endless,
    /// A number of bytes.
    Bytes(u64),
}
