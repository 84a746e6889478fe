//! Delays I/Os of jobs with `rate`, `rate_iops` or `thinktime`. A thread that falls behind catches up, so
//! that the rate holds over the whole run, as with fio.

use crate::job::{DIRECTIONS, Options, ThinkBlocks};
use crate::random::Random;
use crate::workload::{IoOp, NextIo};
use std::time::Duration;

/// The rate limit of one thread.
#[derive(Debug)]
pub struct RateLimit {
    /// Nanoseconds per byte and per I/O, by direction; 0 is no limit.
    byte_ns: [f64; DIRECTIONS],
    io_ns: [f64; DIRECTIONS],
    due_ns: [f64; DIRECTIONS],
    /// The distances of a Poisson process; `None` for equal ones.
    poisson: Option<Random>,
    think_ns: u64,
    /// I/Os between two think times; `u64::MAX` is no limit.
    think_blocks: u64,
    /// Those that have completed are counted, or those that were issued.
    think_type: ThinkBlocks,
    counted: u64,
    /// The count at which the last think time was due, and that of one which is due now.
    last_think: u64,
    due_think: Option<u64>,
    /// Nothing is issued before this time.
    thinking_until_ns: u64,
    /// The first part of a think time takes a processor, up to this time.
    spin_ns: u64,
    spinning_until_ns: u64,
    /// The time between two think times (0 is no limit), and its end.
    io_time_ns: u64,
    io_until_ns: u64,
}

impl RateLimit {
    /// The rate limit of a job, if it has one. Random distances follow from `seed`, which differs between the threads of a job: they
    /// must not issue their I/Os at the same times.
    pub fn from_options(options: &Options, seed: u64, now_ns: u64) -> Option<Self> {
        let paced = options.rate != [0; DIRECTIONS] || options.rate_iops != [0; DIRECTIONS];
        if !paced && options.think_time == Duration::ZERO {
            return None;
        }
        let cost = |rate: u64| if rate == 0 { 0.0 } else { 1e9 / rate as f64 };
        let nanoseconds = |time: Duration| time.as_nanos() as u64;
        let thinks = options.think_time > Duration::ZERO;
        let io_time_ns = if thinks { nanoseconds(options.think_io_time) } else { 0 };
        let think_blocks = match options.think_blocks {
            Some(blocks) if thinks => blocks.into(),
            // As with fio: a time alone is no number of blocks.
            None if thinks && io_time_ns == 0 => 1,
            _ => u64::MAX,
        };
        let io_until_ns = if io_time_ns == 0 { u64::MAX } else { now_ns + io_time_ns };
        let costs = |rates: [u64; DIRECTIONS]| {
            let [read, write, trim] = rates.map(cost);
            // A write that follows its trim waits for nothing else, so that the slower of both rates holds for the trims.
            let trim = if options.pattern.writes_trimmed() { trim.max(write) } else { trim };
            [read, write, trim]
        };
        Some(Self {
            byte_ns: costs(options.rate),
            io_ns: costs(options.rate_iops),
            due_ns: [now_ns as f64; DIRECTIONS],
            // Not the sequence of the offsets.
            poisson: options.poisson.then(|| Random::new(!seed)),
            think_ns: nanoseconds(options.think_time),
            think_blocks,
            think_type: options.think_type,
            counted: 0,
            last_think: 0,
            due_think: None,
            thinking_until_ns: 0,
            // As with fio.
            spin_ns: nanoseconds(options.think_spin.min(options.think_time)),
            spinning_until_ns: 0,
            io_time_ns,
            io_until_ns,
        })
    }

    /// The time that an I/O of this direction must wait, in nanoseconds. A think time begins only when
    /// nothing is in flight: see [`RateLimit::on_idle`].
    pub fn wait_ns(&self, op: IoOp, now_ns: u64) -> u64 {
        let due = (self.due_ns[op as usize] as u64).max(self.thinking_until_ns);
        due.saturating_sub(now_ns)
    }

