//! `uringfs bench experiment`: two sides of a mechanism, interleaved, with a verdict.

use crate::bench_run::settings;
use crate::output::print;
use crate::progress::Progress;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use uringfs_lab::Error;
use uringfs_lab::experiments::{self, Conditions};
use uringfs_lab::run::{Live, Overwrite, stop_on_interrupt};

/// What the command takes.
#[derive(clap::Args)]
pub struct Arguments {
    /// simple-read, buffered-read, parallel-write, completion, fixed-files, or all
    name: String,

    /// PATH, memory:SIZE, null:SIZE or sim:...
    #[arg(long, default_value = "null:1g")]
    target: String,

    /// A file on a mounted file system (ext4, XFS...), to be shown beside; again for more of them
    #[arg(long, value_name = "FILE")]
    beside: Vec<PathBuf>,

    /// A switch of both sides, such as device.queue=auto; experiments go by the ring without that
    #[arg(long = "set", value_name = "NAME=VALUE")]
    settings: Vec<String>,

    /// Time for each experiment
    #[arg(long, default_value_t = 30.0)]
    seconds: f64,

    /// Interleaved pairs of each case; a verdict needs six
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pairs: u32,

    /// Print JSON: one object, or with `all` a list of them
    #[arg(long)]
    json: bool,

    /// Write to an existing target, and to what stands beside
    #[arg(long)]
    overwrite: bool,
}

/// Runs the command; gives its exit code.
pub fn run(arguments: Arguments) -> Result<u8, Error> {
    if !(arguments.seconds > 0.0 && arguments.seconds.is_finite()) {
        return Err(Error::input("--seconds needs a positive number"));
    }
    let settings = settings(&arguments.settings)?;
    let mut experiments = experiments::find(&arguments.name)?;
    for experiment in &mut experiments {
        experiment.stand_beside(&arguments.beside)?;
    }
    refuse_missing(&arguments.target)?;
    let stop = stop_on_interrupt()?;
    let live = Arc::new(Live::default());
    let progress = Progress::start(&live);
    let conditions = Conditions {
        target: &arguments.target,
        seconds: arguments.seconds,
        pairs: arguments.pairs,
        settings: &settings,
        overwrite: if arguments.overwrite { Overwrite::Allow } else { Overwrite::Refuse },
        stop: &stop,
        live: &live,
    };
    // A target that the last one refuses is known before the first has taken its time.
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

/// Experiments make no target: what they measure is to be what the user meant.
fn refuse_missing(target: &str) -> Result<(), Error> {
    use uringfs_lab::targets::Target;
    match Target::parse(target) {
        Target::Path(path) if !Path::exists(&path) => {
            Err(Error::input(format!("{target}: does not exist")))
        }
        _ => Ok(()),
    }
}
