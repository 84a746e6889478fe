//! fio's latency classes: the percentage of I/Os in each class. A class is named by its upper end in
//! nanoseconds, microseconds or milliseconds.

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

/// Percentages of I/Os by class.
#[derive(Debug, Default)]
pub struct LatencyShares {
    /// Below 1000 ns.
    pub ns: [f64; 10],
    /// Below 1000 us.
    pub us: [f64; 10],
    /// Below 1000 ms, then below 2000 ms, then the rest.
    pub ms: [f64; 12],
}

/// The completion latencies of both directions, by class.
pub fn distribution(stats: &IoStats) -> LatencyShares {
    let mut shares = LatencyShares::default();
    let total = stats.ios().max(1) as f64;
    for direction in &stats.directions {
        for (ns, count) in direction.clat.buckets() {
            let share = count as f64 * 100.0 / total;
            let class = |value: u64| CLASSES.iter().position(|(_, end)| value < *end);
            if let Some(at) = class(ns) {
                shares.ns[at] += share;
            } else if let Some(at) = class(ns / 1000) {
                shares.us[at] += share;
            } else {
                let ms = ns / 1_000_000;
                shares.ms[class(ms).unwrap_or(if ms < 2000 { 10 } else { 11 })] += share;
            }
        }
    }
    shares
}
