//! What one thread of a run did.

use super::io_loop::Drove;
use super::plan::ThreadPlan;
use super::tally::Tally;
use super::usage::Usage;
use crate::engine::EngineReport;

/// What one thread did.
#[derive(Debug)]
pub struct ThreadResult {
    /// Which job of the set.
    pub job: usize,
    /// Its reporting group.
    pub group: u32,
    /// Since its batch began, ramp and delay included.
    pub elapsed_ns: u64,
    /// Its figures.
    pub drove: Drove,
}

impl ThreadResult {
    /// Of a thread that was never started.
    pub(super) fn of_nothing(plan: &ThreadPlan) -> Self {
        let drove = Drove {
            tally: Tally::default(),
            usage: Usage::default(),
            started_ns: 0,
            runtime_ns: 0,
            direction_ns: [0; 2],
            engine: EngineReport::default(),
            failure: None,
            wrong_blocks: Vec::new(),
        };
        Self { job: plan.job, group: plan.group, elapsed_ns: 0, drove }
    }
}
