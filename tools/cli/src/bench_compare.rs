//! `uringfs bench compare`: runs two sides of the same jobs in interleaved pairs, with a verdict.

use crate::json;
use crate::output::print;
use crate::progress::Progress;
use crate::volume::wildcards;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use uringfs_lab::Error;
use uringfs_lab::compare::{self, Conditions, Side, SideSource};
use uringfs_lab::job::{UnknownKeys, environment};
use uringfs_lab::run::{Overwrite, RunProgress, stop_on_interrupt};

/// The arguments of the command.
#[derive(clap::Args)]
pub struct Arguments {
    /// fio job files
    jobs: Vec<PathBuf>,

    /// The keys of side a, as in --a engine=fio iodepth=4; without any, the jobs as they are
    #[arg(long, value_name = "KEY=VALUE", num_args = 1..)]
    a: Vec<String>,

    /// The keys of side b
    #[arg(long, value_name = "KEY=VALUE", num_args = 1..)]
    b: Vec<String>,

    /// A key of both sides; --a and --b override it
    #[arg(long = "set", value_name = "KEY=VALUE")]
    both: Vec<String>,

    /// The smallest difference that matters, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 5.0)]
    effect: f64,

    /// Run this many pairs; otherwise until the interval is narrow, at most 30
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pairs: Option<u32>,

    /// Begin no pair that would end more than SECONDS after the first one began
    #[arg(long, value_name = "SECONDS")]
    max_time: Option<f64>,

    /// The seed of the order of the runs in each pair
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// Print JSON, with every value
    #[arg(long)]
    json: bool,

    /// Allow writes to existing files, and to devices that hold a file system
    #[arg(long)]
    overwrite: bool,

    /// Warn about unknown keys of job files instead of failing
    #[arg(long)]
    ignore_unknown: bool,
}

/// The keys of a side, and examples.
pub const HELP: &str = "Keys of a side:
  engine=NAME       uringfs (the default), ring, psync, threads, or fio
  exec=PATH         another build of uringfs, or a fio
  target=TARGET     the key filename of each job, and ${TARGET} in job files
  SWITCH=VALUE      a switch of uringfs, as in direct.simple_read=off
  KEY=VALUE         any key of job files, in place of the value there
  results=FILE      a report in fio's JSON; several, or a pattern, for several runs

Examples:
  uringfs bench compare job.fio --b direct.simple_read=off
  uringfs bench compare job.fio --a engine=fio --b engine=uringfs
  uringfs bench compare job.fio --a exec=./old/uringfs
  uringfs bench compare --a results='old*.json' --b results='new*.json'";

/// Returns the exit code.
pub fn run(arguments: Arguments) -> Result<u8, Error> {
    let effect = arguments.effect / 100.0;
    if !(effect > 0.0 && effect <= 1.0) {
        return Err(Error::input("--effect needs a percentage above 0, at most 100"));
    }
    let max_time = match arguments.max_time {
        Some(seconds) => Some(
            Duration::try_from_secs_f64(seconds)
                .map_err(|error| Error::input(format!("--max-time {seconds}")).because(error))?,
        ),
        None => None,
    };
    let side = |option: &str, keys: &[String]| -> Result<Side, Error> {
        let keys = arguments.both.iter().chain(keys).cloned().collect();
        expand_results(keys).and_then(|keys| Side::parse(&keys)).map_err(|error| error.at(option))
    };
    let (a, b) = (side("--a", &arguments.a)?, side("--b", &arguments.b)?);
    let results = match (&a.source, &b.source) {
        (SideSource::Files(a), SideSource::Files(b)) => {
            if !arguments.jobs.is_empty() {
                return Err(Error::input(
                    "results= is of runs that have ended; leave out the job file",
                ));
            }
            compare::compare_results(a, b, effect)?
        }
        (SideSource::Files(_), _) | (_, SideSource::Files(_)) => {
            return Err(Error::input(
                "results= is for both sides or none: a new run is no pair of an old one",
            ));
        }
        _ => run_sides(&arguments, &a, &b, effect, max_time)?,
    };
    let printed = match arguments.json {
        true => json::document(compare::json(&results)),
        false => compare::text(&results),
    };
    print(&printed)?;
    Ok(if results.incomplete { 130 } else { 0 })
}

fn run_sides(
    arguments: &Arguments,
    a: &Side,
    b: &Side,
    effect: f64,
    max_time: Option<Duration>,
) -> Result<compare::Results, Error> {
    if arguments.jobs.is_empty() {
        return Err(Error::input("no job: give a job file, or results= for both sides"));
    }
    if arguments.jobs.iter().any(|path| path == Path::new("-")) {
        return Err(Error::input(
            "a comparison reads its job files once for each side; - can be read once",
        ));
    }
    let unknown = if arguments.ignore_unknown { UnknownKeys::Ignore } else { UnknownKeys::Refuse };
    let jobs = |side: &Side| side.jobs(&arguments.jobs, &environment, unknown);
    let (a_set, b_set) = (jobs(a)?, jobs(b)?);
    let stop = stop_on_interrupt()?;
    let live = Arc::new(RunProgress::default());
    let progress = Progress::start(&live);
    let conditions = Conditions {
        effect,
        pairs: arguments.pairs,
        max_time,
        seed: arguments.seed,
        overwrite: if arguments.overwrite { Overwrite::Allow } else { Overwrite::Refuse },
        stop: &stop,
        progress: &live,
    };
    let results = compare::run((a, &a_set), (b, &b_set), &conditions);
    drop(progress);
    results
}

/// Replaces `results=` with a pattern by one for each file of that name, in order.
fn expand_results(keys: Vec<String>) -> Result<Vec<String>, Error> {
    let mut expanded = Vec::new();
    for key in keys {
        let is_pattern =
            |name: &&str| wildcards::has_wildcards(name.as_bytes()) && !Path::new(name).exists();
        let Some(pattern) = key.strip_prefix("results=").filter(is_pattern) else {
            expanded.push(key);
            continue;
        };
        let (folder, name) = pattern.rsplit_once('/').unwrap_or((".", pattern));
        let folder = if folder.is_empty() { "/" } else { folder };
        let entries =
            std::fs::read_dir(folder).map_err(|error| Error::input(folder).because(error))?;
        let names = entries.filter_map(|entry| Some(entry.ok()?.file_name()));
        let matching = names
            .filter(|found| wildcards::matches_visible(name.as_bytes(), found.as_bytes()))
            // A key is text.
            .filter_map(|found| found.into_string().ok());
        let mut files: Vec<_> = matching.map(|found| Path::new(folder).join(found)).collect();
        if files.is_empty() {
            return Err(Error::input(format!("{key}: no file matches")));
        }
        files.sort();
        expanded.extend(files.iter().map(|file| format!("results={}", file.display())));
    }
    Ok(expanded)
}
