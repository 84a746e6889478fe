//! What one thread counts while it runs. Plain fields, written by that thread alone and merged
//! when it has ended.

use crate::stats::{LatencyHistogram, RateSamples, Summary};

/// Classes of fio's depth distributions: how far up the powers of two.
pub const DEPTH_CLASSES: usize = 7;
/// Time between two bandwidth samples, as fio's.
pub const SAMPLE_NS: u64 = 500_000_000;

/// Counts of one direction.
#[derive(Debug, Clone, Default)]
pub struct DirectionStats {
    /// Bytes moved.
    pub bytes: u64,
    /// I/Os done.
    pub ios: u64,
    /// I/Os that moved less than asked at first.
    pub short: u64,
    /// Time from making an I/O to having handed it over. Without percentiles, like fio's: only
    /// one histogram is kept an I/O.
    pub slat: Summary,
    /// Time from there to its completion.
    pub clat: LatencyHistogram,
    /// Both together.
    pub lat: Summary,
    /// Bandwidth samples in KiB a second.
    pub bandwidth: RateSamples,
    /// I/Os a second, sampled likewise.
    pub iops: RateSamples,
    sampled_bytes: u64,
    sampled_ios: u64,
}

/// Counts of a thread.
#[derive(Debug, Clone, Default)]
pub struct IoStats {
    /// Of reads and of writes.
    pub directions: [DirectionStats; 2],
    /// Times of fsync and fdatasync.
    pub sync: LatencyHistogram,
    /// I/Os by the depth they were issued at.
    pub depth: [u64; DEPTH_CLASSES],
    /// Hand-overs by size; the first class is none.
    pub submit: [u64; DEPTH_CLASSES],
    /// Reaps by size.
    pub complete: [u64; DEPTH_CLASSES],
    sampled_ns: u64,
    keeps_samples: bool,
}

/// Bytes and I/Os a second of reads and of writes, since the sample before.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Rates {
    /// Bytes.
    pub bytes: [u64; 2],
    /// I/Os.
    pub ios: [u64; 2],
}

impl IoStats {
    /// Begins to count at `now`, with or without samples in the report.
    pub fn begin(now_ns: u64, keeps_samples: bool) -> Self {
        Self { sampled_ns: now_ns, keeps_samples, ..Self::default() }
    }

    /// I/Os of both directions.
    pub fn ios(&self) -> u64 {
        self.directions.iter().map(|direction| direction.ios).sum()
    }

    /// Notes that `count` I/Os were issued while `in_flight` were.
    #[inline]
    pub fn issued(&mut self, count: u64, in_flight: u32) {
        self.depth[(in_flight.max(1).ilog2() as usize).min(DEPTH_CLASSES - 1)] += count;
    }

    /// Takes a bandwidth sample if it is time for one.
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
            mine.bytes += theirs.bytes;
            mine.ios += theirs.ios;
            mine.short += theirs.short;
            mine.slat.merge(&theirs.slat);
            mine.clat.merge(&theirs.clat);
            mine.lat.merge(&theirs.lat);
            mine.bandwidth.add(&theirs.bandwidth);
            mine.iops.add(&theirs.iops);
        }
        self.sync.merge(&other.sync);
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

/// The class of a batch's size in fio's submit and complete distributions: 0, 1-4, 5-8, ...
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
    fn count(stats: &mut IoStats, blocks: [u64; 2]) {
        for (direction, blocks) in stats.directions.iter_mut().zip(blocks) {
            direction.ios += blocks;
            direction.bytes += blocks * 4096;
        }
    }

    #[test]
    fn a_sample_is_what_was_done_a_second_since_the_one_before() {
        let mut stats = IoStats::begin(7 * SECOND_NS, true);
        count(&mut stats, [1000, 0]);
        assert_eq!(stats.sample(7 * SECOND_NS + SAMPLE_NS - 1), None);
        let rates = Rates { bytes: [2000 * 4096, 0], ios: [2000, 0] };
        assert_eq!(stats.sample(7 * SECOND_NS + SAMPLE_NS), Some(rates));
        count(&mut stats, [300, 600]);
        assert_eq!(stats.sample(8 * SECOND_NS - 1), None, "half a second from that one on");
        // A thread that was held up makes one long sample of it.
        let rates = Rates { bytes: [100 * 4096, 200 * 4096], ios: [100, 200] };
        assert_eq!(stats.sample(10 * SECOND_NS + SAMPLE_NS), Some(rates));
        assert_eq!(stats.sample(10 * SECOND_NS + SAMPLE_NS), None);

        let [read, write] = &stats.directions;
        assert_eq!((read.iops.count(), read.iops.min(), read.iops.max()), (2, 100, 2000));
        assert_eq!((read.bandwidth.min(), read.bandwidth.max()), (400, 8000), "in KiB");
        // None of a time in which nothing was done in this direction.
        assert_eq!((write.iops.count(), write.iops.mean()), (1, 200.0));
        assert_eq!((write.bandwidth.count(), write.bandwidth.mean()), (1, 800.0));
    }

    #[test]
    fn a_job_that_keeps_no_samples_still_tells_how_fast_it_is() {
        let mut stats = IoStats::begin(0, false);
        count(&mut stats, [0, 50]);
        let rates = Rates { bytes: [0, 50 * 4096], ios: [0, 50] };
        assert_eq!(stats.sample(SECOND_NS), Some(rates));
        assert_eq!(stats.directions.each_ref().map(|way| way.iops.count()), [0, 0]);
    }
}
