//! Notices that reads in use take far longer than calibration measured: the device, or its use, is not what it was.
//!
//! It watches only calls that execute requests in the calling thread, since their time has nothing of the caller's own
//! time in it. One batch of reads of many is timed, so the clock costs next to nothing. A coarse clock watches every
//! batch for a call that hangs: one of these is enough, unless it waits for a flush, which takes as long as the device
//! has to write. Time in which the thread waited for a processor does not count.

use std::time::{Duration, Instant};

use crate::clock::Clock;
use crate::queue::scheduling::SchedulerAccount;

/// A read counts as slow from this multiple of its measured time on.
const SLOW_FACTOR: f64 = 2.0;
/// The number of batches that are not timed after one that was not slow.
const SKIPPED_BATCHES: u32 = 63;
/// The number of slow batches in a row that contradicts the measurement. A busy machine disturbs some of them, not all.
const MAX_SLOW: u32 = 32;
/// The batches of such a row take at least this long: shorter ones follow whatever else had the processor.
const MIN_ROW: Duration = Duration::from_millis(10);

/// A batch that takes this multiple of its measured time has hung, if it also takes [`MIN_HANG`].
const HANG_FACTOR: f64 = 100.0;
const MIN_HANG: Duration = Duration::from_millis(40);
/// The unit in which requests of all sizes are compared with the reads that were measured, in bytes.
const BLOCK: u64 = 4096;

/// Compares the time of reads with the measured one. For the thread that has created it.
#[derive(Debug)]
pub struct SlowdownDetector {
    clock: Clock,
    slow: Duration,
    hang: Duration,
    skip: u32,
    slow_in_a_row: u32,
    /// The time of these.
    row: Duration,
    has_hung: bool,
    /// `None` in virtual time, which no other thread takes.
    account: Option<SchedulerAccount>,
    /// The coarse clock when the account was last read, and the thread's waits for a processor until then.
    tick: Duration,
    delay: Duration,
}

/// A call between [`SlowdownDetector::begin_call`] and [`SlowdownDetector::end_call`].
#[derive(Debug)]
#[must_use = "a call that begins must end"]
pub struct WatchedCall {
    /// `None` if it is not timed.
    began: Option<Instant>,
    began_coarse: Duration,
}

impl SlowdownDetector {
    /// Compares with a measured rate of `reads_per_second`.
    pub fn new(clock: Clock, reads_per_second: f64) -> SlowdownDetector {
        let time = 1.0 / reads_per_second.max(1.0);
        let [slow, hang] =
            [SLOW_FACTOR, HANG_FACTOR].map(|factor| Duration::from_secs_f64(factor * time));
        let account = match clock {
            Clock::System => Some(SchedulerAccount::of_this_thread()),
            Clock::Virtual(_) => None,
        };
        SlowdownDetector {
            slow,
            hang,
            skip: 0,
            slow_in_a_row: 0,
            row: Duration::ZERO,
            has_hung: false,
            account,
            tick: Duration::ZERO,
            delay: Duration::ZERO,
            clock,
        }
    }

    /// A call begins that executes one request. `is_read` says whether it is a read of the measured size.
    #[inline(always)]
    pub fn begin_call(&mut self, is_read: bool) -> WatchedCall {
        // In this order: the coarse clock may read the account, which is not a part of the call.
        let began_coarse = self.coarse_now();
        let began = (is_read && self.is_due()).then(|| self.now());
        WatchedCall { began, began_coarse }
    }

    /// The call has ended.
    #[inline(always)]
    pub fn end_call(&mut self, WatchedCall { began, began_coarse }: WatchedCall) {
        self.end_any(began_coarse, BLOCK, || false);
        if let Some(began) = began {
            self.end(began, 1);
        }
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
        if elapsed < self.slow.saturating_mul(reads) {
            (self.skip, self.slow_in_a_row, self.row) = (SKIPPED_BATCHES, 0, Duration::ZERO);
            return;
        }
        self.row += elapsed;
        // A short row waits for its last one.
        let most = if self.row >= MIN_ROW { u32::MAX } else { MAX_SLOW - 1 };
        self.slow_in_a_row = self.slow_in_a_row.saturating_add(1).min(most);
    }

    /// The begin of a batch, for [`Self::end_any`].
    #[inline]
    pub(crate) fn coarse_now(&mut self) -> Duration {
        let now = self.clock.coarse();
        if now != self.tick {
            (self.tick, self.delay) = (now, self.delay());
        }
        now
    }

    /// The time for which the thread has waited for a processor so far.
    #[cold]
    #[inline(never)]
    fn delay(&self) -> Duration {
        let account = self.account.as_ref().and_then(SchedulerAccount::read);
        account.map_or(Duration::ZERO, |account| account.delay)
    }

