//! fio's bins of latencies, for `json+`: below 128 ns each nanosecond is one, and above that each power of
//! two has 64. A bin is named by its middle. The buckets of our histograms are inside of these.

use crate::stats::LatencyHistogram;
use std::collections::BTreeMap;

/// Bins of each power of two.
const BINS: u32 = 64;
/// fio has 29 groups of bins; the last bin has all longer latencies, too.
const MAX_SHIFT: u32 = 27;

/// The bins that are not empty: middle in nanoseconds, count.
pub fn bins(histogram: &LatencyHistogram) -> BTreeMap<u64, u64> {
    let mut bins = BTreeMap::new();
    for (ns, count) in histogram.buckets() {
        *bins.entry(middle(ns)).or_default() += count;
    }
    bins
}

/// The middle of the bin of a latency.
fn middle(ns: u64) -> u64 {
    let last = ((u64::from(BINS) * 2) << MAX_SHIFT) - 1;
    let ns = ns.min(last);
    // The bits of the number of a bin, of a group from 128 ns on: a leading one, then log2 of 64.
    let shift = (u64::BITS - ns.leading_zeros()).saturating_sub(BINS.ilog2() + 1);
    ((ns >> shift) << shift) + (1 << shift) / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bins_are_those_of_fio() {
        // From fio's manual, and from its formulas at the bounds.
        for (ns, expected) in [
            (0, 0),
            (1, 1),
            (127, 127),
            (128, 129),
            (129, 129),
            (130, 131),
            (255, 255),
            (256, 258),
            (87_040, 87_552),
            (88_063, 87_552),
            (88_064, 88_576),
            (105_984, 105_984),
            (3_600_000_000_000, (127 << 27) + (1 << 26)),
        ] {
            assert_eq!(middle(ns), expected, "{ns}");
        }
    }

    #[test]
    fn no_latency_is_lost() {
        let mut histogram = LatencyHistogram::default();
        (0..100_000u64).for_each(|n| histogram.record(n * n));
        let bins = bins(&histogram);
        assert_eq!(bins.values().sum::<u64>(), 100_000);
        // A bucket does not lie in two bins.
        let mut exact = BTreeMap::new();
        (0..100_000u64).for_each(|n| *exact.entry(middle(n * n)).or_default() += 1);
        assert_eq!(bins, exact);
    }
}
