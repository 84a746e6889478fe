//! `uringfs bench experiment`: compares one mechanism with itself switched off, beside what its authors published.

use crate::bench_sides::{PairOptions, RunOptions};
use crate::command_line::command_line;
use crate::json;
use crate::output::{PageOutput, print};
use crate::progress::Progress;
use crate::suggestions::Suggestions;
use serde_json::{Value, json as fields};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use uringfs_lab::Error;
use uringfs_lab::experiments::{self, Conditions, Prepared};
use uringfs_lab::page;
use uringfs_lab::run::{RunProgress, stop_on_interrupt};

/// The help about `--max-time` here.
const MAX_TIME: &str = "A limit of SECONDS for the whole command, of which each comparison gets an equal share and \
                        runs at least one pair";

/// The arguments of the command.
#[derive(clap::Args)]
#[command(mut_arg("max_time", |argument| argument.help(MAX_TIME)))]
pub struct Arguments {
    /// The experiment: simple-read, buffered-read, parallel-write, completion, fixed-files, or all
    #[arg(value_parser = Suggestions::new(experiments::names()), hide_possible_values = true)]
    name: String,

    /// The target: a file, a block device, TARGET:/path for a file in a volume, memory:SIZE, null:SIZE or
    /// sim:SIZE,OPTION=VALUE...
    #[arg(long, default_value = "null:1g")]
    target: String,

    /// A file on a mounted file system (ext4, XFS...) to compare with as well; can be repeated
    #[arg(long, value_name = "FILE")]
    beside: Vec<PathBuf>,

    /// Run only the cases of this name, such as "depth 32"; can be repeated
    #[arg(long = "case", value_name = "NAME")]
    cases: Vec<String>,

    /// A key of all sides: runtime=1s, or a switch of uringfs such as device.queue=auto; a run takes 300 ms,
    /// and the queue is the ring
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,

    #[command(flatten)]
    pairs: PairOptions,

    #[command(flatten)]
    runs: RunOptions,

    /// Print JSON, with every value
    #[arg(long)]
    json: bool,

    /// Write a page with tables, plots and samples to FILE, which needs no network and no script
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// Examples.
pub const HELP: &str = "Examples:
  uringfs bench experiment simple-read
  uringfs bench experiment all --target image --overwrite --html page.html
  uringfs bench experiment parallel-write --target disk.img:/file --overwrite --beside FILE
  uringfs bench experiment simple-read --case \"depth 32\" --pairs 6 --set runtime=100ms

A comparison takes by default up to 30 pairs of 4 runs of 0.3 s; --pairs 6 is short. `all` makes about 40
comparisons on a file.";

/// Returns the exit code.
pub fn run(arguments: Arguments) -> Result<u8, Error> {
    let (effect, max_time) = (arguments.pairs.effect()?, arguments.runs.max_time()?);
    let html = arguments.html.as_deref().map(PageOutput::new).transpose()?;
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
        cases: &arguments.cases,
        settings: &arguments.settings,
        effect,
        pairs: arguments.pairs.pairs,
        max_time,
        seed: arguments.runs.seed,
        overwrite: arguments.runs.overwrite(),
        stop: &stop,
        progress: &live,
    };
    let prepared = Prepared::new(experiments, &conditions)?;
    if let Some(html) = &html {
        prepared.job_sets().try_for_each(|set| html.refuse_targets(set))?;
    }
    let results = prepared.run(&conditions, |results| match arguments.json {
        true => Ok(()),
        false => progress.suspend(|| print(&format!("{}\n", experiments::text(results)))),
    });
    drop(progress);
    let results = results?;
    let incomplete = results.iter().any(|results| results.incomplete);
    let all: Vec<Value> = results.iter().map(experiments::json).collect();
    let document = json::document(fields!({"experiments": all, "incomplete": incomplete}));
    let printed = if arguments.json { print(&document) } else { Ok(()) };
    if let Some(html) = html {
        let source = page::Source { command: &command_line(), document: &document };
        html.write(&page::experiments_html(&results, source))?;
    }
    printed?;
    Ok(if incomplete { 130 } else { 0 })
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
