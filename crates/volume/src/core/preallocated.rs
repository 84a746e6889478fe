//! Blocks that are preallocated for the catalog; a commit adds them to it.

use crate::blocks::Run;

/// Blocks that are allocated for the catalog and not yet part of it.
#[derive(Default)]
pub(crate) struct Preallocated {
    /// For the next commit.
    pub(super) runs: Vec<Run>,
    /// Taken by the commit in progress.
    in_commit: Vec<Run>,
}

impl Preallocated {
    /// The number of blocks.
    pub(crate) fn blocks(&self) -> u64 {
        self.runs.iter().chain(&self.in_commit).map(|run| run.length).sum()
    }

    /// Takes the runs for a commit. [`Self::end_commit`] ends it.
    pub(crate) fn begin_commit(&mut self) -> Vec<Run> {
        self.in_commit = std::mem::take(&mut self.runs);
        self.in_commit.clone()
    }

    /// The catalog counts the runs as its own now.
    pub(crate) fn end_commit(&mut self) {
        self.in_commit.clear();
    }

    /// The number of runs.
    pub(super) fn run_count(&self) -> usize {
        self.runs.len() + self.in_commit.len()
    }

    pub(super) fn push(&mut self, run: Run) {
        match self.runs.last_mut() {
            Some(last) if last.end() == run.start => last.length += run.length,
            _ => self.runs.push(run),
        }
    }
}
