//! The result of a thread's loop.

use super::failure::Failure;
use super::io_stats::IoStats;
use super::usage::Usage;
use crate::engine::EngineReport;
use crate::job::DIRECTIONS;

/// The result of a thread's loop, or of a part of it.
#[derive(Debug, Clone, Default)]
pub struct LoopResult {
    /// Counts since the ramp.
    pub stats: IoStats,
    /// CPU time, switches and faults since the ramp.
    pub usage: Usage,
    /// The end of the ramp: monotonic clock in nanoseconds.
    pub started_ns: u64,
    /// The loop ended before its ramp: the figures are of the ramp.
    pub in_ramp: bool,
    /// Time since the ramp.
    pub runtime_ns: u64,
    /// The time of each direction. The time of reading back does not count for writes and trims. As with fio, a job
    /// that does not read has reads only while it reads back.
    pub direction_ns: [u64; DIRECTIONS],
    /// The engine's report since the ramp.
    pub engine: EngineReport,
    /// The depth that `latency_target` has found, or at which the run ended.
    pub found_depth: Option<u32>,
    /// The failure that ended the loop early, or that blocks were wrong.
    pub failure: Option<Failure>,
    /// The first wrong blocks.
    pub wrong_blocks: Vec<Failure>,
}
