//! Runs the jobs of a side once.

use super::figures::JobFigures;
use super::side::SideSource;
use crate::Error;
use crate::engine::EngineConfig;
use crate::engine::fio::{Extras, Output, Program, job_arguments};
use crate::job::{Job, JobSet};
use crate::report;
use crate::run::{Overwrite, Run, RunProgress};
use crate::targets::CLAIMED_BY_PARENT;
use serde_json::Value;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};

/// Runs the jobs once. Their targets have been checked, so that they may be overwritten.
///
/// # Errors
/// A job failed, or `stop` was set.
pub(crate) fn measure(
    source: &SideSource,
    set: &JobSet,
    stop: &AtomicBool,
) -> Result<Vec<JobFigures>, Error> {
    let report = match source {
        SideSource::Engine(config) => run_here(config, set, stop)?,
        SideSource::Program { path, config } => run_program(path, config, set, stop)?,
        SideSource::Files(_) => unreachable!("files are read, not run"),
    };
    if stop.load(Ordering::Relaxed) {
        return Err(Error::interrupted());
    }
    JobFigures::from_report(&report)
}

fn run_here(config: &EngineConfig, set: &JobSet, stop: &AtomicBool) -> Result<Value, Error> {
    let progress = RunProgress::default();
    let run = Run { set, config, overwrite: Overwrite::Allow, stop, progress: &progress };
    let results = run.run()?;
    match results.failures().first() {
        Some(line) if results.exit_code() != 0 && results.exit_code() != 130 => {
            Err(Error::run(line).exiting_with(results.exit_code()))
        }
        _ => Ok(report::json(&results)),
    }
}

/// A job as options of a command line of this program: its name, its keys, its switches.
pub(crate) fn job_words(job: &Job) -> Vec<String> {
    let mut words = job_arguments(job);
    words.extend(job.options.settings.iter().map(|(name, value)| format!("--{name}={value}")));
    words
}

/// Runs another build of this program, whose jobs have the same keys.
fn run_program(
    path: &Path,
    config: &EngineConfig,
    set: &JobSet,
    stop: &AtomicBool,
) -> Result<Value, Error> {
    let mut command = Command::new(path);
    // Ctrl-C on a terminal would reach it twice, from there and from here, and end it before it has removed its files.
    command.process_group(0);
    command.env(CLAIMED_BY_PARENT, "1");
    command.args(["bench", "run", "--overwrite", "--engine", config.engine.name()]);
    for (name, value) in &config.settings {
        command.args(["--set", &format!("{name}={value}")]);
    }
    let arguments: Vec<String> = set.jobs.iter().flat_map(job_words).collect();
    let hint = "give the path of the program";
    // Its exit codes are those of this program.
    let exit_code = |status: ExitStatus, _json: Option<&Value>| {
        status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
    };
    let extras = Extras::default();
    let program = Program { name: "uringfs", command, extras, hint, exit_code };
    match program.run(&arguments, stop)? {
        Output { exit_code: 0 | 130, json, .. } => Ok(json),
        Output { stderr_lines, exit_code, .. } => {
            let line = stderr_lines.first().map_or("it failed", String::as_str);
            Err(Error::run(path.display().to_string()).because(line).exiting_with(exit_code))
        }
    }
}
