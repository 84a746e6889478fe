//! Ends a job when its rate is steady: `steadystate`. Each thread counts its I/Os by seconds. With
//! `group_reporting` the sum of the group's threads is judged, otherwise each thread.

use super::plan::ThreadPlan;
use crate::job::{Job, Options, SteadyMeasure, SteadyRate, SteadyState};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;

const SECOND_NS: u64 = 1_000_000_000;

/// The rates of a second.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SecondRates {
    /// I/Os.
    pub ios: u64,
    /// Bytes.
    pub bytes: u64,
}

/// The last seconds of a thread, or of the threads of a group.
#[derive(Debug)]
pub struct SteadyWindow {
    criterion: SteadyState,
    /// The length of the window in seconds.
    seconds: usize,
    threads: usize,
    state: Mutex<WindowState>,
}

#[derive(Debug, Default)]
struct WindowState {
    /// Seconds that some thread has not counted: the sums, and the number of threads that have, or that ended before. The first
    /// is the one after those of the window.
    open: VecDeque<(SecondRates, usize)>,
    /// Threads that have ended.
    ended: usize,
    closed: usize,
    window: VecDeque<SecondRates>,
    judgement: Judgement,
}

/// The state of a window.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Judgement {
    /// Whether the rate has become steady.
    pub attained: bool,
    /// The value that must be below the limit, in the unit of the limit.
    pub criterion: f64,
    /// The greatest distance from the mean.
    pub deviation: f64,
    /// The slope per second.
    pub slope: f64,
}

impl SteadyWindow {
    /// The windows of a batch's threads: one for each thread, or one that the threads of a group share.
    pub fn for_threads(jobs: &[Job], threads: &[ThreadPlan]) -> Vec<Option<Arc<Self>>> {
        let shares = |thread: &ThreadPlan| jobs[thread.job].options.group_reporting;
        let is_judged = |thread: &ThreadPlan| jobs[thread.job].options.steady.is_some();
        let mut windows: Vec<Option<Arc<Self>>> = Vec::new();
        for (index, thread) in threads.iter().enumerate() {
            let joins = |other: &ThreadPlan| {
                other.group == thread.group && shares(other) && shares(thread) && is_judged(other)
            };
            let first = threads[..index].iter().position(joins).filter(|_| is_judged(thread));
            let window = match first {
                Some(first) => windows[first].clone(),
                None => {
                    let members = threads.iter().filter(|other| joins(other)).count().max(1);
                    Self::new(&jobs[thread.job].options, members).map(Arc::new)
                }
            };
            windows.push(window);
        }
        windows
    }

    fn new(options: &Options, threads: usize) -> Option<Self> {
        let seconds = options.steady_duration.as_secs_f64().ceil() as usize;
        let state = Mutex::new(WindowState::default());
        Some(Self { criterion: options.steady?, seconds, threads, state })
    }

    /// Adds a thread's count of its `number`-th second, from 0. Returns whether the rate is steady.
    fn add(&self, number: usize, rates: SecondRates) -> bool {
        let mut state = self.state.lock();
        if state.judgement.attained {
            return true;
        }
        let at = number - state.closed;
        if state.open.len() <= at {
            let ended = state.ended;
            state.open.resize(at + 1, (SecondRates::default(), ended));
        }
        let (sum, threads) = &mut state.open[at];
        sum.ios += rates.ios;
        sum.bytes += rates.bytes;
        *threads += 1;
        self.close_seconds(&mut state);
        state.judgement.attained
    }

    /// A thread has ended. The seconds from its `number`-th on are those of the others.
    fn leave(&self, number: usize) {
        let mut state = self.state.lock();
        state.ended += 1;
        // After the last thread nothing is left to end.
        if state.ended == self.threads || state.judgement.attained {
            return;
        }
        let at = number - state.closed;
        state.open.iter_mut().skip(at).for_each(|(_, threads)| *threads += 1);
        self.close_seconds(&mut state);
    }

    /// Moves the seconds that all threads have counted into the window, and judges it.
    fn close_seconds(&self, state: &mut WindowState) {
        while let Some((second, threads)) = state.open.front().copied()
            && threads >= self.threads
            && !state.judgement.attained
        {
            state.open.pop_front();
            state.closed += 1;
            state.window.push_back(second);
            if state.window.len() > self.seconds {
                state.window.pop_front();
            }
            if state.window.len() == self.seconds {
                state.judgement = self.judge(&state.window);
            }
        }
    }

