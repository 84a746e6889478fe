//! The entries of a report: one for each thread, or with `group_reporting` for each group.

use crate::engine::EngineReport;
use crate::job::{DIRECTIONS, Job, UnifiedReport};
use crate::run::{DirectionStats, Failure, IoStats, Outcome, SteadyWindow, Usage};
use crate::stats::{LatencyHistogram, RateSamples, Summary};
use std::ops::Range;

/// A latency of an I/O.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Latency {
    /// From the creation to the submission.
    Submission,
    /// From the submission to the completion.
    Completion,
    /// Both.
    Total,
}

impl Latency {
    /// All, in the order of reports.
    pub const ALL: [Self; 3] = [Self::Submission, Self::Completion, Self::Total];

    /// Minimum, maximum, mean and deviation.
    pub fn summary(self, stats: &DirectionStats) -> &Summary {
        match self {
            Self::Submission => &stats.slat,
            Self::Completion => stats.clat.summary(),
            Self::Total => &stats.lat,
        }
    }
}

/// The sum over one thread or one group.
#[derive(Debug, Clone)]
pub struct ReportEntry<'a> {
    /// The job; of a group the first one.
    pub job: &'a Job,
    /// The job; of a group the last one. As with fio, the report has its keys.
    pub last_job: &'a Job,
    /// The reporting group.
    pub group: u32,
    /// The number of threads.
    pub threads: u64,
    /// The counts of the threads.
    pub stats: IoStats,
    /// The resource usage of the threads.
    pub usage: Usage,
    /// The longest time of each direction among the threads.
    pub runtime_ns: [u64; DIRECTIONS],
    /// From the first beginning to the last end: monotonic clock in nanoseconds.
    pub span_ns: Option<Range<u64>>,
    /// The sum of the threads' run times.
    pub thread_time_ns: u64,
    /// The longest elapsed time.
    pub elapsed_ns: u64,
    /// The sum of the engines' reports.
    pub engine: EngineReport,
    /// The depth of the first thread, if `latency_target` has found one.
    pub found_depth: Option<u32>,
    /// The first failure.
    pub failure: Option<Failure>,
    /// The rates by which `steadystate` judges the entry.
    pub steady: Option<&'a SteadyWindow>,
}

