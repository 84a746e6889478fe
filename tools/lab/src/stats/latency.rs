//! Latencies in nanoseconds: minimum, maximum, mean, deviation, and a histogram.

use hdrhistogram::Histogram;

/// Latencies above an hour are recorded as an hour.
const MAX_NS: u64 = 3_600_000_000_000;

/// Minimum, maximum, mean and deviation of a stream of numbers.
#[derive(Debug, Clone, Copy, Default)]
pub struct Summary {
    count: u64,
    min: u64,
    max: u64,
    sum: f64,
    squares: f64,
}

impl Summary {
    /// Adds one number.
    #[inline]
    pub fn record(&mut self, value: u64) {
        if self.count == 0 || value < self.min {
            self.min = value;
        }
        if value > self.max {
            self.max = value;
        }
        self.count += 1;
        let value = value as f64;
        self.sum += value;
        self.squares += value * value;
    }

    /// Adds the values of another summary.
    pub fn merge(&mut self, other: &Self) {
        if other.count == 0 {
            return;
        }
        self.min = if self.count == 0 { other.min } else { self.min.min(other.min) };
        self.max = self.max.max(other.max);
        self.count += other.count;
        self.sum += other.sum;
        self.squares += other.squares;
    }

    /// The number of values.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The minimum; 0 without values.
    pub fn min(&self) -> u64 {
        self.min
    }

    /// The maximum; 0 without values.
    pub fn max(&self) -> u64 {
        self.max
    }

    /// The sum.
    pub fn sum(&self) -> f64 {
        self.sum
    }

    /// The mean; 0 without values.
    pub fn mean(&self) -> f64 {
        if self.count == 0 { 0.0 } else { self.sum / self.count as f64 }
    }

    /// The sample standard deviation; 0 with fewer than two values.
    pub fn deviation(&self) -> f64 {
        if self.count < 2 {
            return 0.0;
        }
        let n = self.count as f64;
        ((self.squares - self.sum * self.sum / n) / (n - 1.0)).max(0.0).sqrt()
    }
}

/// Latencies with percentiles. With two significant digits, the part of the histogram that a run
/// touches stays in the first-level cache; fio's buckets are coarser.
#[derive(Debug, Clone)]
pub struct LatencyHistogram {
    summary: Summary,
    histogram: Histogram<u64>,
}

impl Default for LatencyHistogram {
    fn default() -> Self {
        let histogram = Histogram::new_with_bounds(1, MAX_NS, 2);
        Self { summary: Summary::default(), histogram: histogram.expect("constant bounds") }
    }
}

impl LatencyHistogram {
    /// Adds one latency.
    #[inline]
    pub fn record(&mut self, ns: u64) {
        self.summary.record(ns);
        self.histogram.saturating_record(ns);
    }

    /// Adds the latencies of another histogram.
    pub fn merge(&mut self, other: &Self) {
        self.summary.merge(&other.summary);
        self.histogram.add(&other.histogram).expect("histograms of the same bounds");
    }

    /// Minimum, maximum, mean and deviation.
    pub fn summary(&self) -> &Summary {
        &self.summary
    }

    /// The latency that `percent` of the I/Os did not exceed, in nanoseconds.
    pub fn percentile(&self, percent: f64) -> u64 {
        if self.summary.count == 0 {
            return 0;
        }
        self.histogram.value_at_percentile(percent).clamp(self.summary.min, self.summary.max)
    }

    /// The buckets that are not empty: upper end in nanoseconds, count.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.histogram.iter_recorded().map(|step| (step.value_iterated_to(), step.count_at_value()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_known_sequence_has_known_figures() {
        let mut latency = LatencyHistogram::default();
        (1..=1000).for_each(|ns| latency.record(ns));
        let summary = latency.summary();
        assert_eq!((summary.count(), summary.min(), summary.max()), (1000, 1, 1000));
        assert_eq!(summary.mean(), 500.5);
        assert!((summary.deviation() - 288.819).abs() < 0.001);
        for (percent, expected) in [(50.0, 500.0), (99.0, 990.0), (99.9, 999.0)] {
            let value = latency.percentile(percent) as f64;
            assert!((value / expected - 1.0).abs() < 0.01, "{percent}: {value}");
        }
    }

    #[test]
    fn merging_equals_recording_all_in_one() {
        let (mut one, mut two, mut all) =
            (LatencyHistogram::default(), LatencyHistogram::default(), LatencyHistogram::default());
        for ns in 0..100u64 {
            if ns % 3 == 0 {
                one.record(ns * 7)
            } else {
                two.record(ns * 7)
            }
            all.record(ns * 7);
        }
        one.merge(&two);
        one.merge(&LatencyHistogram::default());
        assert_eq!(one.summary().min(), all.summary().min());
        assert_eq!(one.summary().mean(), all.summary().mean());
        assert_eq!(one.percentile(75.0), all.percentile(75.0));
    }

    #[test]
    fn an_empty_histogram_is_all_zeros() {
        let latency = LatencyHistogram::default();
        assert_eq!((latency.summary().min(), latency.percentile(99.0)), (0, 0));
        assert_eq!((latency.summary().mean(), latency.summary().deviation()), (0.0, 0.0));
    }

    /// Nanoseconds from one to a quarter of an hour, each order of magnitude equally likely.
    fn time() -> impl Strategy<Value = u64> {
        (0..40u32, 0.0..1.0f64)
            .prop_map(|(power, more)| ((1u64 << power) as f64 * (1.0 + more)) as u64)
    }

    proptest! {
        #[test]
        fn percentiles_are_those_of_the_sorted_times_within_1_percent(
            times in proptest::collection::vec(time(), 1..400),
            percents in proptest::collection::vec(0.01..=100.0f64, 1..20),
        ) {
            let mut latency = LatencyHistogram::default();
            times.iter().for_each(|ns| latency.record(*ns));
            let mut sorted = times;
            sorted.sort_unstable();
            for percent in percents {
                // The nearest rank. A rank that is an integer but for rounding may be either neighbour.
                let rank = percent / 100.0 * sorted.len() as f64;
                let at = |rank: f64| sorted[(rank.ceil() as usize).clamp(1, sorted.len()) - 1] as f64;
                let (least, most) = (at(rank - 1e-6), at(rank + 1e-6));
                let value = latency.percentile(percent) as f64;
                let fits = value >= least * 0.99 - 1.0 && value <= most * 1.01 + 1.0;
                prop_assert!(fits, "{percent}: {value} is not {least} to {most}");
            }
        }

        #[test]
        fn merged_threads_equal_one_thread(
            times in proptest::collection::vec((time(), 0..3usize), 1..200),
        ) {
            let mut all = LatencyHistogram::default();
            let mut threads = [LatencyHistogram::default(), LatencyHistogram::default(), LatencyHistogram::default()];
            for (ns, thread) in times {
                all.record(ns);
                threads[thread].record(ns);
            }
            let mut sum = LatencyHistogram::default();
            threads.iter().for_each(|one| sum.merge(one));
            prop_assert!(sum.buckets().eq(all.buckets()));
            let figures = |one: &LatencyHistogram| (one.summary().count(), one.summary().min(), one.summary().max());
            prop_assert_eq!(figures(&sum), figures(&all));
            let near = |a: f64, b: f64| (a - b).abs() <= 1e-6 * b.abs() + 1e-6;
            prop_assert!(near(sum.summary().mean(), all.summary().mean()));
        }
    }
}
