//! `uringfs bench compare`: runs two sides of the same jobs in interleaved pairs, with a verdict.

use crate::bench_sides::{JobFileOptions, KEYS, PairOptions, RunOptions, refuse_standard_input};
use crate::command_line::command_line;
use crate::json;
use crate::output::{PageOutput, print};
use crate::progress::Progress;
use crate::volume::wildcards;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use uringfs_lab::Error;
use uringfs_lab::compare::{self, Conditions, Side, SideSource};
use uringfs_lab::job::environment;
use uringfs_lab::page;
use uringfs_lab::run::{RunProgress, stop_on_interrupt};

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

    #[command(flatten)]
    pairs: PairOptions,

    #[command(flatten)]
    runs: RunOptions,

    #[command(flatten)]
    job_files: JobFileOptions,

    /// Print JSON, with every value
    #[arg(long)]
    json: bool,

    /// Write a page with tables, plots and samples to FILE, which needs no network and no script
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// The keys of a side, and examples.
pub fn help() -> String {
    format!(
        "Keys of a side:
{KEYS}
  results=FILE      a report in fio's JSON; several, or a pattern, for several runs

Examples:
  uringfs bench compare job.fio --b direct.simple_read=off
  uringfs bench compare job.fio --a engine=fio --b engine=uringfs
  uringfs bench compare job.fio --a exec=./old/uringfs --html page.html
  uringfs bench compare --a results='old*.json' --b results='new*.json'"
    )
}

/// Returns the exit code.
pub fn run(arguments: Arguments) -> Result<u8, Error> {
    let effect = arguments.pairs.effect()?;
    let max_time = arguments.runs.max_time()?;
    let side = |option: &str, keys: &[String]| -> Result<Side, Error> {
        let keys = arguments.both.iter().chain(keys).cloned().collect();
        expand_results(keys).and_then(|keys| Side::parse(&keys)).map_err(|error| error.at(option))
    };
    let (a, b) = (side("--a", &arguments.a)?, side("--b", &arguments.b)?);
    let html = arguments.html.as_deref().map(PageOutput::new).transpose()?;
    let results = match (&a.source, &b.source) {
        (SideSource::Files(a), SideSource::Files(b)) => {
            if let Some(html) = &html {
                html.refuse_inputs(a.iter().chain(b))?;
            }
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
        _ => run_sides(&arguments, (&a, &b), html.as_ref(), effect, max_time)?,
    };
    let document = json::document(compare::json(&results));
    let printed = match arguments.json {
        true => print(&document),
        false => print(&compare::text(&results)),
    };
    if let Some(html) = html {
        let source = page::Source { command: &command_line(), document: &document };
        html.write(&page::html(&results, source))?;
    }
    printed?;
    Ok(if results.incomplete { 130 } else { 0 })
}

fn run_sides(
    arguments: &Arguments,
    (a, b): (&Side, &Side),
    html: Option<&PageOutput>,
    effect: f64,
    max_time: Option<Duration>,
) -> Result<compare::Results, Error> {
    if arguments.jobs.is_empty() {
        return Err(Error::input("no job: give a job file, or results= for both sides"));
    }
    refuse_standard_input(&arguments.jobs)?;
    let unknown = arguments.job_files.unknown_keys();
    let jobs = |side: &Side| side.jobs(&arguments.jobs, &environment, unknown);
    let (a_set, b_set) = (jobs(a)?, jobs(b)?);
    if let Some(html) = html {
        html.refuse_inputs(&arguments.jobs)?;
        html.refuse_targets(&a_set)?;
        html.refuse_targets(&b_set)?;
    }
    let stop = stop_on_interrupt()?;
    let live = Arc::new(RunProgress::default());
    let progress = Progress::start(&live);
    let conditions = Conditions {
        label: "",
        names: ["--a", "--b"],
        effect,
        pairs: arguments.pairs.pairs,
        max_time,
        seed: arguments.runs.seed,
        overwrite: arguments.runs.overwrite(),
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
