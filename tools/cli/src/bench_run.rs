//! `uringfs bench run`: runs fio job files and keys on an engine, with a report in fio's format.

use crate::output::{ReportOutput, print};
use crate::progress::Progress;
use std::path::PathBuf;
use std::sync::Arc;
use uringfs_lab::engine::{EngineConfig, EngineKind, fio};
use uringfs_lab::job::{self, JobSet, UnknownKeys};
use uringfs_lab::run::{Overwrite, Run, RunProgress, stop_on_interrupt};
use uringfs_lab::{Error, report};

/// The arguments of the command, beside fio's keys.
#[derive(clap::Args)]
pub struct Arguments {
    /// fio job files; - is standard input
    jobs: Vec<PathBuf>,

    /// A fio key; --KEY=VALUE does the same
    #[arg(long = "key", value_name = "KEY=VALUE", hide = true)]
    keys: Vec<String>,

    /// The I/O engine: uringfs (the default), ring (a bare io_uring loop), psync, threads,
    /// vhost-user (a disk of a vhost-user-blk server, if built in) or fio
    #[arg(long, value_name = "NAME")]
    engine: Option<String>,

    /// The fio program for --engine fio
    #[arg(long, value_name = "PATH", default_value = "fio")]
    exec: PathBuf,

    /// Set a switch of uringfs, as in direct.simple_read=off
    #[arg(long = "set", value_name = "SWITCH=VALUE")]
    settings: Vec<String>,

    /// Formats of the report: normal, json, or both (normal,json)
    #[arg(long, value_name = "FORMATS", default_value = "normal")]
    output_format: String,

    /// Write the report to this file instead of standard output
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Allow writes to existing files, and to devices that hold a file system
    #[arg(long)]
    overwrite: bool,

    /// Warn about unknown keys instead of failing
    #[arg(long)]
    ignore_unknown: bool,

    /// Print the equivalent fio command line and exit
    #[arg(long)]
    showcmd: bool,
}

/// Returns the exit code.
pub fn run(arguments: Arguments) -> Result<u8, Error> {
    let formats = report::parse_formats(&arguments.output_format)?;
    let set = parse(&arguments)?;
    if arguments.showcmd {
        print(&format!("{}\n", fio::command_line(&arguments.exec, &set)?))?;
        return Ok(0);
    }
    let config = config(&arguments)?;
    let output = ReportOutput::new(arguments.output.as_deref(), &set)?;
    let stop = stop_on_interrupt()?;
    let live = Arc::new(RunProgress::default());
    let progress = Progress::start(&live);
    let results = Run {
        set: &set,
        config: &config,
        overwrite: if arguments.overwrite { Overwrite::Allow } else { Overwrite::Refuse },
        stop: &stop,
        progress: &live,
    }
    .run();
    drop(progress);
    let results = results?;
    let written = output.write(&report::render(&results, &formats));
    results.failures().iter().for_each(|line| crate::output::print_error(line));
    written?;
    Ok(results.exit_code())
}

/// Parses keys before files, as fio does.
fn parse(arguments: &Arguments) -> Result<JobSet, Error> {
    let unknown = if arguments.ignore_unknown { UnknownKeys::Ignore } else { UnknownKeys::Refuse };
    let mut parser = job::Parser::new(&job::environment, unknown);
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

fn config(arguments: &Arguments) -> Result<EngineConfig, Error> {
    let engine = arguments.engine.as_deref().map_or(Ok(EngineKind::default()), str::parse)?;
    let settings = settings(&arguments.settings)?;
    Ok(EngineConfig { engine, settings, program: arguments.exec.clone() })
}

/// Parses the switches of `--set`, each SWITCH=VALUE.
pub fn settings(pairs: &[String]) -> Result<Vec<(String, String)>, Error> {
    let setting = |pair: &String| match pair.split_once('=') {
        Some((name, value)) => Ok((name.to_owned(), value.to_owned())),
        None => Err(Error::input(format!("--set {pair}: expected SWITCH=VALUE"))),
    };
    pairs.iter().map(setting).collect()
}
