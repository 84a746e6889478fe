//! The result of one thread of a run.

use super::io_loop::LoopResult;
use super::io_stats::IoStats;
use super::plan::ThreadPlan;
use super::steady::SteadyWindow;
use super::usage::Usage;
use crate::engine::EngineReport;
use std::sync::Arc;

/// The result of one thread.
#[derive(Debug)]
pub struct ThreadResult {
    /// Index of the job in the set.
    pub job: usize,
    /// The reporting group.
    pub group: u32,
    /// Time since the beginning of the batch, ramp and delay included.
    pub elapsed_ns: u64,
    /// The result of its loop.
    pub result: LoopResult,
    /// The rates by which `steadystate` judges it; threads of a group share them.
    pub steady: Option<Arc<SteadyWindow>>,
}

impl ThreadResult {
    /// The result of a thread that was never started.
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
        Self { job: plan.job, group: plan.group, elapsed_ns: 0, result, steady: None }
    }
}
