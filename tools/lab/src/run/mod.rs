//! Runs a set of jobs on an engine: checks and creates the targets, starts a thread for each of
//! `numjobs`, batch by batch, and collects the threads' results.

mod interrupt;
mod plan;
mod worker;
mod status;
mod outcome;
mod thread_result;
mod io_log;
mod iolog_writer;
mod io_loop;
mod read_back;
mod depth_search;
mod group_stop;
mod progress;
mod loop_result;
mod failure;
mod rate_limit;
mod io_stats;
mod steady;
mod usage;
pub mod clock;

pub use failure::Failure;
pub use interrupt::{readable_on_interrupt, stop_on_interrupt, stop_signals};
pub use io_log::{IoLogs, LoggedIo};
pub use io_loop::{Observers, run_io_loop};
pub use io_stats::{DEPTH_CLASSES, DirectionStats, IoStats, Rates};
pub use iolog_writer::IoLogWriter;
pub use loop_result::LoopResult;
pub use outcome::{Outcome, Results};
pub use plan::{Overwrite, Plan, ThreadPlan};
pub use progress::{Estimate, RunProgress, Snapshot, ThreadProgress};
pub use status::StatusDumps;
pub use steady::{Judgement, SecondRates, SteadySampler, SteadyWindow};
pub use thread_result::ThreadResult;
pub use usage::Usage;

use crate::engine::{EngineConfig, EngineKind, fio};
use crate::job::{Job, JobSet, Options};
use crate::targets::{CreatedFiles, DiskMonitor, Volumes};
use crate::workload::Amount;
use crate::{Error, ErrorKind};
use progress::{ExpectedWork, Kept};
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Instant, SystemTime};

/// A run: jobs, engine and conditions.
#[derive(Debug)]
pub struct Run<'a> {
    /// The jobs.
    pub set: &'a JobSet,
    /// The engine and its switches.
    pub config: &'a EngineConfig,
    /// Whether existing data may be overwritten.
    pub overwrite: Overwrite,
    /// Set by Ctrl-C; ends the run at once.
    pub stop: &'a AtomicBool,
    /// Receives the progress.
    pub progress: &'a RunProgress,
}

