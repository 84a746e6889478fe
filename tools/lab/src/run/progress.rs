//! The progress of a run, for display. Each thread publishes its figures with its half-second samples,
//! on cache lines of its own. No thread waits for another. Without a display there is no other cost.

use super::io_stats::{IoStats, Rates};
use super::loop_result::LoopResult;
use crate::job::DIRECTIONS;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// The progress of a run, shared with the display.
#[derive(Debug, Default)]
pub struct RunProgress(Mutex<ProgressState>);

#[derive(Debug, Default)]
struct ProgressState {
    /// The current activity, in words.
    activity: String,
    /// The threads; empty until the run begins.
    threads: Vec<Arc<ThreadProgress>>,
    began: Option<Instant>,
}

/// The results that the threads of a run keep while they run, beside the figures of the display.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Kept {
    /// Nothing.
    #[default]
    Rates,
    /// All results so far, which [`RunProgress::results`] returns.
    Results,
}

/// The limits of a thread's work, as far as known in advance.
#[derive(Debug, Clone, Copy, Default)]
pub struct ExpectedWork {
    /// The batch of the thread.
    pub batch: u32,
    /// Time limit, from the beginning of the batch.
    pub time: Option<Duration>,
    /// Bytes to transfer, at most.
    pub bytes: Option<u64>,
}

/// The progress of one thread. Only that thread writes to it.
#[derive(Debug, Default)]
// Two cache lines: processors prefetch lines in pairs.
#[repr(align(128))]
pub struct ThreadProgress {
    expected: ExpectedWork,
    /// Nanoseconds from the beginning of the run to the beginning and the end of the thread, each plus 1;
    /// 0 is not yet.
    began_ns: AtomicU64,
    ended_ns: AtomicU64,
    bytes: AtomicU64,
    bytes_per_second: [AtomicU64; DIRECTIONS],
    ios_per_second: [AtomicU64; DIRECTIONS],
    kept: Kept,
    result: Mutex<Option<LoopResult>>,
}

impl ThreadProgress {
    /// Publishes the bytes done and the last rates.
    pub fn publish(&self, stats: &IoStats, rates: Rates) {
        self.bytes.store(stats.directions.iter().map(|direction| direction.bytes).sum(), Relaxed);
        for index in 0..DIRECTIONS {
            self.bytes_per_second[index].store(rates.bytes[index], Relaxed);
            self.ios_per_second[index].store(rates.ios[index], Relaxed);
        }
    }

    /// Whether the thread is to keep its results.
    pub fn keeps_results(&self) -> bool {
        self.kept == Kept::Results
    }

    /// Keeps the results so far, or those of the whole loop.
    pub fn keep(&self, result: LoopResult) {
        *self.result.lock() = Some(result);
    }

    fn is_running(&self) -> bool {
        self.began_ns.load(Relaxed) != 0 && self.ended_ns.load(Relaxed) == 0
    }

    /// Estimate of the thread's total time, in nanoseconds.
    fn total_ns(&self, now_ns: u64) -> Option<f64> {
        let (began, ended) = (self.began_ns.load(Relaxed), self.ended_ns.load(Relaxed));
        if ended != 0 {
            return Some((ended - began) as f64);
        }
        let time = self.expected.time.map(|time| time.as_nanos() as f64);
        let moved = self.bytes.load(Relaxed) as f64;
        let by_bytes = self.expected.bytes.filter(|_| began != 0 && moved > 0.0).map(|bytes| {
            (now_ns + 1).saturating_sub(began) as f64 * (bytes as f64 / moved).max(1.0)
        });
        // The earlier of the two.
        time.into_iter().chain(by_bytes).reduce(f64::min)
    }
}

impl RunProgress {
    /// Sets the current activity, in words.
    pub fn set_activity(&self, activity: &str) {
        self.0.lock().activity = activity.to_owned();
    }

    /// Begins the run, with these threads.
    pub fn begin(&self, threads: impl Iterator<Item = ExpectedWork>, kept: Kept) {
        let mut state = self.0.lock();
        let thread =
            |expected| Arc::new(ThreadProgress { expected, kept, ..ThreadProgress::default() });
        state.threads = threads.map(thread).collect();
        state.began = Some(Instant::now());
    }

    /// Runs `work`, during which the thread counts as running.
    pub fn while_running<T>(&self, thread: usize, work: impl FnOnce(&ThreadProgress) -> T) -> T {
        let (thread, began) = {
            let state = self.0.lock();
            (state.threads[thread].clone(), state.began.unwrap_or_else(Instant::now))
        };
        thread.began_ns.store(began.elapsed().as_nanos() as u64 + 1, Relaxed);
        let done = work(&thread);
        thread.ended_ns.store(began.elapsed().as_nanos() as u64 + 1, Relaxed);
        done
    }

    /// The results that the threads have kept so far; `None` of a thread that has none.
    pub fn results(&self) -> Vec<Option<LoopResult>> {
        let threads = self.0.lock().threads.clone();
        threads.iter().map(|thread| thread.result.lock().clone()).collect()
    }

