//! Statistics: latency histograms, rate samples, medians with intervals.

mod bootstrap;
mod latency;
mod samples;

pub use bootstrap::{MIN_VALUES, MedianInterval, median, median_interval};
pub use latency::{LatencyHistogram, Summary};
pub use samples::RateSamples;