    /// The judgement of a full window.
    fn judge(&self, window: &VecDeque<SecondRates>) -> Judgement {
        let rate = |second: &SecondRates| match self.criterion.rate {
            SteadyRate::Ios => second.ios as f64,
            SteadyRate::Bandwidth => second.bytes as f64,
        };
        let n = window.len() as f64;
        let mean = window.iter().map(rate).sum::<f64>() / n;
        let deviation = window.iter().map(|second| (rate(second) - mean).abs()).fold(0.0, f64::max);
        // Least squares over the seconds 0 to n - 1.
        let middle = (n - 1.0) / 2.0;
        let places = || (0..window.len()).map(|at| at as f64 - middle);
        let squares: f64 = places().map(|x| x * x).sum();
        let products: f64 = places().zip(window).map(|(x, second)| x * rate(second)).sum();
        let slope = if squares == 0.0 { 0.0 } else { products / squares };
        let value = match self.criterion.measure {
            SteadyMeasure::Deviation => deviation,
            SteadyMeasure::Slope => slope.abs(),
        };
        let criterion = match self.criterion.is_percent {
            true if mean == 0.0 => f64::MAX,
            true => value * 100.0 / mean,
            false => value,
        };
        Judgement { attained: criterion < self.criterion.limit, criterion, deviation, slope }
    }

    /// The criterion of the job.
    pub fn criterion(&self) -> SteadyState {
        self.criterion
    }

    /// The length of the window in seconds.
    pub fn seconds(&self) -> usize {
        self.seconds
    }

    /// The last judgement, and the seconds of the window, the oldest first.
    pub fn result(&self) -> (Judgement, Vec<SecondRates>) {
        let state = self.state.lock();
        (state.judgement, state.window.iter().copied().collect())
    }
}

/// Counts the I/Os of one thread by seconds.
#[derive(Debug)]
pub struct SteadySampler {
    window: Arc<SteadyWindow>,
    ramp_ns: u64,
    /// The end of the current second; `None` before the measurement.
    ends_ns: Option<u64>,
    number: usize,
    /// The counts of the current second; none are kept of the ramp.
    rates: SecondRates,
}

impl SteadySampler {
    /// The sampler of a thread.
    pub fn new(window: Arc<SteadyWindow>, options: &Options) -> Self {
        let ramp_ns = options.steady_ramp.as_nanos() as u64;
        Self { window, ramp_ns, ends_ns: None, number: 0, rates: SecondRates::default() }
    }

    /// Begins the measurement.
    pub fn begin(&mut self, now_ns: u64) {
        self.ends_ns = Some(now_ns + self.ramp_ns + SECOND_NS);
    }

    /// Counts a completed I/O. Returns true when the rate has become steady.
    pub fn count(&mut self, length: u32, now_ns: u64) -> bool {
        let Some(ends_ns) = &mut self.ends_ns else { return false };
        let mut is_steady = false;
        while now_ns >= *ends_ns {
            *ends_ns += SECOND_NS;
            is_steady = self.window.add(self.number, std::mem::take(&mut self.rates));
            self.number += 1;
        }
        // The ramp ends a second before the end of the first second.
        if now_ns + SECOND_NS >= *ends_ns {
            self.rates.ios += 1;
            self.rates.bytes += u64::from(length);
        }
        is_steady
    }
}