    /// The current state.
    pub fn snapshot(&self) -> Snapshot {
        let state = self.0.lock();
        let mut snapshot = Snapshot { activity: state.activity.clone(), ..Snapshot::default() };
        for thread in state.threads.iter().filter(|thread| thread.is_running()) {
            snapshot.running += 1;
            for index in 0..DIRECTIONS {
                snapshot.rates.bytes[index] += thread.bytes_per_second[index].load(Relaxed);
                snapshot.rates.ios[index] += thread.ios_per_second[index].load(Relaxed);
            }
        }
        if let Some(began) = state.began {
            let now_ns = began.elapsed().as_nanos() as u64;
            if let Some(whole) = total_ns(&state.threads, now_ns).filter(|whole| *whole > 0.0) {
                // A run that takes longer than estimated is nearly done, not more than done.
                let share = (now_ns as f64 / whole).min(0.999);
                let remaining = Duration::from_nanos((whole - now_ns as f64).max(0.0) as u64);
                snapshot.estimate = Some(Estimate { share, remaining });
            }
        }
        snapshot
    }
}

/// Estimate of the run's total time in nanoseconds: the sum of its batches. An unknown batch counts as the
/// mean of the known ones.
fn total_ns(threads: &[Arc<ThreadProgress>], now_ns: u64) -> Option<f64> {
    let batches: Vec<Option<f64>> = threads
        .chunk_by(|a, b| a.expected.batch == b.expected.batch)
        .map(|batch| {
            let each: Option<Vec<f64>> = batch.iter().map(|one| one.total_ns(now_ns)).collect();
            each?.into_iter().reduce(f64::max)
        })
        .collect();
    let known: Vec<f64> = batches.iter().flatten().copied().collect();
    let sum: f64 = known.iter().sum();
    (!known.is_empty()).then(|| sum / known.len() as f64 * batches.len() as f64)
}

/// The progress of a run at one moment.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    /// The current activity, in words.
    pub activity: String,
    /// The number of running threads.
    pub running: usize,
    /// The sum over running threads, in the last half second.
    pub rates: Rates,
    /// `None` while nothing is known.
    pub estimate: Option<Estimate>,
}

/// An estimate of the end of the run.
#[derive(Debug, Clone, Copy)]
pub struct Estimate {
    /// The share that is done, 0 to 1.
    pub share: f64,
    /// The time that remains.
    pub remaining: Duration,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn thread(batch: u32, seconds: Option<u64>, bytes: Option<u64>) -> Arc<ThreadProgress> {
        let expected = ExpectedWork { batch, time: seconds.map(Duration::from_secs), bytes };
        Arc::new(ThreadProgress { expected, ..ThreadProgress::default() })
    }

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn the_total_is_the_sum_of_each_batch_s_longest_thread() {
        let threads =
            [thread(0, Some(3), None), thread(0, Some(5), None), thread(1, Some(4), None)];
        assert_eq!(total_ns(&threads, 0), Some(9.0 * SECOND as f64));
    }

    #[test]
    fn bytes_may_end_a_thread_before_its_time_limit() {
        let threads = [thread(0, Some(100), Some(1000))];
        assert_eq!(total_ns(&threads, 0), Some(100.0 * SECOND as f64));
        threads[0].began_ns.store(1, Relaxed);
        threads[0].bytes.store(250, Relaxed);
        assert_eq!(total_ns(&threads, 2 * SECOND), Some(8.0 * SECOND as f64));
        threads[0].ended_ns.store(3 * SECOND + 1, Relaxed);
        assert_eq!(total_ns(&threads, 4 * SECOND), Some(3.0 * SECOND as f64));
    }

    #[test]
    fn there_is_no_estimate_without_limits() {
        assert_eq!(total_ns(&[], 5), None);
        assert_eq!(total_ns(&[thread(0, None, Some(1000))], SECOND), None);
        let threads = [thread(0, Some(6), None), thread(1, None, Some(1))];
        assert_eq!(total_ns(&threads, 0), Some(12.0 * SECOND as f64));
    }

    #[test]
    fn only_running_threads_count() {
        let progress = RunProgress::default();
        progress.set_activity("Running scan");
        progress.begin([ExpectedWork::default(); 2].into_iter(), Kept::Rates);
        assert_eq!(progress.snapshot().running, 0);
        progress.while_running(1, |thread| {
            thread.publish(&IoStats::default(), Rates { bytes: [3 << 20, 0, 0], ios: [768, 0, 0] });
            let now = progress.snapshot();
            assert_eq!(
                (now.activity.as_str(), now.running, now.rates.ios),
                ("Running scan", 1, [768, 0, 0])
            );
        });
        assert_eq!((progress.snapshot().running, progress.snapshot().rates), (0, Rates::default()));
    }

    #[test]
    fn results_are_kept_if_they_are_wanted() {
        let progress = RunProgress::default();
        for (kept, expected) in [(Kept::Rates, [None; 2]), (Kept::Results, [None, Some(7)])] {
            progress.begin([ExpectedWork::default(); 2].into_iter(), kept);
            progress.while_running(1, |thread| {
                if thread.keeps_results() {
                    thread.keep(LoopResult { runtime_ns: 7, ..LoopResult::default() });
                }
            });
            let results = progress.results();
            let times: Vec<_> =
                results.iter().map(|result| result.as_ref().map(|kept| kept.runtime_ns)).collect();
            assert_eq!(times, expected);
        }
    }
}