impl Run<'_> {
    /// Runs all jobs. Failures during the run are in the results.
    ///
    /// # Errors
    /// The run could not begin.
    pub fn run(&self) -> Result<Results, Error> {
        self.run_with(None)
    }

    /// The same, with the results so far at intervals. Those of a thread are as old as its last half-second sample.
    ///
    /// # Errors
    /// The run could not begin.
    pub fn run_with_status(&self, dumps: StatusDumps<'_>) -> Result<Results, Error> {
        self.run_with(Some(dumps))
    }

    fn run_with(&self, dumps: Option<StatusDumps<'_>>) -> Result<Results, Error> {
        let capabilities = self.config.engine.capabilities();
        let plan = Plan::new(&self.set.jobs, capabilities, self.overwrite)?;
        // Before the first byte, and below what has been created.
        plan.claim()?;
        let volumes = plan.open_volumes()?;
        let results = self.run_on(&plan, &volumes, dumps);
        let closed = volumes.close();
        let mut results = results?;
        if let (Results::Ours(outcome), Err(error)) = (&mut results, closed) {
            outcome.close_failure = Some(error.to_string());
        }
        Ok(results)
    }

    /// Lays the files out, runs the jobs, and removes the files that are to be removed.
    fn run_on(
        &self,
        plan: &Plan,
        volumes: &Volumes,
        dumps: Option<StatusDumps<'_>>,
    ) -> Result<Results, Error> {
        let mut created = match plan.lay_out(volumes, self.stop, self.progress) {
            Err(error) if error.kind() == ErrorKind::Interrupted => CreatedFiles::default(),
            created => created?,
        };
        let results = match plan.claim().and_then(|()| self.run_planned(plan, volumes, dumps)) {
            Ok(results) => results,
            Err(error) => {
                created.remove(volumes);
                return Err(error);
            }
        };
        let incomplete = self.stop.load(Ordering::Relaxed);
        for thread in &plan.threads {
            if self.set.jobs[thread.job].options.unlink {
                thread.targets.iter().for_each(|target| created.remove_one(target, volumes));
            }
        }
        if incomplete || results.exit_code() == 2 {
            created.remove(volumes);
        }
        Ok(match results {
            Results::Ours(mut outcome) => {
                outcome.files_made = created.names();
                outcome.incomplete = incomplete;
                Results::Ours(outcome)
            }
            Results::Fio(mut output) => {
                output.files_made = created.names();
                Results::Fio(output)
            }
        })
    }

    fn run_planned(
        &self,
        plan: &Plan,
        volumes: &Volumes,
        dumps: Option<StatusDumps<'_>>,
    ) -> Result<Results, Error> {
        disable_timer_slack();
        let jobs = &self.set.jobs;
        let (started, began) = (SystemTime::now(), Instant::now());
        let shown = plan.threads.iter().filter(|thread| jobs[thread.job].options.disk_util);
        let disks = DiskMonitor::new(shown.flat_map(|thread| &thread.targets));
        let kept = if dumps.is_some() { Kept::Results } else { Kept::Rates };
        self.progress.begin(plan.threads.iter().map(|thread| expected(thread, jobs)), kept);
        let outcome = |threads: Vec<ThreadResult>| {
            let mut notes = self.notes();
            notes.extend(ramp_notes(&threads, jobs));
            Results::Ours(Box::new(Outcome {
                started,
                engine: self.config.engine.name(),
                jobs: jobs.clone(),
                globals: self.set.globals.to_vec(),
                threads,
                files_made: Vec::new(),
                disks: disks.stats(),
                incomplete: false,
                notes,
                close_failure: None,
            }))
        };
        let so_far = || {
            let results = self.progress.results().into_iter().zip(&plan.threads);
            let elapsed_ns = began.elapsed().as_nanos() as u64;
            let thread = |(result, thread): (Option<LoopResult>, _)| match result {
                Some(result) => ThreadResult::so_far(thread, result, elapsed_ns),
                None => ThreadResult::not_started(thread),
            };
            outcome(results.map(thread).collect())
        };
        let run = || self.run_batches(plan, volumes, started);
        let threads = match dumps {
            Some(dumps) => dumps.during(so_far, run)?,
            None => run()?,
        };
        match threads {
            Some(threads) => Ok(outcome(threads)),
            None => {
                let EngineConfig { program, extras, .. } = self.config;
                fio::run(self.set, program, *extras, self.stop).map(Results::Fio)
            }
        }
    }

    /// Runs one batch after the other; `None` if fio runs the jobs.
    fn run_batches(
        &self,
        plan: &Plan,
        volumes: &Volumes,
        started: SystemTime,
    ) -> Result<Option<Vec<ThreadResult>>, Error> {
        let jobs = &self.set.jobs;
        let run =
            started.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |age| age.as_nanos() as u64);
        let mut threads = Vec::new();
        for batch in plan.threads.chunk_by(|a, b| a.batch == b.batch) {
            if self.stop.load(Ordering::Relaxed) {
                // The report has threads that never began, too, with nothing done.
                threads.extend(batch.iter().map(ThreadResult::not_started));
                continue;
            }
            let names: Vec<_> = batch.iter().map(|thread| jobs[thread.job].name.as_str()).collect();
            self.progress.set_activity(&format!("Running {}", distinct(&names)));
            let (config, stop, progress) = (self.config, self.stop, self.progress);
            let (first, started) = (threads.len(), Instant::now());
            let work = worker::Batch {
                jobs,
                config,
                volumes,
                stop,
                progress,
                first,
                threads: batch,
                started,
                run,
            };
            match self.config.engine.with(work) {
                Some(done) => threads.extend(done?),
                None => return Ok(None),
            }
        }
        Ok(Some(threads))
    }

    /// Notes about keys that have no effect with this engine, and the parser's warnings.
    fn notes(&self) -> Vec<String> {
        let capabilities = self.config.engine.capabilities();
        let name = self.config.engine.name();
        let mut notes = self.set.warnings.clone();
        let has_cache = |options: &Options| {
            let mut settings = options.settings.iter().chain(&self.config.settings);
            settings.any(|(name, _)| name == "buffered.cache_bytes")
        };
        let mut options = self.set.jobs.iter().map(|job| &job.options);
        if !capabilities.buffered && options.any(|options| !options.direct && !has_cache(options)) {
            let hint = match self.config.engine {
                EngineKind::Uringfs => "; give --set buffered.cache_bytes=N, or the key in the job",
                _ => "",
            };
            notes.push(format!(
                "direct=0 had no effect: engine {name} has no page cache for this job{hint}"
            ));
        }
        if self.set.jobs.iter().any(|job| job.options.depth > 1) && capabilities.synchronous {
            notes.push(format!("iodepth has no effect: engine {name} does one I/O at a time"));
        }
        for (key, only, reason) in ONE_VALUE {
            let is_other = |job: &Job| job.value(key).is_some_and(|value| value != only);
            if self.set.jobs.iter().any(is_other) {
                notes.push(format!("{key} has no effect: {reason}"));
            }
        }
        let replays = self.set.jobs.iter().filter(|job| job.options.iolog.is_some());
        for key in DECIDED_BY_TRACES {
            if replays.clone().any(|job| job.value(key).is_some()) {
                notes.push(format!("{key} has no effect: the trace of read_iolog decides"));
            }
        }
        let mut checksums = self.set.jobs.iter().filter_map(|job| job.value("verify"));
        let own = ["0", "crc32c", "crc32c-intel", "pattern"];
        if let Some(other) = checksums.find(|checksum| !own.contains(checksum)) {
            notes.push(format!("verify={other}: each block has a CRC32C instead"));
        }
        for (key, reason) in capabilities.ignored_keys {
            if self.set.jobs.iter().any(|job| job.enables(key)) {
                notes.push(format!("{key} has no effect: engine {name}: {reason}"));
            }
        }
        notes
    }
}