impl ReportEntry<'_> {
    /// Bytes per second of reads (0), writes (1) or trims (2).
    pub fn bytes_per_second(&self, direction: usize) -> u64 {
        per_second(self.stats.directions[direction].bytes, self.runtime_ns[direction]) as u64
    }

    /// I/Os per second of reads (0), writes (1) or trims (2).
    pub fn iops(&self, direction: usize) -> f64 {
        per_second(self.stats.directions[direction].ios, self.runtime_ns[direction])
    }

    /// The directions that the report has, each with its name.
    pub fn directions(&self) -> &'static [(usize, &'static str)] {
        match self.job.options.unified {
            UnifiedReport::Mixed => &[(0, "mixed")],
            UnifiedReport::None | UnifiedReport::Both => &[(0, "read"), (1, "write"), (2, "trim")],
        }
    }

    /// The same with the sum of all directions in place of the first.
    pub fn mixed(&self) -> Self {
        let mut mixed = self.clone();
        let [sum, others @ ..] = &mut mixed.stats.directions;
        others.iter_mut().for_each(|other| sum.merge(&std::mem::take(other)));
        let longest = self.runtime_ns.iter().copied().max().unwrap_or(0);
        mixed.runtime_ns = [longest, 0, 0];
        mixed
    }

    /// The depth that `latency_target` has found, or the job's.
    pub fn depth(&self) -> u32 {
        self.found_depth.unwrap_or(self.job.options.depth)
    }

    /// The histogram of a latency whose percentiles the job wants.
    pub fn histogram<'s>(
        &self,
        stats: &'s DirectionStats,
        latency: Latency,
    ) -> Option<&'s LatencyHistogram> {
        match latency {
            Latency::Submission => stats.slat_histogram.as_deref(),
            Latency::Completion => {
                let options = &self.job.options;
                (options.clat_percentiles && options.measure().clat).then_some(&stats.clat)
            }
            Latency::Total => stats.lat_histogram.as_deref(),
        }
    }

    /// The histogram of the syncs, if the job wants percentiles of latencies that have them.
    pub fn sync_histogram(&self) -> Option<&LatencyHistogram> {
        let options = &self.job.options;
        (options.clat_percentiles || options.lat_percentiles).then_some(&self.stats.sync)
    }

    /// The job's percentiles of these latencies; none without latencies.
    pub fn percentiles(&self, times: &LatencyHistogram) -> Vec<(f64, u64)> {
        if times.summary().count() == 0 {
            return Vec::new();
        }
        let one = |&percent: &f64| (percent, times.percentile(percent));
        self.job.options.percentiles.iter().map(one).collect()
    }

    /// A figure of the whole run, per I/O.
    pub fn per_io(&self, figure: u64) -> f64 {
        figure as f64 / self.stats.ios().max(1) as f64
    }

    /// CPU time of the threads and of their engines' threads.
    pub fn cpu_ns(&self) -> u64 {
        self.usage.cpu_ns + self.engine.helper_threads.cpu_ns
    }

    /// Context switches of the threads and of their engines' threads.
    pub fn context_switches(&self) -> u64 {
        self.usage.context_switches + self.engine.helper_threads.context_switches
    }

    /// Time of a direction in milliseconds, rounded up, because it is a divisor.
    pub fn runtime_ms(&self, direction: usize) -> u64 {
        self.runtime_ns[direction].div_ceil(1_000_000)
    }
}

/// The sum over a reporting group, for one direction.
#[derive(Debug, Clone, Copy)]
pub struct ReportGroup {
    /// Bytes transferred.
    pub bytes: u64,
    /// The shortest and the longest run time.
    pub runtime_ns: [u64; 2],
    /// Bytes per second of the slowest and the fastest entry.
    pub rates: [u64; 2],
    /// Bytes per second of the group.
    pub bytes_per_second: u64,
}

impl ReportGroup {
    /// Sums a group; `None` without I/O in this direction.
    pub fn from_entries(entries: &[ReportEntry<'_>], group: u32, direction: usize) -> Option<Self> {
        let member = |entry: &ReportEntry<'_>| {
            let stats = &entry.stats.directions[direction];
            (stats.ios > 0).then_some((stats.bytes, entry.runtime_ns[direction]))
        };
        Self::sum(entries, group, member)
    }

    /// Sums a group over all directions.
    pub fn mixed(entries: &[ReportEntry<'_>], group: u32) -> Option<Self> {
        // Sums only: with the histograms of each entry, many entries would take long.
        let member = |entry: &ReportEntry<'_>| {
            let bytes: u64 = entry.stats.directions.iter().map(|stats| stats.bytes).sum();
            let longest = entry.runtime_ns.iter().copied().max().unwrap_or(0);
            (entry.stats.ios() > 0).then_some((bytes, longest))
        };
        Self::sum(entries, group, member)
    }