    /// Whether an I/O of this direction may be issued now.
    pub fn allows(&self, op: IoOp, now_ns: u64) -> bool {
        self.due_think.is_none() && now_ns < self.io_until_ns && self.wait_ns(op, now_ns) == 0
    }

    /// The time of the current think time that takes a processor, in nanoseconds.
    pub fn spin_ns(&self, now_ns: u64) -> u64 {
        self.spinning_until_ns.saturating_sub(now_ns)
    }

    /// Whether [`RateLimit::count_completion`] must be called.
    pub fn counts_completions(&self) -> bool {
        self.think_blocks != u64::MAX && self.think_type == ThinkBlocks::Completed
    }

    /// Counts an I/O that has completed.
    pub fn count_completion(&mut self) {
        self.counted += u64::from(self.think_type == ThinkBlocks::Completed);
        self.check_think_blocks();
    }

    /// As with fio: completions that the think time waits for count toward the next one, which is due after an I/O at the earliest.
    fn check_think_blocks(&mut self) {
        if self.due_think.is_none() && self.counted - self.last_think >= self.think_blocks {
            self.due_think = Some(self.counted);
        }
    }

    /// Counts an I/O that is issued.
    pub fn count(&mut self, step: &NextIo) {
        let direction = step.op as usize;
        let bytes = self.byte_ns[direction] * f64::from(step.length);
        // A unit is below 1, so that the logarithm is finite.
        let factor = self.poisson.as_mut().map_or(1.0, |random| -(1.0 - random.unit()).ln());
        self.due_ns[direction] += bytes.max(self.io_ns[direction]) * factor;
        self.counted += u64::from(self.think_type == ThinkBlocks::Issued);
        self.check_think_blocks();
    }

    /// Leaves out a time in which other work was done: nothing catches it up, and no think time or time between them ends in it.
    pub fn leave_out(&mut self, ns: u64) {
        self.due_ns.iter_mut().for_each(|due| *due += ns as f64);
        self.thinking_until_ns = self.thinking_until_ns.saturating_add(ns);
        self.spinning_until_ns = self.spinning_until_ns.saturating_add(ns);
        self.io_until_ns = self.io_until_ns.saturating_add(ns);
    }

