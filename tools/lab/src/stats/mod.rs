//! Figures out of many numbers: latencies of I/Os, and verdicts out of pairs of runs.

mod bootstrap;
mod latency;
mod samples;

pub use bootstrap::{MIN_VALUES, MedianInterval, median, median_interval};
pub use latency::{LatencyHistogram, Summary};
pub use samples::RateSamples;