    /// Sums bytes and times of those entries of a group that have some.
    fn sum(
        entries: &[ReportEntry<'_>],
        group: u32,
        member: impl Fn(&ReportEntry<'_>) -> Option<(u64, u64)>,
    ) -> Option<Self> {
        let members = || entries.iter().filter(|entry| entry.group == group).filter_map(&member);
        let times = || members().map(|(_, ns)| ns);
        let rates = || members().map(|(bytes, ns)| per_second(bytes, ns) as u64);
        let (bytes, longest) = (members().map(|(bytes, _)| bytes).sum(), times().max()?);
        Some(Self {
            bytes,
            runtime_ns: [times().min()?, longest],
            rates: [rates().min()?, rates().max()?],
            bytes_per_second: per_second(bytes, longest) as u64,
        })
    }

    /// The percentage of the group's bandwidth in these samples: fio's `per`.
    pub fn share(&self, samples: &RateSamples) -> f64 {
        (samples.mean() * 1024.0 * 100.0 / self.bytes_per_second.max(1) as f64).min(100.0)
    }
}

fn per_second(count: u64, ns: u64) -> f64 {
    if ns == 0 { 0.0 } else { count as f64 * 1e9 / ns as f64 }
}

/// The entries of a run, in order.
pub fn entries(outcome: &Outcome) -> Vec<ReportEntry<'_>> {
    let mut entries: Vec<ReportEntry<'_>> = Vec::new();
    for thread in &outcome.threads {
        let job = &outcome.jobs[thread.job];
        let result = &thread.result;
        let joins =
            |last: &ReportEntry<'_>| job.options.group_reporting && last.group == thread.group;
        if !entries.last().is_some_and(joins) {
            entries.push(ReportEntry {
                job,
                last_job: job,
                group: thread.group,
                threads: 0,
                stats: IoStats::default(),
                usage: Usage::default(),
                runtime_ns: [0; DIRECTIONS],
                span_ns: None,
                thread_time_ns: 0,
                elapsed_ns: 0,
                engine: EngineReport::default(),
                found_depth: None,
                failure: None,
                steady: None,
            });
        }
        let Some(entry) = entries.last_mut() else { continue };
        entry.threads += 1;
        entry.last_job = job;
        entry.steady = entry.steady.or(thread.steady.as_deref());
        entry.stats.merge(&result.stats);
        entry.usage = entry.usage.plus(result.usage);
        for (longest, ran) in entry.runtime_ns.iter_mut().zip(result.direction_ns) {
            *longest = ran.max(*longest);
        }
        // A thread that was never started has no beginning.
        if result.runtime_ns > 0 {
            let (began, ended) = (result.started_ns, result.started_ns + result.runtime_ns);
            let span = entry.span_ns.get_or_insert(began..ended);
            *span = span.start.min(began)..span.end.max(ended);
        }
        entry.thread_time_ns += result.runtime_ns;
        entry.elapsed_ns = entry.elapsed_ns.max(thread.elapsed_ns);
        entry.engine.merge(&result.engine);
        entry.found_depth = entry.found_depth.or(result.found_depth);
        entry.failure = entry.failure.take().or_else(|| result.failure.clone());
    }
    for entry in &mut entries {
        if entry.job.options.unified == UnifiedReport::Mixed {
            *entry = entry.mixed();
        }
    }
    entries
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{Parser, UnknownKeys};
    use crate::run::{LoopResult, ThreadResult};
    use proptest::prelude::*;
    use std::time::SystemTime;

    /// Two jobs; the second has `group_reporting`.
    fn outcome(threads: Vec<ThreadResult>) -> Outcome {
        let mut parser = Parser::new(&|_| None, UnknownKeys::Refuse);
        parser.bytes(b"[a]\n[b]\ngroup_reporting\n", "x.fio").unwrap();
        Outcome {
            started: SystemTime::UNIX_EPOCH,
            engine: "psync",
            jobs: parser.finish().unwrap().jobs,
            globals: Vec::new(),
            threads,
            files_made: Vec::new(),
            disks: Vec::new(),
            incomplete: false,
            notes: Vec::new(),
            close_failure: None,
        }
    }

    fn thread(job: usize, group: u32, ios: [u64; DIRECTIONS], runtime_ns: u64) -> ThreadResult {
        let mut stats = IoStats::default();
        for (direction, ios) in stats.directions.iter_mut().zip(ios) {
            (direction.ios, direction.bytes) = (ios, ios * 4096);
        }
        let usage = Usage { context_switches: ios[0], minor_faults: 1, ..Usage::default() };
        let engine = EngineReport::default();
        let result = LoopResult {
            stats,
            usage,
            started_ns: 0,
            in_ramp: false,
            runtime_ns,
            direction_ns: [runtime_ns; DIRECTIONS],
            engine,
            found_depth: None,
            failure: None,
            wrong_blocks: Vec::new(),
        };
        ThreadResult { job, group, elapsed_ns: runtime_ns, result, steady: None }
    }

    #[test]
    fn a_group_spans_threads_that_run_one_after_the_other() {
        let mut threads: Vec<_> = (0..3).map(|_| thread(1, 0, [10, 0, 0], 1_000)).collect();
        threads[0].result.started_ns = 2_000;
        threads[1].result.started_ns = 500;
        threads[2].result.runtime_ns = 0;
        let outcome = outcome(threads);
        let entries = entries(&outcome);
        assert_eq!((entries[0].span_ns.clone(), entries.len()), (Some(500..3_000), 1));
    }

    proptest! {
        #[test]
        fn entries_and_groups_lose_nothing_and_count_nothing_twice(
            threads in proptest::collection::vec(
                (0..2usize, 0..3u32, [0..1000u64, 0..1000u64, 0..1000u64], 1_000_000..10_000_000_000u64), 1..20),
        ) {
            let mut threads: Vec<_> = threads
                .into_iter()
                .map(|(job, group, ios, runtime_ns)| thread(job, group, ios, runtime_ns))
                .collect();
            threads.sort_by_key(|thread| (thread.group, thread.job));
            let alone = threads.iter().filter(|thread| thread.job == 0).count();
            let mut together: Vec<u32> =
                threads.iter().filter(|thread| thread.job == 1).map(|thread| thread.group).collect();
            together.dedup();
            let outcome = outcome(threads);
            let entries = entries(&outcome);
            // A job with `group_reporting` joins the entry before it in its group.
            prop_assert!(entries.len() <= alone + together.len() && entries.len() >= alone);
            let of_threads = |figure: &dyn Fn(&LoopResult) -> u64| -> u64 {
                outcome.threads.iter().map(|thread| figure(&thread.result)).sum()
            };
            let of_entries = |figure: &dyn Fn(&ReportEntry<'_>) -> u64| -> u64 {
                entries.iter().map(figure).sum()
            };
            prop_assert_eq!(of_entries(&|entry| entry.threads), outcome.threads.len() as u64);
            prop_assert_eq!(of_entries(&|e| e.thread_time_ns), of_threads(&|d| d.runtime_ns));
            prop_assert_eq!(
                of_entries(&|e| e.usage.context_switches + e.usage.minor_faults),
                of_threads(&|d| d.usage.context_switches + d.usage.minor_faults)
            );
            let mixed: Vec<ReportEntry<'_>> = entries.iter().map(ReportEntry::mixed).collect();
            for group in 0..3 {
                let figures = |sum: Option<ReportGroup>| {
                    sum.map(|sum| (sum.bytes, sum.runtime_ns, sum.rates, sum.bytes_per_second))
                };
                let sum = ReportGroup::from_entries(&mixed, group, 0);
                prop_assert_eq!(figures(ReportGroup::mixed(&entries, group)), figures(sum));
            }
            for index in 0..DIRECTIONS {
                let bytes = of_threads(&|result| result.stats.directions[index].bytes);
                let groups: Vec<ReportGroup> =
                    (0..3).filter_map(|group| ReportGroup::from_entries(&entries, group, index)).collect();
                prop_assert_eq!(groups.iter().map(|group| group.bytes).sum::<u64>(), bytes);
                for group in groups {
                    let [shortest, longest] = group.runtime_ns;
                    let [slowest, fastest] = group.rates;
                    prop_assert!(shortest <= longest && slowest <= fastest);
                    // The group cannot be slower than its longest-running member.
                    prop_assert!(group.bytes_per_second >= slowest);
                }
            }
        }
    }
}
