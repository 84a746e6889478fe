//! What one thread of a run did.

use super::io_loop::LoopResult;
use super::io_stats::IoStats;
use super::plan::ThreadPlan;
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
    pub result: LoopResult,
}

impl ThreadResult {
    /// Of a thread that was never started.
    pub(super) fn not_started(plan: &ThreadPlan) -> Self {
        let result = LoopResult {
            stats: IoStats::default(),
            usage: Usage::default(),
            started_ns: 0,
            runtime_ns: 0,
            direction_ns: [0; 2],
            engine: EngineReport::default(),
            failure: None,
            wrong_blocks: Vec::new(),
        };
        Self { job: plan.job, group: plan.group, elapsed_ns: 0, result }
    }
}
