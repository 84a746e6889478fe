//! The result of one thread of a run.

use super::loop_result::LoopResult;
use super::plan::ThreadPlan;
use super::steady::SteadyWindow;
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
        Self::so_far(plan, LoopResult::default(), 0)
    }

    /// The result of a thread that is running.
    pub(super) fn so_far(plan: &ThreadPlan, result: LoopResult, elapsed_ns: u64) -> Self {
        Self { job: plan.job, group: plan.group, elapsed_ns, result, steady: None }
    }
}
