//! A file that a run creates, and what it has before its first I/O.

use crate::job::Fallocate;
use crate::targets::InitialContent;

/// A file that does not exist yet.
#[derive(Debug, Default)]
pub(super) struct FileToCreate {
    /// The first job that uses it.
    pub(super) job: String,
    pub(super) size: u64,
    pub(super) read: bool,
    pub(super) zeros: bool,
    pub(super) space: Option<Fallocate>,
    /// Whether a write past its end extends it.
    pub(super) grows: bool,
}

impl FileToCreate {
    /// Its content before the run.
    pub(super) fn content(&self) -> InitialContent {
        match (self.space, self.grows) {
            _ if self.read && self.zeros => InitialContent::Zeros,
            _ if self.read => InitialContent::Random,
            (Some(Fallocate::Posix), _) => InitialContent::Allocated,
            (Some(Fallocate::Native), _) => InitialContent::AllocatedIfPossible,
            (Some(Fallocate::Keep), true) => InitialContent::Reserved,
            (Some(Fallocate::Keep), false) => InitialContent::AllocatedIfPossible,
            (Some(Fallocate::None) | None, true) => InitialContent::Empty,
            (Some(Fallocate::None | Fallocate::Truncate) | None, _) => InitialContent::Hole,
        }
    }
}
