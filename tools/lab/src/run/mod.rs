//! Runs a set of jobs on an engine: checks and makes the targets, starts a thread for each of
//! `numjobs`, batch by batch, and collects what they counted.

pub mod clock;
mod drive;
mod interrupt;
mod pace;
mod plan;
mod tally;
mod usage;
mod worker;

pub use drive::{Drove, Failure, drive};
pub use interrupt::stop_on_interrupt;
pub use plan::{Overwrite, Plan, ThreadPlan};
pub use tally::{DEPTH_CLASSES, DirectionTally, Tally};
pub use usage::Usage;

use crate::Error;
use crate::engine::{EngineConfig, fio};
use crate::job::{Job, JobSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Instant, SystemTime};

/// What to run, and how.
pub struct Run<'a> {
    /// The jobs.
    pub set: &'a JobSet,
    /// The engine and its switches.
    pub config: &'a EngineConfig,
    /// What may be written over.
    pub overwrite: Overwrite,
    /// Set by Ctrl-C: ends the run at once.
    pub stop: &'a AtomicBool,
    /// Hears in a line what is being done.
    pub watch: &'a dyn Fn(&str),
}

/// What one thread did.
#[derive(Debug)]
pub struct ThreadResult {
    /// Which job of the set.
    pub job: usize,
    /// Its reporting group.
    pub group: u32,
    /// Since its batch began, ramp and delay included.
    pub elapsed_ns: u64,
    /// Its figures.
    pub drove: Drove,
}

/// What a run did.
#[derive(Debug)]
pub struct Outcome {
    /// When it began.
    pub started: SystemTime,
    /// The engine's name.
    pub engine: &'static str,
    /// The jobs, as they were run.
    pub jobs: Vec<Job>,
    /// The global keys as given.
    pub globals: Vec<(String, String)>,
    /// The threads in the order of jobs.
    pub threads: Vec<ThreadResult>,
    /// Files the run made and left.
    pub made: Vec<PathBuf>,
    /// The user stopped it.
    pub incomplete: bool,
    /// Lines for the user that are not the engine's.
    pub notes: Vec<String>,
}

/// What comes out of a run.
#[derive(Debug)]
pub enum Results {
    /// Of an engine of ours.
    Ours(Box<Outcome>),
    /// Of fio itself.
    Fio(fio::Output),
}

impl Results {
    /// What failed, a line a thread.
    pub fn failures(&self) -> Vec<String> {
        let Self::Ours(outcome) = self else {
            return Vec::new();
        };
        let line = |thread: &ThreadResult| {
            let failure = thread.drove.failure.as_ref()?;
            let name = &outcome.jobs[thread.job].name;
            Some(format!("job `{name}`: {}: {}", failure.what, failure.errno))
        };
        outcome.threads.iter().filter_map(line).collect()
    }

    /// The exit code that says how it went.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Ours(outcome) if outcome.incomplete => 130,
            Self::Ours(outcome) => {
                u8::from(outcome.threads.iter().any(|thread| thread.drove.failure.is_some()))
            }
            Self::Fio(output) => output.exit_code,
        }
    }
}

impl Run<'_> {
    /// Runs it all. Errors are what prevented the run; failures during it are in the results.
    pub fn run(&self) -> Result<Results, Error> {
        let facts = self.config.engine.facts();
        let plan = Plan::new(&self.set.jobs, facts, self.overwrite)?;
        let mut made = plan.lay_out(self.stop, self.watch)?;
        let results = match self.run_planned(&plan) {
            Ok(results) => results,
            Err(error) => {
                made.remove();
                return Err(error);
            }
        };
        let incomplete = self.stop.load(Ordering::Relaxed);
        for thread in &plan.threads {
            if self.set.jobs[thread.job].options.unlink {
                thread.targets.iter().for_each(|target| made.remove_target(target));
            }
        }
        if incomplete {
            made.remove();
        }
        Ok(match results {
            Results::Ours(mut outcome) => {
                outcome.made = made.paths().to_vec();
                outcome.incomplete = incomplete;
                Results::Ours(outcome)
            }
            fio => fio,
        })
    }

    fn run_planned(&self, plan: &Plan) -> Result<Results, Error> {
        let jobs = &self.set.jobs;
        let started = SystemTime::now();
        let mut threads = Vec::new();
        let batches = plan.threads.last().map_or(0, |last| last.batch + 1);
        for batch in 0..batches {
            if self.stop.load(Ordering::Relaxed) {
                break;
            }
            let batch: Vec<_> =
                plan.threads.iter().filter(|thread| thread.batch == batch).collect();
            let names: Vec<_> = batch.iter().map(|thread| jobs[thread.job].name.as_str()).collect();
            (self.watch)(&format!("Running {}", distinct(&names)));
            let (config, stop, began) = (self.config, self.stop, Instant::now());
            let work = worker::Batch { jobs, config, stop, threads: &batch, began };
            match self.config.engine.with(work) {
                Some(done) => threads.extend(done?),
                None => {
                    return fio::run(self.set, &self.config.program, self.stop).map(Results::Fio);
                }
            }
        }
        Ok(Results::Ours(Box::new(Outcome {
            started,
            engine: self.config.engine.name(),
            jobs: jobs.clone(),
            globals: self.set.globals.clone(),
            threads,
            made: Vec::new(),
            incomplete: false,
            notes: self.notes(),
        })))
    }

    /// What the user should know about how the jobs were taken.
    fn notes(&self) -> Vec<String> {
        let facts = self.config.engine.facts();
        let name = self.config.engine.name();
        let mut notes = self.set.warnings.clone();
        if self.set.jobs.iter().any(|job| !job.options.direct) && !facts.buffered {
            notes.push(format!("direct=0 ran direct: engine {name} has no page cache yet"));
        }
        if self.set.jobs.iter().any(|job| job.options.depth > 1) && facts.synchronous {
            notes.push(format!("iodepth has no effect: engine {name} does one I/O at a time"));
        }
        notes
    }
}

fn distinct(names: &[&str]) -> String {
    let mut names = names.to_vec();
    names.dedup();
    names.join(", ")
}
