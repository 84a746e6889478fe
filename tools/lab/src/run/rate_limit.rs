//! Delays I/Os of jobs with `rate`, `rate_iops` or `thinktime`. A thread that falls behind catches up, so
//! that the rate holds over the whole run, as with fio.

use crate::job::Options;
use crate::workload::{IoOp, NextIo};
use std::time::Duration;

/// The rate limit of one thread.
#[derive(Debug)]
pub struct RateLimit {
    /// Nanoseconds per byte and per I/O, by direction; 0 is no limit.
    byte_ns: [f64; 2],
    io_ns: [f64; 2],
    due_ns: [f64; 2],
    think_ns: u64,
    think_blocks: u32,
    until_think: u32,
    /// Nothing is issued before this time.
    thinking_until_ns: u64,
}

impl RateLimit {
    /// The rate limit of a job, if it has one.
    pub fn from_options(options: &Options, now_ns: u64) -> Option<Self> {
        let paced = options.rate != [0; 2] || options.rate_iops != [0; 2];
        if !paced && options.think_time == Duration::ZERO {
            return None;
        }
        let cost = |rate: u64| if rate == 0 { 0.0 } else { 1e9 / rate as f64 };
        let thinks = options.think_time > Duration::ZERO;
        let think_blocks = if thinks { options.think_blocks } else { u32::MAX };
        Some(Self {
            byte_ns: options.rate.map(cost),
            io_ns: options.rate_iops.map(cost),
            due_ns: [now_ns as f64; 2],
            think_ns: options.think_time.as_nanos() as u64,
            think_blocks,
            until_think: think_blocks,
            thinking_until_ns: 0,
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
        self.until_think > 0 && self.wait_ns(op, now_ns) == 0
    }

    /// Counts an I/O that is issued.
    pub fn count(&mut self, step: &NextIo) {
        let direction = step.op as usize;
        let bytes = self.byte_ns[direction] * f64::from(step.length);
        self.due_ns[direction] += bytes.max(self.io_ns[direction]);
        self.until_think -= 1;
    }

    /// Nothing is in flight: begins the think time if it is due.
    pub fn on_idle(&mut self, now_ns: u64) {
        if self.until_think == 0 {
            self.until_think = self.think_blocks;
            self.thinking_until_ns = now_ns + self.think_ns;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const READ: NextIo = NextIo { file: 0, op: IoOp::Read, offset: 0, length: 4096 };

    /// The I/Os of the first second, polled every 100 us. Each completes at once.
    fn in_one_second(options: &Options) -> u32 {
        let mut rate_limit = RateLimit::from_options(options, 0).unwrap();
        let mut count = 0;
        for now in (0..1_000_000_000).step_by(100_000) {
            rate_limit.on_idle(now);
            while rate_limit.allows(IoOp::Read, now) {
                rate_limit.count(&READ);
                rate_limit.on_idle(now);
                count += 1;
            }
        }
        count
    }

    #[test]
    fn rates_hold_over_the_whole_run() {
        let options = Options { rate_iops: [2500, 0], ..Options::default() };
        assert!(in_one_second(&options).abs_diff(2500) <= 1);
        let options = Options { rate: [4096 * 700, 0], ..Options::default() };
        assert!(in_one_second(&options).abs_diff(700) <= 1);
        assert!(RateLimit::from_options(&Options::default(), 0).is_none());
    }

    #[test]
    fn a_direction_without_a_rate_never_waits() {
        let mut rate_limit =
            RateLimit::from_options(&Options { rate_iops: [1, 0], ..Options::default() }, 0)
                .unwrap();
        rate_limit.count(&READ);
        assert!(!rate_limit.allows(IoOp::Read, 1000) && rate_limit.allows(IoOp::Write, 1000));
    }

    #[test]
    fn think_time_comes_after_each_thinktime_blocks() {
        let think_time = Duration::from_millis(100);
        let options = Options { think_time, think_blocks: 4, ..Options::default() };
        assert_eq!(in_one_second(&options), 40);
    }

    #[test]
    fn think_time_begins_when_nothing_is_in_flight() {
        let options = Options { think_time: Duration::from_nanos(100), ..Options::default() };
        let mut rate_limit = RateLimit::from_options(&options, 0).unwrap();
        rate_limit.count(&READ);
        assert!(!rate_limit.allows(IoOp::Read, 500), "one is in flight");
        rate_limit.on_idle(500);
        assert!(!rate_limit.allows(IoOp::Read, 599) && rate_limit.allows(IoOp::Read, 600));
    }
}