    /// Nothing is in flight: begins the think time if it is due.
    pub fn on_idle(&mut self, now_ns: u64) {
        if self.due_think.is_some() || now_ns >= self.io_until_ns {
            self.last_think = self.due_think.take().unwrap_or(self.counted);
            self.thinking_until_ns = now_ns + self.think_ns;
            self.spinning_until_ns = now_ns + self.spin_ns;
            if self.io_time_ns > 0 {
                self.io_until_ns = self.thinking_until_ns + self.io_time_ns;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::Pattern;

    const READ: NextIo = NextIo { file: 0, op: IoOp::Read, offset: 0, length: 4096 };

    /// The I/Os of the first second, polled every 100 us. Each completes at once.
    fn in_one_second(options: &Options) -> u32 {
        let mut rate_limit = RateLimit::from_options(options, 1, 0).unwrap();
        let mut count = 0;
        for now in (0..1_000_000_000).step_by(100_000) {
            rate_limit.on_idle(now);
            while rate_limit.allows(IoOp::Read, now) {
                rate_limit.count(&READ);
                rate_limit.count_completion();
                rate_limit.on_idle(now);
                count += 1;
            }
        }
        count
    }

    #[test]
    fn rates_hold_over_the_whole_run() {
        let options = Options { rate_iops: [2500, 0, 0], ..Options::default() };
        assert!(in_one_second(&options).abs_diff(2500) <= 1);
        let options = Options { rate: [4096 * 700, 0, 0], ..Options::default() };
        assert!(in_one_second(&options).abs_diff(700) <= 1);
        assert!(RateLimit::from_options(&Options::default(), 1, 0).is_none());
    }

    #[test]
    fn a_time_left_out_is_not_caught_up() {
        let options = Options {
            rate_iops: [1000, 0, 0],
            think_time: Duration::from_millis(3),
            think_blocks: Some(2),
            think_type: ThinkBlocks::Issued,
            ..Options::default()
        };
        let mut rate_limit = RateLimit::from_options(&options, 1, 0).unwrap();
        rate_limit.count(&READ);
        rate_limit.leave_out(500_000_000);
        assert_eq!(
            rate_limit.wait_ns(IoOp::Read, 500_000_000),
            1_000_000,
            "the debt of an I/O stays"
        );
        // The second block, then the think time, which the first block counts for.
        assert!(rate_limit.allows(IoOp::Read, 501_000_000));
        rate_limit.count(&READ);
        assert!(!rate_limit.allows(IoOp::Read, 502_000_000));
        rate_limit.on_idle(502_000_000);
        assert_eq!(rate_limit.wait_ns(IoOp::Read, 502_000_000), 3_000_000);
    }

    #[test]
    fn a_poisson_process_has_the_rate_and_exponential_distances() {
        let options = Options { rate_iops: [1000, 0, 0], poisson: true, ..Options::default() };
        let mut rate_limit = RateLimit::from_options(&options, 1, 7).unwrap();
        let mut distances = Vec::new();
        for _ in 0..100_000 {
            let before = rate_limit.due_ns[0];
            rate_limit.count(&READ);
            distances.push((rate_limit.due_ns[0] - before) / 1e6);
        }
        let mean = distances.iter().sum::<f64>() / 100_000.0;
        assert!((mean - 1.0).abs() < 0.016, "five standard deviations: {mean}");
        // A share 1/e of the distances is longer than the mean.
        let longer = distances.iter().filter(|distance| **distance > 1.0).count();
        assert!(longer.abs_diff(36_788) < 770, "{longer}");
    }

    #[test]
    fn random_distances_follow_from_the_seed_alone() {
        let options = Options { rate_iops: [1000, 0, 0], poisson: true, ..Options::default() };
        let waits = |seed, now: u64| {
            let mut rate_limit = RateLimit::from_options(&options, seed, now).unwrap();
            let count = |_| {
                rate_limit.count(&READ);
                rate_limit.wait_ns(IoOp::Read, now)
            };
            (0..100).map(count).collect::<Vec<u64>>()
        };
        assert_eq!(waits(5, 1 << 40), waits(5, 1 << 41), "whenever the run begins");
        assert_ne!(waits(5, 0), waits(6, 0));
    }

    #[test]
    fn the_slower_rate_of_a_trimwrite_is_that_of_its_trims() {
        for rate_iops in [[0, 500, 1000], [0, 1000, 500], [0, 500, 0]] {
            let options = Options { rate_iops, pattern: Pattern::TrimWrite, ..Options::default() };
            let mut rate_limit = RateLimit::from_options(&options, 1, 0).unwrap();
            rate_limit.count(&NextIo { op: IoOp::Trim, ..READ });
            assert_eq!(rate_limit.wait_ns(IoOp::Trim, 0), 2_000_000, "{rate_iops:?}");
        }
    }

    #[test]
    fn a_direction_without_a_rate_never_waits() {
        let mut rate_limit =
            RateLimit::from_options(&Options { rate_iops: [1, 0, 0], ..Options::default() }, 1, 0)
                .unwrap();
        rate_limit.count(&READ);
        assert!(!rate_limit.allows(IoOp::Read, 1000) && rate_limit.allows(IoOp::Write, 1000));
    }

    #[test]
    fn think_time_comes_after_each_thinktime_blocks() {
        let think_time = Duration::from_millis(100);
        let options = Options { think_time, think_blocks: Some(4), ..Options::default() };
        assert_eq!(in_one_second(&options), 40);
    }

    /// The numbers of I/Os between the think times of a job at depth 8, of which each reap takes one, as fio's does.
    fn bursts(think_type: ThinkBlocks, blocks: u32) -> Vec<u32> {
        let think_time = Duration::from_nanos(100);
        let think_blocks = Some(blocks);
        let options = Options { think_time, think_blocks, think_type, ..Options::default() };
        let mut rate_limit = RateLimit::from_options(&options, 1, 0).unwrap();
        let (mut bursts, mut now) = (Vec::new(), 0);
        while bursts.len() < 5 {
            let (mut issued, mut in_flight) = (0, 0);
            while rate_limit.allows(IoOp::Read, now) {
                rate_limit.count(&READ);
                issued += 1;
                in_flight += 1;
                if in_flight == 8 {
                    rate_limit.count_completion();
                    in_flight -= 1;
                }
            }
            (0..in_flight).for_each(|_| rate_limit.count_completion());
            bursts.push(issued);
            rate_limit.on_idle(now);
            now += 100;
        }
        bursts
    }

    #[test]
    fn think_times_come_between_fio_s_numbers_of_ios() {
        // Those of fio 3.33 with libaio, for 40 I/Os.
        assert_eq!(bursts(ThinkBlocks::Completed, 1), [8, 1, 1, 1, 1]);
        assert_eq!(bursts(ThinkBlocks::Completed, 4), [11, 1, 10, 1, 10]);
        assert_eq!(bursts(ThinkBlocks::Issued, 1), [1; 5]);
        assert_eq!(bursts(ThinkBlocks::Issued, 4), [4; 5]);
    }

    #[test]
    fn think_time_begins_when_nothing_is_in_flight() {
        let think_time = Duration::from_nanos(100);
        let options = Options { think_time, think_type: ThinkBlocks::Issued, ..Options::default() };
        let mut rate_limit = RateLimit::from_options(&options, 1, 0).unwrap();
        rate_limit.count(&READ);
        assert!(!rate_limit.allows(IoOp::Read, 500), "one is in flight");
        rate_limit.on_idle(500);
        assert!(!rate_limit.allows(IoOp::Read, 599) && rate_limit.allows(IoOp::Read, 600));
    }

    #[test]
    fn the_time_between_think_times_is_bounded() {
        let (think_time, think_io_time) = (Duration::from_millis(100), Duration::from_millis(150));
        let options =
            Options { think_time, think_io_time, rate_iops: [1000, 0, 0], ..Options::default() };
        // Each quarter of a second 150 ms of I/O: the rate catches up what the think time has left out.
        let mut rate_limit = RateLimit::from_options(&options, 1, 0).unwrap();
        let mut allowed = Vec::new();
        for now in (0..1_000_000_000).step_by(10_000_000) {
            rate_limit.on_idle(now);
            if rate_limit.allows(IoOp::Read, now) {
                rate_limit.count(&READ);
                allowed.push(now / 1_000_000);
            }
        }
        let in_think = |ms: &u64| (150..250).contains(&(ms % 250));
        assert!(!allowed.iter().any(in_think), "{allowed:?}");
        assert_eq!(allowed.len(), 60);
        // Blocks end the time earlier.
        let options = Options { think_blocks: Some(1), rate_iops: [0; DIRECTIONS], ..options };
        assert_eq!(in_one_second(&options), 10);
    }

    #[test]
    fn the_first_part_of_a_think_time_spins() {
        let options = Options {
            think_time: Duration::from_nanos(100),
            think_spin: Duration::from_nanos(30),
            ..Options::default()
        };
        let mut rate_limit = RateLimit::from_options(&options, 1, 0).unwrap();
        assert_eq!(rate_limit.spin_ns(0), 0);
        rate_limit.count(&READ);
        rate_limit.count_completion();
        rate_limit.on_idle(500);
        assert_eq!([500, 510, 530, 599].map(|now| rate_limit.spin_ns(now)), [30, 20, 0, 0]);
        assert_eq!(rate_limit.wait_ns(IoOp::Read, 530), 70);
        // It is no longer than the whole.
        let options = Options { think_spin: Duration::from_secs(1), ..options };
        let mut rate_limit = RateLimit::from_options(&options, 1, 0).unwrap();
        rate_limit.count(&READ);
        rate_limit.count_completion();
        rate_limit.on_idle(500);
        assert_eq!((rate_limit.spin_ns(500), rate_limit.wait_ns(IoOp::Read, 500)), (100, 100));
    }
}