/// Notes about jobs whose threads ended before their ramps.
fn ramp_notes(threads: &[ThreadResult], jobs: &[Job]) -> Vec<String> {
    let note = |threads: &[ThreadResult]| {
        let Job { name, options, .. } = &jobs[threads[0].job];
        let ended = threads.iter().filter(|thread| thread.result.in_ramp).count();
        let time = options.ramp_time.as_secs_f64();
        (ended > 0).then(|| {
            format!(
                "job `{name}` ended within its ramp_time of {time} s: its figures are of the ramp"
            )
        })
    };
    threads.chunk_by(|a, b| a.job == b.job).filter_map(note).collect()
}

/// Keys of fio that have one value here, with that value and the reason.
const ONE_VALUE: [(&str, &str, &str); 11] = [
    ("clocksource", "clock_gettime", "all engines but fio read the clock with clock_gettime"),
    ("mem", "malloc", "the buffers of all engines but fio are ordinary pages of the process"),
    ("thread", "1", "the jobs of all engines but fio are threads of one process"),
    ("verify_async", "0", "the thread of a job verifies its reads"),
    ("verify_dump", "0", "a message names offset, expected and found value of a wrong block"),
    (
        "random_generator",
        "",
        "all engines but fio have the same order of blocks, of a generator of their own",
    ),
    ("scramble_buffers", "0", "give refill_buffers for other bytes in each write"),
    ("create_serialize", "1", "files are laid out one after the other"),
    ("create_on_open", "0", "files are created before the run"),
    ("openfiles", "", "all files of a job are open"),
    ("fadvise_hint", "0", "no advice is given to the kernel"),
];

/// Keys without effect beside `read_iolog`.
const DECIDED_BY_TRACES: [&str; 24] = [
    "rw",
    "rwmixread",
    "rwmixwrite",
    "bs",
    "bsrange",
    "bssplit",
    "filename",
    "directory",
    "nrfiles",
    "size",
    "filesize",
    "io_size",
    "number_ios",
    "file_append",
    "file_service_type",
    "ba",
    "norandommap",
    "offset",
    "offset_increment",
    "random_distribution",
    "percentage_random",
    "rate",
    "rate_iops",
    "thinktime",
];

/// Sets the timer slack of this thread, and of threads and programs that it starts from now on, to the
/// minimum. The default is 50 us, which is most of the time of a simulated device.
fn disable_timer_slack() {
    // If the kernel refuses, timers end later.
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
}

/// The limits of a thread's work: time and bytes.
fn expected(thread: &ThreadPlan, jobs: &[Job]) -> ExpectedWork {
    let Options { pattern, start_delay, ramp_time, runtime, time_based, loops, .. } =
        &jobs[thread.job].options;
    let bytes = match thread.amount {
        Amount::Bytes(_) if *time_based => None,
        // Each block of a trimwrite is trimmed and written.
        Amount::Bytes(bytes) if pattern.writes_trimmed() => {
            Some(bytes.saturating_mul(*loops).saturating_mul(2))
        }
        Amount::Bytes(bytes) => Some(bytes.saturating_mul(*loops)),
        Amount::Endless => None,
    };
    let runtime = runtime.filter(|time| !time.is_zero());
    let time = runtime.map(|time| *start_delay + *ramp_time + time);
    ExpectedWork { batch: thread.batch, time, bytes }
}

fn distinct(names: &[&str]) -> String {
    let mut names = names.to_vec();
    names.dedup();
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{Parser, UnknownKeys};
    use std::process::Command;

    #[test]
    fn jobs_that_end_within_their_ramps_have_notes() {
        let mut parser = Parser::new(&|_| None, UnknownKeys::Refuse);
        let text = b"[global]\nramp_time=1500ms\nsize=1m\n[first]\nnumjobs=2\n[second]\n";
        parser.bytes(text, "test").unwrap();
        let jobs = parser.finish().unwrap().jobs;
        let thread = |job, in_ramp| ThreadResult {
            job,
            group: 0,
            elapsed_ns: 0,
            result: LoopResult { in_ramp, ..LoopResult::default() },
            steady: None,
        };
        let notes = ramp_notes(&[thread(0, false), thread(0, true), thread(1, false)], &jobs);
        let note = "job `first` ended within its ramp_time of 1.5 s: its figures are of the ramp";
        assert_eq!(notes, [note]);
    }

    #[test]
    fn later_threads_and_programs_have_no_timer_slack() {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                disable_timer_slack();
                let inherited = scope.spawn(rustix::thread::current_timer_slack).join();
                assert_eq!(inherited.unwrap(), Ok(1));
                let program = Command::new("cat").arg("/proc/self/timerslack_ns").output().unwrap();
                assert_eq!(program.stdout, b"1\n");
            });
        });
    }
}
