//! Statistics: latency histograms, rate samples, medians and ratios with intervals, verdicts.

mod latency;
mod median;
mod ratio;
mod samples;
mod verdict;

pub use latency::{LatencyHistogram, Summary};
pub use median::{MedianInterval, median, median_interval};
pub use ratio::{
    MIN_PAIRS, RatioInterval, Stopping, min_runs, pairs_to_find, pooled_deviation, sign_test,
    smallest_found,
};
pub use samples::RateSamples;
pub use verdict::Verdict;
