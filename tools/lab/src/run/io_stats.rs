//! The counts of one thread: plain fields, written by that thread only, merged after its end.

use crate::job::DIRECTIONS;
use crate::stats::{LatencyHistogram, RateSamples, Summary};

/// Classes of fio's depth distributions, by powers of two.
pub const DEPTH_CLASSES: usize = 7;
/// Time between two bandwidth samples, as in fio.
pub const SAMPLE_NS: u64 = 500_000_000;

/// Counts of one direction.
#[derive(Debug, Clone, Default)]
pub struct DirectionStats {
    /// Bytes transferred.
    pub bytes: u64,
    /// Completed I/Os.
    pub ios: u64,
    /// Short transfers.
    pub short: u64,
    /// Submission latency: from the creation of an I/O to its submission. Without percentiles, unless the job
    /// wants them: only one histogram is kept per I/O.
    pub slat: Summary,
    /// Completion latency: from the submission to the completion.
    pub clat: LatencyHistogram,
    /// Total latency: from the creation to the completion.
    pub lat: Summary,
    /// The histogram of `slat`, with `slat_percentiles`.
    pub slat_histogram: Option<Box<LatencyHistogram>>,
    /// The histogram of `lat`, with `lat_percentiles`.
    pub lat_histogram: Option<Box<LatencyHistogram>>,
    /// Bandwidth samples in KiB per second.
    pub bandwidth: RateSamples,
    /// Samples of I/Os per second.
    pub iops: RateSamples,
    sampled_bytes: u64,
    sampled_ios: u64,
}

impl DirectionStats {
    /// Adds the counts of another thread, or of the other direction.
    pub fn merge(&mut self, other: &Self) {
        fn add(mine: &mut Option<Box<LatencyHistogram>>, theirs: &Option<Box<LatencyHistogram>>) {
            if let Some(theirs) = theirs {
                mine.get_or_insert_default().merge(theirs);
            }
        }
        self.bytes += other.bytes;
        self.ios += other.ios;
        self.short += other.short;
        self.slat.merge(&other.slat);
        self.clat.merge(&other.clat);
        self.lat.merge(&other.lat);
        add(&mut self.slat_histogram, &other.slat_histogram);
        add(&mut self.lat_histogram, &other.lat_histogram);
        self.bandwidth.add(&other.bandwidth);
        self.iops.add(&other.iops);
    }
}

/// Counts of a thread.
#[derive(Debug, Clone, Default)]
pub struct IoStats {
    /// Reads, writes, trims.
    pub directions: [DirectionStats; DIRECTIONS],
    /// Latencies of fsync and fdatasync.
    pub sync: LatencyHistogram,
    /// Submitted I/Os.
    pub submitted: u64,
    /// I/Os, and syncs between them, by the depth at their submission.
    pub depth: [u64; DEPTH_CLASSES],
    /// Submissions by size; the first class is size 0.
    pub submit: [u64; DEPTH_CLASSES],
    /// Reaps by size.
    pub complete: [u64; DEPTH_CLASSES],
    /// With `waits_apart` the time of the loop's work, in nanoseconds.
    pub work_ns: u64,
    sampled_ns: u64,
    keeps_samples: bool,
}

/// Rates per second of each direction, since the last sample.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Rates {
    /// Bytes per second.
    pub bytes: [u64; DIRECTIONS],
    /// I/Os per second.
    pub ios: [u64; DIRECTIONS],
}

impl IoStats {
    /// Empty counts that begin at `now_ns`, with or without samples for the report.
    pub fn begin(now_ns: u64, keeps_samples: bool) -> Self {
        Self { sampled_ns: now_ns, keeps_samples, ..Self::default() }
    }

    /// Completed I/Os of all directions.
    pub fn ios(&self) -> u64 {
        self.directions.iter().map(|direction| direction.ios).sum()
    }

    /// Counts a submission of `count` I/Os, after which so many are in flight.
    #[inline]
    pub fn submitted(&mut self, count: usize, in_flight: u32) {
        self.submitted += count as u64;
        self.depth[(in_flight.max(1).ilog2() as usize).min(DEPTH_CLASSES - 1)] += count as u64;
        self.submit[batch_class(count)] += 1;
    }

    /// Counts a sync between writes, which fio submits and reaps as an I/O, but does not count as one.
    pub fn synced(&mut self) {
        self.depth[0] += 1;
        self.submit[batch_class(1)] += 1;
        self.complete[batch_class(1)] += 1;
    }

    /// Takes a bandwidth sample if one is due.
    #[inline]
    pub fn sample(&mut self, now_ns: u64) -> Option<Rates> {
        (now_ns.saturating_sub(self.sampled_ns) >= SAMPLE_NS).then(|| self.take_sample(now_ns))
    }

