//! Statistics: latency histograms, rate samples, medians and ratios with intervals, verdicts.

mod bootstrap;
mod latency;
mod ratio;
mod samples;
mod verdict;

pub use bootstrap::{MIN_VALUES, MedianInterval, median, median_interval};
pub use latency::{LatencyHistogram, Summary};
pub use ratio::{MIN_PAIRS, RatioInterval, Stopping, pairs_to_find, sign_test};
pub use samples::RateSamples;
pub use verdict::Verdict;
