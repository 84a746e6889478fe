//! Notices that reads in use take far longer than calibration measured: the device, or its use, is not what it was.
//!
//! It watches only calls that execute reads in the calling thread, since their time has nothing of the caller's own
//! time in it. One batch of many is timed, so the clock costs next to nothing.

use std::time::{Duration, Instant};

use crate::clock::Clock;

/// A read counts as slow from this multiple of its measured time on.
const SLOW_FACTOR: f64 = 2.0;
/// The number of batches that are not timed after one that was not slow.
const SKIPPED_BATCHES: u32 = 63;
/// The number of slow batches in a row that contradicts the measurement. A busy machine disturbs some of them, not all.
const MAX_SLOW: u32 = 32;

/// Compares the time of reads with the measured one.
#[derive(Clone, Debug)]
pub struct SlowdownDetector {
    clock: Clock,
    slow: Duration,
    skip: u32,
    slow_in_a_row: u32,
}

impl SlowdownDetector {
    /// Compares with a measured rate of `reads_per_second`.
    pub fn new(clock: Clock, reads_per_second: f64) -> SlowdownDetector {
        let slow = SLOW_FACTOR / reads_per_second.max(1.0);
        let slow = Duration::from_secs_f64(slow);
        SlowdownDetector { clock, slow, skip: 0, slow_in_a_row: 0 }
    }

    /// True if the batch that begins now is to be timed.
    #[inline]
    pub(crate) fn is_due(&mut self) -> bool {
        let is_due = self.skip == 0;
        self.skip = self.skip.saturating_sub(1);
        is_due
    }

    pub(crate) fn now(&self) -> Instant {
        self.clock.now()
    }

    /// A batch of this number of reads has ended that began at `begin`.
    pub(crate) fn end(&mut self, begin: Instant, reads: u32) {
        let elapsed = self.clock.now().saturating_duration_since(begin);
        if elapsed < self.slow * reads {
            (self.skip, self.slow_in_a_row) = (SKIPPED_BATCHES, 0);
        } else {
            self.slow_in_a_row = self.slow_in_a_row.saturating_add(1);
        }
    }

    /// True when all of the last timed batches were slow.
    pub(crate) fn is_contradicted(&self) -> bool {
        self.slow_in_a_row >= MAX_SLOW
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::VirtualClock;

    /// Batches of four reads, each of which takes `read_us` microseconds. Returns how many were timed.
    fn run(
        detector: &mut SlowdownDetector,
        clock: &VirtualClock,
        batches: u32,
        read_us: u64,
    ) -> u32 {
        let mut timed = 0;
        for _ in 0..batches {
            let (is_due, begin) = (detector.is_due(), detector.now());
            clock.advance_to(begin + Duration::from_micros(4 * read_us));
            if is_due {
                detector.end(begin, 4);
                timed += 1;
            }
        }
        timed
    }

    #[test]
    fn only_a_row_of_slow_batches_contradicts() {
        let clock = VirtualClock::default();
        // 10 us a read: slow from 20 us on.
        let mut detector = SlowdownDetector::new(Clock::Virtual(clock.clone()), 100_000.0);
        assert_eq!(run(&mut detector, &clock, 640, 10), 10);
        assert_eq!(run(&mut detector, &clock, 64, 19), 1);
        assert!(!detector.is_contradicted());
        // A slow batch makes the next one be timed.
        assert_eq!(run(&mut detector, &clock, 31, 20), 31);
        assert!(!detector.is_contradicted());
        // A quick one begins the count again.
        assert_eq!(run(&mut detector, &clock, 1, 10), 1);
        run(&mut detector, &clock, 63, 20);
        assert_eq!(run(&mut detector, &clock, 31, 20), 31);
        assert!(!detector.is_contradicted());
        run(&mut detector, &clock, 1, 20);
        assert!(detector.is_contradicted());
    }

    #[test]
    fn a_rate_of_0_is_no_division_by_0() {
        let clock = VirtualClock::default();
        let mut detector = SlowdownDetector::new(Clock::Virtual(clock.clone()), 0.0);
        assert_eq!(run(&mut detector, &clock, 1, 10), 1);
        assert!(!detector.is_contradicted());
    }
}
