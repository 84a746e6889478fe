//! The content of a new file.

/// The content of a new file before the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InitialContent {
    /// Length 0: the job's writes extend it.
    Empty,
    /// Length 0, with blocks allocated beyond the end.
    Reserved,
    /// A hole of the full length.
    Hole,
    /// Allocated, unwritten blocks.
    Allocated,
    /// Allocated blocks, or a hole if the file system cannot allocate.
    AllocatedIfPossible,
    /// Written zeros.
    Zeros,
    /// Written random bytes.
    Random,
}
