//! Runs a set of jobs on an engine: checks and creates the targets, starts a thread for each of
//! `numjobs`, batch by batch, and collects the threads' results.

mod interrupt;
mod plan;
mod worker;
mod thread_result;
mod io_log;
mod io_loop;
mod read_back;
mod failure;
mod group_stop;
mod progress;
mod rate_limit;
mod io_stats;
mod steady;
mod usage;
pub mod clock;

pub use failure::Failure;
pub use interrupt::{readable_on_interrupt, stop_on_interrupt, stop_signals};
pub use io_log::{IoLogs, LoggedIo};
pub use io_loop::{LoopResult, Observers, run_io_loop};
pub use io_stats::{DEPTH_CLASSES, DirectionStats, IoStats, Rates};
pub use plan::{Overwrite, Plan, ThreadPlan};
pub use progress::{Estimate, RunProgress, Snapshot, ThreadProgress};
pub use steady::{Judgement, SecondRates, SteadySampler, SteadyWindow};
pub use thread_result::ThreadResult;
pub use usage::Usage;

use crate::engine::{EngineConfig, EngineKind, fio};
use crate::job::{Job, JobSet, Options};
use crate::targets::{CreatedFiles, DiskMonitor, DiskStats, Volumes};
use crate::workload::Amount;
use crate::{Error, ErrorKind};
use progress::ExpectedWork;
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

/// The outcome of a run on an engine of ours.
#[derive(Debug)]
pub struct Outcome {
    /// The beginning of the run.
    pub started: SystemTime,
    /// The engine's name.
    pub engine: &'static str,
    /// The jobs that were run.
    pub jobs: Vec<Job>,
    /// The global keys and values, as written.
    pub globals: Vec<(String, String)>,
    /// The threads, in the order of jobs.
    pub threads: Vec<ThreadResult>,
    /// Files that the run created and left.
    pub files_made: Vec<String>,
    /// The I/O of the disks under the targets.
    pub disks: Vec<DiskStats>,
    /// Whether the user stopped the run.
    pub incomplete: bool,
    /// Notes for the user, other than the engine's.
    pub notes: Vec<String>,
}

/// The results of a run.
#[derive(Debug)]
pub enum Results {
    /// Results of an engine of ours.
    Ours(Box<Outcome>),
    /// Output of fio.
    Fio(fio::Output),
}

impl Results {
    /// One line for each failed job, after one line for each of its first wrong blocks.
    pub fn failures(&self) -> Vec<String> {
        let outcome = match self {
            Self::Ours(outcome) => outcome,
            Self::Fio(output) => return output.stderr_lines.clone(),
        };
        let lines = |threads: &[ThreadResult]| {
            let name = &outcome.jobs[threads[0].job].name;
            let result = || threads.iter().map(|thread| &thread.result);
            let mut failures = result().filter_map(|result| result.failure.as_ref());
            let first = failures.next();
            let more = match failures.count() {
                0 => String::new(),
                more => format!("; {more} more of its threads failed too"),
            };
            // If a job stopped at a wrong block, that block is its failure.
            let wrong = result().flat_map(|result| &result.wrong_blocks);
            let wrong = wrong.filter(|wrong| Some(*wrong) != first);
            let mut lines: Vec<_> = wrong.map(|wrong| format!("job `{name}`: {wrong}")).collect();
            lines.extend(first.map(|first| format!("job `{name}`: {first}{more}")));
            lines
        };
        outcome.threads.chunk_by(|a, b| a.job == b.job).flat_map(lines).collect()
    }

    /// The exit code: 0, 1 if a job failed, 130 if the user stopped the run.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Ours(outcome) if outcome.incomplete => 130,
            Self::Ours(outcome) => {
                u8::from(outcome.threads.iter().any(|thread| thread.result.failure.is_some()))
            }
            Self::Fio(output) => output.exit_code,
        }
    }
}

impl Run<'_> {
    /// Runs all jobs. Failures during the run are in the results.
    ///
    /// # Errors
    /// The run could not begin.
    pub fn run(&self) -> Result<Results, Error> {
        let capabilities = self.config.engine.capabilities();
        let plan = Plan::new(&self.set.jobs, capabilities, self.overwrite)?;
        // Before the first byte, and below what has been created.
        plan.claim()?;
        let volumes = plan.open_volumes()?;
        let mut created = match plan.lay_out(&volumes, self.stop, self.progress) {
            Err(error) if error.kind() == ErrorKind::Interrupted => CreatedFiles::default(),
            created => created?,
        };
        let results = match plan.claim().and_then(|()| self.run_planned(&plan, &volumes)) {
            Ok(results) => results,
            Err(error) => {
                created.remove(&volumes);
                return Err(error);
            }
        };
        let incomplete = self.stop.load(Ordering::Relaxed);
        for thread in &plan.threads {
            if self.set.jobs[thread.job].options.unlink {
                thread.targets.iter().for_each(|target| created.remove_one(target, &volumes));
            }
        }
        if incomplete {
            created.remove(&volumes);
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

    fn run_planned(&self, plan: &Plan, volumes: &Volumes) -> Result<Results, Error> {
        disable_timer_slack();
        let jobs = &self.set.jobs;
        let started = SystemTime::now();
        let run =
            started.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |age| age.as_nanos() as u64);
        let shown = plan.threads.iter().filter(|thread| jobs[thread.job].options.disk_util);
        let disks = DiskMonitor::new(shown.flat_map(|thread| &thread.targets));
        self.progress.begin(plan.threads.iter().map(|thread| expected(thread, jobs)));
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
                None => {
                    let EngineConfig { program, extras, .. } = self.config;
                    return fio::run(self.set, program, *extras, self.stop).map(Results::Fio);
                }
            }
        }
        Ok(Results::Ours(Box::new(Outcome {
            started,
            engine: self.config.engine.name(),
            jobs: jobs.clone(),
            globals: self.set.globals.to_vec(),
            threads,
            files_made: Vec::new(),
            disks: disks.stats(),
            incomplete: false,
            notes: self.notes(),
        })))
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
        for (key, reason) in capabilities.ignored_keys {
            if self.set.jobs.iter().any(|job| job.enables(key)) {
                notes.push(format!("{key} has no effect: engine {name}: {reason}"));
            }
        }
        notes
    }
}

/// Keys of fio that have one value here, with that value and the reason.
const ONE_VALUE: [(&str, &str, &str); 2] = [
    ("clocksource", "clock_gettime", "all engines but fio read the clock with clock_gettime"),
    ("mem", "malloc", "the buffers of all engines but fio are ordinary pages of the process"),
];

/// Sets the timer slack of this thread, and of threads and programs that it starts from now on, to the
/// minimum. The default is 50 us, which is most of the time of a simulated device.
fn disable_timer_slack() {
    // If the kernel refuses, timers end later.
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
}

/// The limits of a thread's work: time and bytes.
fn expected(thread: &ThreadPlan, jobs: &[Job]) -> ExpectedWork {
    let Options { start_delay, ramp_time, runtime, time_based, loops, .. } =
        &jobs[thread.job].options;
    let bytes = match thread.amount {
        Amount::Bytes(_) if *time_based => None,
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
    use std::process::Command;

    #[test]
    fn later_threads_and_programs_have_no_timer_slack() {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                super::disable_timer_slack();
                let inherited = scope.spawn(rustix::thread::current_timer_slack).join();
                assert_eq!(inherited.unwrap(), Ok(1));
                let program = Command::new("cat").arg("/proc/self/timerslack_ns").output().unwrap();
                assert_eq!(program.stdout, b"1\n");
            });
        });
    }
}
