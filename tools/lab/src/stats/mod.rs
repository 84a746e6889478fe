//! Figures out of many numbers: latencies of I/Os, and verdicts out of pairs of runs.

mod bootstrap;
mod latency;
mod samples;

pub use bootstrap::{Interval, MIN_VALUES, median, median_interval};
pub use latency::{Latency, Spread};
pub use samples::Samples;
