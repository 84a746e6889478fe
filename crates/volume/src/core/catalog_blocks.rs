//! Blocks on their way to the catalog: ordered for it, and handed over by a commit.

use crate::blocks::Run;

/// Blocks on their way to the catalog.
#[derive(Default)]
pub(crate) struct Preallocated {
    /// The next commit hands them over.
    pub(super) runs: Vec<Run>,
    /// The commit under way hands these over.
    in_commit: Vec<Run>,
}

impl Preallocated {
    /// How many there are.
    pub(crate) fn blocks(&self) -> u64 {
        self.runs.iter().chain(&self.in_commit).map(|run| run.length).sum()
    }

    /// What a commit hands over. It ends with [`Self::end_commit`].
    pub(crate) fn begin_commit(&mut self) -> Vec<Run> {
        self.in_commit = std::mem::take(&mut self.runs);
        self.in_commit.clone()
    }

    /// The catalog counts them as its own.
    pub(crate) fn end_commit(&mut self) {
        self.in_commit.clear();
    }

    /// In how many pieces they lie.
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
