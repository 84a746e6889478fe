//! What one thread counts while it runs. Plain fields, written by that thread alone and merged
//! when it has ended.

use crate::stats::{Latency, Spread};

/// Classes of fio's depth distributions: how far up the powers of two.
pub const DEPTH_CLASSES: usize = 7;
/// Time between two bandwidth samples, as fio's.
pub const SAMPLE_NS: u64 = 500_000_000;

/// Counts of one direction.
#[derive(Debug, Clone, Default)]
pub struct DirectionTally {
    /// Bytes moved.
    pub bytes: u64,
    /// I/Os done.
    pub ios: u64,
    /// I/Os that moved less than asked at first.
    pub short: u64,
    /// Time from making an I/O to having handed it over. Without percentiles, like fio's: only
    /// one histogram is kept an I/O.
    pub slat: Spread,
    /// Time from there to its completion.
    pub clat: Latency,
    /// Both together.
    pub lat: Spread,
    /// Bandwidth samples in KiB a second.
    pub bandwidth: Spread,
    /// I/Os a second, sampled likewise.
    pub iops: Spread,
    sampled_bytes: u64,
    sampled_ios: u64,
}

/// Counts of a thread.
#[derive(Debug, Clone, Default)]
pub struct Tally {
    /// Of reads and of writes.
    pub directions: [DirectionTally; 2],
    /// Times of fsync and fdatasync.
    pub sync: Latency,
    /// I/Os by the depth they were issued at.
    pub depth: [u64; DEPTH_CLASSES],
    /// Hand-overs by size; the first class is none.
    pub submit: [u64; DEPTH_CLASSES],
    /// Reaps by size.
    pub complete: [u64; DEPTH_CLASSES],
    sampled_ns: u64,
}

impl Tally {
    /// Begins to count at `now`.
    pub fn begin(now_ns: u64) -> Self {
        Self { sampled_ns: now_ns, ..Self::default() }
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

    /// Takes a bandwidth sample if it is time.
    #[inline]
    pub fn sample(&mut self, now_ns: u64) {
        if now_ns.saturating_sub(self.sampled_ns) >= SAMPLE_NS {
            self.take_sample(now_ns);
        }
    }

    #[cold]
    fn take_sample(&mut self, now_ns: u64) {
        let seconds = (now_ns - self.sampled_ns) as f64 / 1e9;
        self.sampled_ns = now_ns;
        for direction in &mut self.directions {
            if direction.bytes > direction.sampled_bytes {
                let bytes = (direction.bytes - direction.sampled_bytes) as f64;
                let ios = (direction.ios - direction.sampled_ios) as f64;
                direction.bandwidth.record((bytes / 1024.0 / seconds) as u64);
                direction.iops.record((ios / seconds) as u64);
            }
            direction.sampled_bytes = direction.bytes;
            direction.sampled_ios = direction.ios;
        }
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
            mine.bandwidth.merge(&theirs.bandwidth);
            mine.iops.merge(&theirs.iops);
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
