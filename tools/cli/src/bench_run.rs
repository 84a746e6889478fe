//! `uringfs bench run`: fio job files and keys, on an engine, reported as fio reports.

use crate::output::{ReportOutput, print};
use crate::progress::Progress;
use std::path::PathBuf;
use std::sync::Arc;
use uringfs_lab::engine::{EngineConfig, EngineKind, fio};
use uringfs_lab::job::{self, JobSet, UnknownKeys};
use uringfs_lab::run::{Live, Overwrite, Run, stop_on_interrupt};
use uringfs_lab::{Error, report};

/// What the command takes, beside fio's keys.
#[derive(clap::Args)]
pub struct Arguments {
    /// fio job files; - is standard input
    jobs: Vec<PathBuf>,

    /// A fio key; every --KEY=VALUE is one
    #[arg(long = "key", value_name = "KEY=VALUE", hide = true)]
    keys: Vec<String>,

    /// What carries out the I/O
    #[arg(long, value_name = "NAME")]
    engine: Option<String>,

    /// The program that --engine fio runs
    #[arg(long, value_name = "PATH", default_value = "fio")]
    exec: PathBuf,

    /// A switch of the stack, as in direct.simple_read=off
    #[arg(long = "set", value_name = "NAME=VALUE")]
    settings: Vec<String>,

    /// normal, json, or both
    #[arg(long, value_name = "FORMATS", default_value = "normal")]
    output_format: String,

    /// Where the report goes, instead of standard output
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Write to existing files, and to devices that hold a file system
    #[arg(long)]
    overwrite: bool,

    /// Warn about unknown keys instead of stopping
    #[arg(long)]
    ignore_unknown: bool,

    /// Print the fio command line that means the same, and stop
    #[arg(long)]
    showcmd: bool,
}

/// Runs the command; gives its exit code.
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
    let live = Arc::new(Live::default());
    let progress = Progress::start(&live);
    let results = Run {
        set: &set,
        config: &config,
        overwrite: if arguments.overwrite { Overwrite::Allow } else { Overwrite::Refuse },
        stop: &stop,
        live: &live,
    }
    .run();
    drop(progress);
    let results = results?;
    let written = output.write(&report::render(&results, &formats));
    results.failures().iter().for_each(|line| crate::output::print_error(line));
    written?;
    Ok(results.exit_code())
}

/// Keys before files, as fio takes them.
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

/// The switches of `--set`, each NAME=VALUE.
pub fn settings(pairs: &[String]) -> Result<Vec<(String, String)>, Error> {
    let setting = |pair: &String| match pair.split_once('=') {
        Some((name, value)) => Ok((name.to_owned(), value.to_owned())),
        None => Err(Error::input(format!("--set {pair}: expected NAME=VALUE"))),
    };
    pairs.iter().map(setting).collect()
}