    #[cold]
    fn take_sample(&mut self, now_ns: u64) -> Rates {
        let seconds = (now_ns - self.sampled_ns) as f64 / 1e9;
        self.sampled_ns = now_ns;
        let mut rates = Rates::default();
        for (index, direction) in self.directions.iter_mut().enumerate() {
            let bytes = (direction.bytes - direction.sampled_bytes) as f64 / seconds;
            let ios = (direction.ios - direction.sampled_ios) as f64 / seconds;
            rates.bytes[index] = bytes as u64;
            rates.ios[index] = ios as u64;
            if self.keeps_samples && bytes > 0.0 {
                direction.bandwidth.record((bytes / 1024.0) as u64);
                direction.iops.record(ios as u64);
            }
            direction.sampled_bytes = direction.bytes;
            direction.sampled_ios = direction.ios;
        }
        rates
    }

    /// Adds another thread's counts.
    pub fn merge(&mut self, other: &Self) {
        for (mine, theirs) in self.directions.iter_mut().zip(&other.directions) {
            mine.merge(theirs);
        }
        self.sync.merge(&other.sync);
        self.submitted += other.submitted;
        self.work_ns += other.work_ns;
        let pairs = [
            (&mut self.depth, &other.depth),
            (&mut self.submit, &other.submit),
            (&mut self.complete, &other.complete),
        ];
        for (mine, theirs) in pairs {
            mine.iter_mut().zip(theirs).for_each(|(mine, theirs)| *mine += theirs);
        }
    }
}

/// The class of a batch size in fio's submit and complete distributions: 0, 1-4, 5-8, ...
#[inline]
pub fn batch_class(size: usize) -> usize {
    match size {
        0 => 0,
        1..=4 => 1,
        5..=8 => 2,
        9..=16 => 3,
        17..=32 => 4,
        33..=64 => 5,
        _ => 6,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;

    /// Counts blocks of 4 KiB.
    fn count(stats: &mut IoStats, blocks: [u64; DIRECTIONS]) {
        for (direction, blocks) in stats.directions.iter_mut().zip(blocks) {
            direction.ios += blocks;
            direction.bytes += blocks * 4096;
        }
    }

    #[test]
    fn a_sample_is_the_rate_since_the_last_sample() {
        let mut stats = IoStats::begin(7 * SECOND_NS, true);
        count(&mut stats, [1000, 0, 0]);
        assert_eq!(stats.sample(7 * SECOND_NS + SAMPLE_NS - 1), None);
        let rates = Rates { bytes: [2000 * 4096, 0, 0], ios: [2000, 0, 0] };
        assert_eq!(stats.sample(7 * SECOND_NS + SAMPLE_NS), Some(rates));
        count(&mut stats, [300, 600, 0]);
        assert_eq!(stats.sample(8 * SECOND_NS - 1), None, "half a second after the last sample");
        // A delayed thread takes one long sample.
        let rates = Rates { bytes: [100 * 4096, 200 * 4096, 0], ios: [100, 200, 0] };
        assert_eq!(stats.sample(10 * SECOND_NS + SAMPLE_NS), Some(rates));
        assert_eq!(stats.sample(10 * SECOND_NS + SAMPLE_NS), None);

        let [read, write, _] = &stats.directions;
        assert_eq!((read.iops.count(), read.iops.min(), read.iops.max()), (2, 100, 2000));
        assert_eq!((read.bandwidth.min(), read.bandwidth.max()), (400, 8000), "in KiB");
        // There is no sample of a time without I/O in this direction.
        assert_eq!((write.iops.count(), write.iops.mean()), (1, 200.0));
        assert_eq!((write.bandwidth.count(), write.bandwidth.mean()), (1, 800.0));
    }

    /// `io_u_mark_depth` and `io_u_mark_submit` of fio.
    #[test]
    fn submissions_are_counted_by_depth_and_size() {
        let mut stats = IoStats::default();
        for (count, in_flight) in [(1, 1), (1, 2), (2, 3), (4, 4), (5, 31), (33, 63), (65, 64)] {
            stats.submitted(count, in_flight);
        }
        assert_eq!((stats.submitted, stats.depth), (111, [1, 3, 4, 0, 5, 33, 65]));
        assert_eq!(stats.submit, [0, 4, 1, 0, 0, 1, 1]);
        stats.synced();
        assert_eq!((stats.submitted, stats.depth[0], stats.submit[1]), (111, 2, 5));
        assert_eq!(stats.complete, [0, 1, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn a_job_without_samples_still_has_rates() {
        let mut stats = IoStats::begin(0, false);
        count(&mut stats, [0, 0, 50]);
        let rates = Rates { bytes: [0, 0, 50 * 4096], ios: [0, 0, 50] };
        assert_eq!(stats.sample(SECOND_NS), Some(rates));
        assert_eq!(stats.directions.each_ref().map(|way| way.iops.count()), [0; DIRECTIONS]);
    }
}
