//! When the next I/O may be issued, for jobs with `rate`, `rate_iops` or `thinktime`. A thread that
//! falls behind catches up, so that the rate holds over the run, as with fio.

use crate::job::Options;
use crate::workload::Step;
use std::time::Duration;

/// The pace of one thread.
#[derive(Debug)]
pub struct Pace {
    /// Nanoseconds a byte and an I/O cost, by direction; 0 is no limit.
    byte_ns: [f64; 2],
    io_ns: [f64; 2],
    due_ns: [f64; 2],
    think_ns: u64,
    think_blocks: u32,
    until_think: u32,
    /// Nothing is issued before this.
    held_until_ns: u64,
}

impl Pace {
    /// The pace a job asks for, if it asks for any.
    pub fn of(options: &Options, now_ns: u64) -> Option<Self> {
        let paced = options.rate != [0; 2] || options.rate_iops != [0; 2];
        if !paced && options.think_time == Duration::ZERO {
            return None;
        }
        let cost = |rate: u64| if rate == 0 { 0.0 } else { 1e9 / rate as f64 };
        Some(Self {
            byte_ns: options.rate.map(cost),
            io_ns: options.rate_iops.map(cost),
            due_ns: [now_ns as f64; 2],
            think_ns: options.think_time.as_nanos() as u64,
            think_blocks: options.think_blocks,
            until_think: options.think_blocks,
            held_until_ns: 0,
        })
    }

    /// How long `step` has to wait.
    pub fn wait_ns(&self, step: &Step, now_ns: u64) -> u64 {
        let due = (self.due_ns[step.op as usize] as u64).max(self.held_until_ns);
        due.saturating_sub(now_ns)
    }

    /// Counts `step` and says true if it may go now.
    pub fn admit(&mut self, step: &Step, now_ns: u64) -> bool {
        if self.wait_ns(step, now_ns) > 0 {
            return false;
        }
        let direction = step.op as usize;
        let bytes = self.byte_ns[direction] * f64::from(step.length);
        self.due_ns[direction] += bytes.max(self.io_ns[direction]);
        self.until_think -= 1;
        if self.until_think == 0 {
            self.until_think = self.think_blocks;
            self.held_until_ns = now_ns + self.think_ns;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::IoOp;

    const READ: Step = Step { file: 0, op: IoOp::Read, offset: 0, length: 4096 };

    /// How many go in the first second, asked every 100 us.
    fn in_one_second(options: &Options) -> u32 {
        let mut pace = Pace::of(options, 0).unwrap();
        let mut count = 0;
        for now in (0..1_000_000_000).step_by(100_000) {
            while pace.admit(&READ, now) {
                count += 1;
            }
        }
        count
    }

    #[test]
    fn rates_hold_over_the_run() {
        let options = Options { rate_iops: [2500, 0], ..Options::default() };
        assert!(in_one_second(&options).abs_diff(2500) <= 1);
        let options = Options { rate: [4096 * 700, 0], ..Options::default() };
        assert!(in_one_second(&options).abs_diff(700) <= 1);
        assert!(Pace::of(&Options::default(), 0).is_none());
    }

    #[test]
    fn thinking_comes_after_every_so_many_blocks() {
        let think_time = Duration::from_millis(100);
        let options = Options { think_time, think_blocks: 4, ..Options::default() };
        assert_eq!(in_one_second(&options), 40);
    }
}
