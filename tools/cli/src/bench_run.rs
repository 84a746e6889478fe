//! `uringfs bench run`: runs fio job files and keys on an engine, with a report in fio's format.

use crate::output::{ReportOutput, print};
use crate::progress::{Eta, Progress};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use uringfs_lab::Error;
use uringfs_lab::engine::{EngineConfig, EngineKind, fio};
use uringfs_lab::job::{self, JobSet, UnknownKeys};
use uringfs_lab::report::{self, Formats};
use uringfs_lab::run::{Overwrite, Results, Run, RunProgress, StatusDumps, stop_on_interrupt};

/// The arguments of the command, beside fio's keys.
#[derive(clap::Args)]
pub struct Arguments {
    /// fio job files; - is standard input
    jobs: Vec<PathBuf>,

    /// A fio key; --KEY=VALUE does the same
    #[arg(long = "key", value_name = "KEY=VALUE", hide = true)]
    keys: Vec<String>,

    /// The I/O engine: uringfs (the default), ring (a bare io_uring loop), nvme-passthru (a
    /// bare loop of NVMe commands to /dev/ngXnY), psync, threads, vhost-user (a disk of a
    /// vhost-user-blk server, if built in) or fio
    #[arg(long, value_name = "NAME")]
    engine: Option<String>,

    /// The fio program for --engine fio
    #[arg(long, value_name = "PATH", default_value = "fio")]
    exec: PathBuf,

    /// Set a switch of uringfs, as in direct.simple_read=off
    #[arg(long = "set", value_name = "SWITCH=VALUE")]
    settings: Vec<String>,

    /// Formats of the report, separated by commas: normal, json, json+ (with the bins of
    /// latencies), terse (version 3)
    #[arg(long, value_name = "FORMATS", default_value = "normal")]
    output_format: String,

    /// The same as --output-format=terse
    #[arg(long, conflicts_with = "output_format")]
    minimal: bool,

    /// Write the report to this file instead of standard output
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// When to show progress on standard error: auto is on a terminal
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    eta: Eta,

    /// Print the results so far at this interval, which may have a unit, as in 2m; at least a
    /// second
    #[arg(long, value_name = "SECONDS")]
    status_interval: Option<String>,

    /// Allow writes to existing files, and to devices that hold a file system
    #[arg(long)]
    overwrite: bool,

    /// Warn about unknown keys instead of failing
    #[arg(long)]
    ignore_unknown: bool,

    /// Run only this section of the job files; give the option again for more
    #[arg(long = "section", value_name = "NAME")]
    sections: Vec<String>,

    /// Print the equivalent fio command line and exit
    #[arg(long)]
    showcmd: bool,

    /// Check the jobs and exit
    #[arg(long)]
    parse_only: bool,

    /// Describe a key of jobs, or list all, and exit
    #[arg(long, value_name = "KEY", num_args = 0..=1, require_equals = true, default_missing_value = ALL)]
    cmdhelp: Option<String>,

    /// Describe an engine, or list all, and exit
    #[arg(long, value_name = "ENGINE", num_args = 0..=1, require_equals = true, default_missing_value = ALL)]
    enghelp: Option<String>,
}

/// The value of `--cmdhelp` and `--enghelp` for a list.
const ALL: &str = "all";

/// Returns the exit code.
pub fn run(arguments: Arguments) -> Result<u8, Error> {
    if let Some(text) = help(&arguments)? {
        print(&text)?;
        return Ok(0);
    }
    let formats = formats(&arguments)?;
    let set = parse(&arguments)?;
    if arguments.parse_only {
        return Ok(0);
    }
    if arguments.showcmd {
        print(&format!("{}\n", fio::command_line(&arguments.exec, &set)?))?;
        return Ok(0);
    }
    let config = config(&arguments, formats)?;
    let interval = status_interval(&arguments, &config)?;
    let output = ReportOutput::new(arguments.output.as_deref(), &set)?;
    let stop = stop_on_interrupt()?;
    let live = Arc::new(RunProgress::default());
    let progress = Progress::start_when(arguments.eta, &live);
    let run = Run {
        set: &set,
        config: &config,
        overwrite: if arguments.overwrite { Overwrite::Allow } else { Overwrite::Refuse },
        stop: &stop,
        progress: &live,
    };
    let dump = |results: &Results| output.write_status(&report::render_status(results, formats));
    let results = match interval {
        Some(interval) => run.run_with_status(StatusDumps { interval, dump: &dump }),
        None => run.run(),
    };
    drop(progress);
    let results = results?;
    let written = output.write(&report::render(&results, formats));
    results.failures().iter().for_each(|line| crate::output::print_error(line));
    written?;
    Ok(results.exit_code())
}

/// The time between reports of a run that goes on.
fn status_interval(
    arguments: &Arguments,
    config: &EngineConfig,
) -> Result<Option<Duration>, Error> {
    let Some(text) = &arguments.status_interval else { return Ok(None) };
    let refuse = |why: String| Err(Error::input(format!("--status-interval: {why}")));
    if config.engine == EngineKind::Fio {
        return refuse("engine fio reports at its end; another engine does at intervals".into());
    }
    match job::seconds(text) {
        // fio's least.
        Ok(interval) if interval < Duration::from_secs(1) => {
            refuse(format!("`{text}` is less than a second"))
        }
        Ok(interval) => Ok(Some(interval)),
        Err(problem) => refuse(problem),
    }
}

/// The text of `--cmdhelp` and `--enghelp`.
fn help(arguments: &Arguments) -> Result<Option<String>, Error> {
    let keys = arguments.cmdhelp.as_deref().map(|name| match name {
        ALL => Ok(job::list_keys()),
        name => job::describe_key(name),
    });
    let engines = arguments.enghelp.as_deref().map(|name| match name {
        ALL => Ok(EngineKind::list()),
        name => name.parse().map(EngineKind::describe),
    });
    keys.or(engines).transpose()
}

fn formats(arguments: &Arguments) -> Result<Formats, Error> {
    match arguments.minimal {
        true => Ok(Formats { terse: true, ..Formats::default() }),
        false => arguments.output_format.parse(),
    }
}

/// Parses keys before files, as fio does.
fn parse(arguments: &Arguments) -> Result<JobSet, Error> {
    let unknown = if arguments.ignore_unknown { UnknownKeys::Ignore } else { UnknownKeys::Refuse };
    let mut parser = job::Parser::new(&job::environment, unknown);
    arguments.sections.iter().for_each(|name| parser.only_section(name));
    for pair in &arguments.keys {
        match pair.split_once('=') {
            Some((key, value)) => parser.argument(key, Some(value))?,
            None => parser.argument(pair, None)?,
        }
    }
    for path in &arguments.jobs {
        parser.file(path)?;
    }
    parser.finish()
}

fn config(arguments: &Arguments, formats: Formats) -> Result<EngineConfig, Error> {
    let engine = arguments.engine.as_deref().map_or(Ok(EngineKind::default()), str::parse)?;
    let settings = settings(&arguments.settings)?;
    let extras = fio::Extras { bins: formats.bins, terse: formats.terse };
    Ok(EngineConfig { engine, settings, program: arguments.exec.clone(), extras })
}

/// Parses the switches of `--set`, each SWITCH=VALUE.
fn settings(pairs: &[String]) -> Result<Vec<(String, String)>, Error> {
    let setting = |pair: &String| match pair.split_once('=') {
        Some((name, value)) => Ok((name.to_owned(), value.to_owned())),
        None => Err(Error::input(format!("--set {pair}: expected SWITCH=VALUE"))),
    };
    pairs.iter().map(setting).collect()
}
