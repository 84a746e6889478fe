//! `uringfs bench experiment`: compares two sides of a switch in interleaved runs, with a verdict.

use crate::bench_run::settings;
use crate::output::print;
use crate::progress::Progress;
use crate::suggestions::Suggestions;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use uringfs_lab::Error;
use uringfs_lab::experiments::{self, Conditions};
use uringfs_lab::run::{Overwrite, RunProgress, stop_on_interrupt};

/// The arguments of the command.
#[derive(clap::Args)]
pub struct Arguments {
    /// The experiment: simple-read, buffered-read, parallel-write, completion, fixed-files, or all
    #[arg(value_parser = Suggestions::new(experiments::names()), hide_possible_values = true)]
    name: String,

    /// The target: a file, a block device, TARGET:/path for a file in a volume, memory:SIZE, null:SIZE or
    /// sim:SIZE,OPTION=VALUE...
    #[arg(long, default_value = "null:1g")]
    target: String,

    /// A file on a mounted file system (ext4, XFS...) to measure as well; can be repeated
    #[arg(long, value_name = "FILE")]
    beside: Vec<PathBuf>,

    /// Set a switch on both sides, such as device.queue=auto; the default queue is the ring
    #[arg(long = "set", value_name = "SWITCH=VALUE")]
    settings: Vec<String>,

    /// Run time of each experiment, in seconds
    #[arg(long, default_value_t = 30.0)]
    seconds: f64,

    /// Pairs of runs (one per side, interleaved) in each case; with fewer than six there is no verdict
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pairs: u32,

    /// Print JSON: one object, or a list of objects with `all`
    #[arg(long)]
    json: bool,

    /// Allow writes to an existing target, and to the files of --beside
    #[arg(long)]
    overwrite: bool,
}

/// Returns the exit code.
pub fn run(arguments: Arguments) -> Result<u8, Error> {
    if !(arguments.seconds > 0.0 && arguments.seconds.is_finite()) {
        return Err(Error::input("--seconds needs a positive number"));
    }
    let settings = settings(&arguments.settings)?;
    let mut experiments = experiments::find(&arguments.name)?;
    for experiment in &mut experiments {
        experiment.add_files_beside(&arguments.beside)?;
    }
    refuse_missing(&arguments.target)?;
    let stop = stop_on_interrupt()?;
    let live = Arc::new(RunProgress::default());
    let progress = Progress::start(&live);
    let conditions = Conditions {
        target: &arguments.target,
        seconds: arguments.seconds,
        pairs: arguments.pairs,
        settings: &settings,
        overwrite: if arguments.overwrite { Overwrite::Allow } else { Overwrite::Refuse },
        stop: &stop,
        progress: &live,
    };
    // Check all experiments before the first one runs.
    experiments.iter().try_for_each(|experiment| experiments::check(experiment, &conditions))?;
    let mut all = Vec::new();
    for experiment in &experiments {
        let results = experiments::run(experiment, &conditions)?;
        if !arguments.json {
            print(&format!("{}\n", experiments::table(&results)))?;
        }
        all.push(experiments::json(&results));
    }
    drop(progress);
    if arguments.json {
        let document = if all.len() == 1 { all.remove(0) } else { all.into() };
        print(&format!("{document:#}\n"))?;
    }
    Ok(0)
}

/// An experiment never creates its target: a mistyped path must not be measured.
fn refuse_missing(target: &str) -> Result<(), Error> {
    use uringfs_lab::targets::Target;
    match Target::parse(target) {
        Target::Path(path) if !Path::exists(&path) => Err(Error::input(format!(
            "{target}: does not exist; check the name, or create it first"
        ))),
        _ => Ok(()),
    }
}
