//! fio's depth distributions as percentages: of I/Os by the depth at their submission, and of submissions and reaps by size.

use crate::run::{DEPTH_CLASSES, IoStats};

/// The names of the classes of depths: the least of each.
pub const DEPTHS: [&str; DEPTH_CLASSES] = ["1", "2", "4", "8", "16", "32", ">=64"];
/// The names of the classes of sizes: the greatest of each, but for the last.
pub const BATCHES: [&str; DEPTH_CLASSES] = ["0", "4", "8", "16", "32", "64", ">=64"];

/// Percentages by class.
#[derive(Debug)]
pub struct DepthShares {
    /// Of I/Os. As by fio, syncs between writes are in a class, but not in the whole: a job that syncs after each write has 200 %.
    pub levels: [f64; DEPTH_CLASSES],
    /// Of submissions.
    pub submits: [f64; DEPTH_CLASSES],
    /// Of reaps.
    pub completes: [f64; DEPTH_CLASSES],
}

impl DepthShares {
    /// The distributions of these counts.
    pub fn new(stats: &IoStats) -> Self {
        // fio's least percentage of a class that is not empty.
        const LEAST: f64 = 0.1;
        let shares = |counts: [u64; DEPTH_CLASSES], whole| {
            counts.map(|count| percentage(count, whole, LEAST))
        };
        Self {
            levels: shares(stats.depth, stats.submitted),
            submits: shares(stats.submit, stats.submit.iter().sum()),
            completes: shares(stats.complete, stats.complete.iter().sum()),
        }
    }
}

/// The percentage of `count` in `whole`; at least `least` unless it is 0, so that a class is seen that is not empty.
pub(super) fn percentage(count: u64, whole: u64, least: f64) -> f64 {
    match (count, whole) {
        (0, _) | (_, 0) => 0.0,
        _ => (count as f64 * 100.0 / whole as f64).max(least),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `stat_calc_dist` of fio.
    #[test]
    fn a_class_that_is_not_empty_is_seen() {
        let mut stats = IoStats::default();
        for _ in 0..9_999 {
            stats.submitted(1, 32);
        }
        stats.submitted(1, 1);
        stats.complete = [1, 9_999, 0, 0, 0, 0, 0];
        let shares = DepthShares::new(&stats);
        assert_eq!(shares.levels, [0.1, 0.0, 0.0, 0.0, 0.0, 99.99, 0.0]);
        assert_eq!(shares.submits, [0.0, 100.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
        assert_eq!(shares.completes, [0.1, 99.99, 0.0, 0.0, 0.0, 0.0, 0.0]);
    }

    #[test]
    fn syncs_are_in_a_class_but_not_in_the_whole() {
        let mut stats = IoStats::default();
        for _ in 0..100 {
            stats.submitted(1, 1);
            stats.synced();
        }
        let shares = DepthShares::new(&stats);
        assert_eq!((shares.levels[0], shares.submits[1]), (200.0, 100.0));
    }

    #[test]
    fn nothing_has_no_shares() {
        let DepthShares { levels, submits, completes } = DepthShares::new(&IoStats::default());
        assert_eq!([levels, submits, completes], [[0.0; DEPTH_CLASSES]; 3]);
    }
}