    /// Any batch has ended, of so many bytes, that began at `begin` of [`Self::coarse_now`]. `has_flushed` says whether a
    /// call waited for a flush.
    #[inline]
    pub(crate) fn end_any(
        &mut self,
        begin: Duration,
        bytes: u64,
        has_flushed: impl FnOnce() -> bool,
    ) {
        let elapsed = self.clock.coarse().saturating_sub(begin);
        if elapsed >= MIN_HANG && !has_flushed() {
            self.end_long(elapsed, bytes);
        }
    }

    #[cold]
    fn end_long(&mut self, elapsed: Duration, bytes: u64) {
        let elapsed = elapsed.saturating_sub(self.delay().saturating_sub(self.delay));
        let blocks = bytes.div_ceil(BLOCK).clamp(1, u32::MAX.into());
        self.has_hung |= elapsed >= MIN_HANG && elapsed >= self.hang.saturating_mul(blocks as u32);
    }

    /// True when one batch has hung.
    pub fn has_hung(&self) -> bool {
        self.has_hung
    }

    /// Watches only for batches that hang from here on.
    pub fn allow_slow(&mut self) {
        (self.slow, self.slow_in_a_row, self.row) = (Duration::MAX, 0, Duration::ZERO);
    }

    /// True when all of the last timed batches were slow, or one has hung.
    #[inline(always)]
    pub fn is_contradicted(&self) -> bool {
        self.has_hung || self.slow_in_a_row >= MAX_SLOW
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
        // These take 9.92 ms.
        assert_eq!(run(&mut detector, &clock, 124, 20), 124);
        assert!(!detector.is_contradicted());
        run(&mut detector, &clock, 1, 20);
        assert!(detector.is_contradicted());
        let mut detector = SlowdownDetector::new(Clock::Virtual(clock.clone()), 100_000.0);
        run(&mut detector, &clock, MAX_SLOW - 1, 1000);
        assert!(!detector.is_contradicted());
        run(&mut detector, &clock, 1, 1000);
        assert!(detector.is_contradicted());
    }

    #[test]
    fn one_batch_that_hangs_contradicts_unless_it_was_large() {
        let clock = VirtualClock::default();
        // 10 us a read: 1 ms is a hundred times as long.
        for (bytes, has_flushed, ms, is_contradicted) in [
            (4096, false, 39, false),
            (4096, false, 40, true),
            (4096, true, 1000, false),
            (512, false, 40, true),
            (0, true, 40, false),
            (41 * 4096, false, 40, false),
            (41 * 4096, false, 41, true),
            (1 << 40, false, 1000, false),
        ] {
            let mut detector = SlowdownDetector::new(Clock::Virtual(clock.clone()), 100_000.0);
            let begin = detector.coarse_now();
            clock.advance_to(detector.now() + Duration::from_millis(ms));
            detector.end_any(begin, bytes, || has_flushed);
            assert_eq!(detector.is_contradicted(), is_contradicted, "{bytes} bytes in {ms} ms");
        }
    }

    #[test]
    fn a_single_call_is_watched_as_a_batch_is() {
        let clock = VirtualClock::default();
        let now = Clock::Virtual(clock.clone());
        let watch = |detector: &mut SlowdownDetector, is_read, us| {
            let call = detector.begin_call(is_read);
            clock.advance_to(now.now() + Duration::from_micros(us));
            detector.end_call(call);
        };
        let mut detector = SlowdownDetector::new(Clock::Virtual(clock.clone()), 100_000.0);
        for _ in 0..500 {
            assert!(!detector.is_contradicted());
            watch(&mut detector, true, 20);
        }
        assert!(detector.is_contradicted());
        let mut detector = SlowdownDetector::new(Clock::Virtual(clock.clone()), 100_000.0);
        // Of writes no time was measured.
        (0..1000).for_each(|_| watch(&mut detector, false, 39_000));
        assert!(!detector.is_contradicted());
        watch(&mut detector, false, 40_000);
        assert!(detector.is_contradicted() && detector.has_hung());
    }

    #[test]
    fn a_detector_that_allows_slow_reads_still_finds_one_that_hangs() {
        let clock = VirtualClock::default();
        let mut detector = SlowdownDetector::new(Clock::Virtual(clock.clone()), 100_000.0);
        run(&mut detector, &clock, MAX_SLOW, 1000);
        assert!(detector.is_contradicted() && !detector.has_hung());
        detector.allow_slow();
        assert!(!detector.is_contradicted());
        run(&mut detector, &clock, MAX_SLOW, 9000);
        assert!(!detector.is_contradicted());
        let call = detector.begin_call(true);
        clock.advance_to(detector.now() + Duration::from_millis(40));
        detector.end_call(call);
        assert!(detector.has_hung());
    }

    #[test]
    fn a_rate_of_0_is_no_division_by_0() {
        let clock = VirtualClock::default();
        let mut detector = SlowdownDetector::new(Clock::Virtual(clock.clone()), 0.0);
        assert_eq!(run(&mut detector, &clock, 1, 10), 1);
        assert!(!detector.is_contradicted());
    }
}