impl Drop for SteadySampler {
    fn drop(&mut self) {
        self.window.leave(self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{Parser, UnknownKeys};
    use std::time::Duration;

    fn window(criterion: &str, threads: usize) -> SteadyWindow {
        let mut parser = Parser::new(&|_| None, UnknownKeys::Refuse);
        let keys = format!("[j]\nsteadystate={criterion}\nss_dur=4\n");
        parser.bytes(keys.as_bytes(), "x.fio").unwrap();
        SteadyWindow::new(&parser.finish().unwrap().jobs[0].options, threads).unwrap()
    }

    fn rates(ios: u64) -> SecondRates {
        SecondRates { ios, bytes: ios * 4096 }
    }

    /// The number of seconds after which the rate is steady.
    fn steady_after(criterion: &str, ios: &[u64]) -> Option<usize> {
        let window = window(criterion, 1);
        let mut seconds = ios.iter().enumerate();
        seconds.position(|(number, ios)| window.add(number, rates(*ios))).map(|at| at + 1)
    }

    #[test]
    fn a_rate_is_steady_when_all_seconds_are_near_the_mean() {
        let ios = [500, 900, 1000, 1010, 990, 1000, 1000];
        assert_eq!(steady_after("iops:2%", &ios), Some(6));
        assert_eq!(steady_after("iops:10.5", &ios), Some(6));
        assert_eq!(steady_after("bw:2%", &ios), Some(6));
        assert_eq!(steady_after("bw:50000", &ios), Some(6));
        assert_eq!(steady_after("iops:0.5%", &ios), None);
    }

    #[test]
    fn a_slope_may_be_flat_though_seconds_differ() {
        let ios = [100, 200, 300, 400, 500, 300, 500, 500, 300];
        assert_eq!(steady_after("iops_slope:1%", &[300, 500, 500, 300]), Some(4));
        assert_eq!(steady_after("iops:1%", &ios), None);
        let window = window("iops_slope:1", 1);
        ios[..4].iter().enumerate().for_each(|(number, ios)| {
            assert!(!window.add(number, rates(*ios)));
        });
        let (judgement, seconds) = window.result();
        assert_eq!(
            (judgement.slope, judgement.deviation, judgement.criterion),
            (100.0, 150.0, 100.0)
        );
        assert_eq!(
            seconds.iter().map(|second| second.ios).collect::<Vec<_>>(),
            [100, 200, 300, 400]
        );
    }

    #[test]
    fn the_threads_of_a_group_are_judged_together() {
        // Each alone changes; the sum does not. The second thread counts later.
        let window = window("iops:1%", 2);
        for (number, ios) in [100, 200, 300, 400].into_iter().enumerate() {
            assert!(!window.add(number, rates(ios)));
        }
        let mut last = false;
        for (number, ios) in [900, 800, 700, 600].into_iter().enumerate() {
            assert!(!last);
            last = window.add(number, rates(ios));
        }
        assert!(last && window.add(4, rates(1)), "steady once and for all");
    }

    #[test]
    fn a_thread_that_has_ended_is_not_waited_for() {
        let window = Arc::new(window("iops:1%", 2));
        let mut long = SteadySampler::new(Arc::clone(&window), &Options::default());
        let mut short = SteadySampler::new(Arc::clone(&window), &Options::default());
        let count = |sampler: &mut SteadySampler, seconds: std::ops::Range<u64>| {
            let mut tenths = (seconds.start * 10..seconds.end * 10).map(|n| n * 100_000_000);
            tenths.any(|now| sampler.count(4096, now))
        };
        long.begin(0);
        short.begin(0);
        // One is ahead when the other ends.
        assert!(!count(&mut long, 0..3));
        assert!(!count(&mut short, 0..2));
        drop(short);
        assert!(count(&mut long, 3..7), "steady since the third second");
        let (judgement, seconds) = window.result();
        assert!(judgement.attained);
        assert_eq!(seconds.iter().map(|second| second.ios).collect::<Vec<_>>(), [10; 4]);
    }

    #[test]
    fn nothing_is_judged_without_io() {
        assert_eq!(steady_after("iops:1%", &[0; 8]), None);
    }

    #[test]
    fn a_sampler_counts_by_seconds_after_the_ramp() {
        let window = Arc::new(window("iops:1%", 1));
        let options = Options { steady_ramp: Duration::from_secs(2), ..Options::default() };
        let mut sampler = SteadySampler::new(Arc::clone(&window), &options);
        assert!(!sampler.count(4096, 5), "before the measurement");
        sampler.begin(1000);
        // Ten I/Os a second, at the middles of tenths.
        let steady =
            (0..100u64).position(|n| sampler.count(4096, 1000 + n * 100_000_000 + 50_000_000));
        // Two seconds of ramp, four of the window, and the first I/O after them.
        assert_eq!(steady, Some(60));
        let (_, seconds) = window.result();
        assert_eq!(seconds, [SecondRates { ios: 10, bytes: 40_960 }; 4]);
    }
}
