//! fio's latency classes: the percentage of I/Os in each class. A class is named by its upper end in
//! nanoseconds, microseconds or milliseconds.

use super::depth_shares::percentage;
use crate::run::IoStats;

/// The classes up to 1000 of a unit: name, upper end.
pub const CLASSES: [(&str, u64); 10] = [
    ("2", 2),
    ("4", 4),
    ("10", 10),
    ("20", 20),
    ("50", 50),
    ("100", 100),
    ("250", 250),
    ("500", 500),
    ("750", 750),
    ("1000", 1000),
];

/// Percentages of I/Os by class. As by fio, a class that is not empty has at least 0.01.
#[derive(Debug, Default)]
pub struct LatencyShares {
    /// Below 1000 ns.
    pub ns: [f64; 10],
    /// Below 1000 us.
    pub us: [f64; 10],
    /// Below 1000 ms, then below 2000 ms, then the rest.
    pub ms: [f64; 12],
    /// All below 1000 ns together.
    pub below_us: f64,
}

/// The completion latencies of all directions, by class.
pub fn distribution(stats: &IoStats) -> LatencyShares {
    const LEAST: f64 = 0.01;
    let (mut nanoseconds, mut microseconds, mut milliseconds) = ([0; 10], [0; 10], [0; 12]);
    for direction in &stats.directions {
        for (ns, count) in direction.clat.buckets() {
            let class = |value: u64| CLASSES.iter().position(|(_, end)| value < *end);
            if let Some(at) = class(ns) {
                nanoseconds[at] += count;
            } else if let Some(at) = class(ns / 1000) {
                microseconds[at] += count;
            } else {
                let ms = ns / 1_000_000;
                milliseconds[class(ms).unwrap_or(if ms < 2000 { 10 } else { 11 })] += count;
            }
        }
    }
    let whole = stats.submitted;
    let share = |count| percentage(count, whole, LEAST);
    LatencyShares {
        ns: nanoseconds.map(share),
        us: microseconds.map(share),
        ms: milliseconds.map(share),
        below_us: percentage(nanoseconds.iter().sum(), whole, 0.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `io_u_mark_latency` and `stat_calc_lat` of fio.
    #[test]
    fn each_class_ends_below_its_name_and_is_seen_if_it_is_not_empty() {
        let mut stats = IoStats::default();
        stats.submitted(100_000, 1);
        let mut record = |ns: u64, times: u32| {
            (0..times).for_each(|_| stats.directions[0].clat.record(ns));
        };
        record(999, 1);
        record(1_000, 39_999);
        record(60_000, 60_000);
        record(3_000_000_000, 1);
        let shares = distribution(&stats);
        assert_eq!((shares.ns[9], shares.us[0], shares.us[5]), (0.01, 39.999, 60.0));
        assert_eq!((shares.ms[11], shares.below_us), (0.01, 0.001));
    }
}
