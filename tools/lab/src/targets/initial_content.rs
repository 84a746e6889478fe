//! What a new file holds.

/// What a new file holds before the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InitialContent {
    /// Nothing, not even its length: the job's writes make it longer.
    Empty,
    /// The same, with blocks allocated beyond its end.
    Reserved,
    /// A hole: the job writes it.
    Hole,
    /// Allocated blocks: the job writes them.
    Allocated,
    /// Allocated blocks, or a hole where the file system has no way to allocate.
    AllocatedIfPossible,
    /// Zeros, written.
    Zeros,
    /// Random bytes, written.
    Random,
}
