//! `uringfs bench sweep`: runs the same jobs with each combination of some values, and prints tables.

use crate::bench_sides::{JobFileOptions, KEYS, RunOptions, refuse_standard_input};
use crate::command_line::command_line;
use crate::json;
use crate::output::{PageOutput, print, print_warning};
use crate::progress::Progress;
use crate::suggestions::Suggestions;
use clap::ValueEnum;
use std::path::PathBuf;
use std::sync::Arc;
use uringfs_lab::Error;
use uringfs_lab::job::environment;
use uringfs_lab::page;
use uringfs_lab::run::{RunProgress, stop_on_interrupt};
use uringfs_lab::sweep::{self, Cell, Conditions, Grid, ShownFigure};

/// The arguments of the command.
#[derive(clap::Args)]
pub struct Arguments {
    /// fio job files
    #[arg(required = true)]
    jobs: Vec<PathBuf>,

    /// A key and the values that it takes; can be repeated. The last one forms the columns. A value has no comma
    #[arg(long, value_name = "KEY=VALUE,...", required = true)]
    over: Vec<String>,

    /// A key of every cell; --over overrides it
    #[arg(long = "set", value_name = "KEY=VALUE")]
    all: Vec<String>,

    /// Run every cell this many times; with fewer than six, gains have no interval
    #[arg(long, value_name = "N", default_value_t = 6, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    rounds: u32,

    #[command(flatten)]
    runs: RunOptions,

    #[command(flatten)]
    job_files: JobFileOptions,

    /// The figure of the tables and of CSV: rate, p50, p99, p99.9 (latencies), cpu, switches (of contexts) or calls (of
    /// the system); JSON has all
    #[arg(long, value_name = "FIGURE", default_value = "rate")]
    #[arg(value_parser = Suggestions::new(ShownFigure::words()), hide_possible_values = true)]
    figure: String,

    /// The format of the tables
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    format: Format,

    /// The same as --format json
    #[arg(long, conflicts_with = "format")]
    json: bool,

    /// Write a page with every table, plots and samples to FILE, which needs no network and no script
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

#[derive(ValueEnum, Clone, Copy)]
enum Format {
    Text,
    Markdown,
    Csv,
    Json,
}

/// The keys, and examples.
pub fn help() -> String {
    format!(
        "Keys:
{KEYS}

Examples:
  uringfs bench sweep job.fio --over iodepth=1,64 --over engine=uringfs,io_uring
  uringfs bench sweep job.fio --over bs=4k,64k --over direct.simple_read=off,on
  uringfs bench sweep job.fio --over engine=uringfs,ring --format markdown
  uringfs bench sweep job.fio --over iodepth=1,8,64 --over engine=uringfs,fio --html page.html"
    )
}

/// Returns the exit code.
pub fn run(arguments: Arguments) -> Result<u8, Error> {
    let figure: ShownFigure =
        arguments.figure.parse().map_err(|error: Error| error.at("--figure"))?;
    let max_time = arguments.runs.max_time()?;
    refuse_standard_input(&arguments.jobs)?;
    let grid = Grid::parse(&arguments.over)?;
    let unknown = arguments.job_files.unknown_keys();
    let cells = Cell::all(&grid, &arguments.all, &arguments.jobs, &environment, unknown)?;
    let html = arguments.html.as_deref().map(PageOutput::new).transpose()?;
    if let Some(html) = &html {
        html.refuse_inputs(&arguments.jobs)?;
        cells.iter().try_for_each(|cell| html.refuse_targets(cell.jobs()))?;
    }
    let stop = stop_on_interrupt()?;
    let live = Arc::new(RunProgress::default());
    let progress = Progress::start(&live);
    let conditions = Conditions {
        rounds: arguments.rounds,
        max_time,
        seed: arguments.runs.seed,
        overwrite: arguments.runs.overwrite(),
        stop: &stop,
        progress: &live,
    };
    let results = sweep::run(&grid, &cells, &conditions);
    drop(progress);
    let results = results?;
    let format = if arguments.json { Format::Json } else { arguments.format };
    let document = json::document(sweep::json(&results));
    let printed = print(&match format {
        Format::Text => sweep::text(&results, figure),
        Format::Markdown => sweep::markdown(&results, figure),
        Format::Csv => sweep::csv(&results, figure),
        Format::Json => document.clone(),
    });
    if let Some(html) = html {
        let source = page::Source { command: &command_line(), document: &document };
        html.write(&page::sweep_html(&results, source))?;
    }
    printed?;
    // CSV has no room for it.
    if results.incomplete && matches!(format, Format::Csv) {
        print_warning(&format!("incomplete: stopped after round {}", results.rounds));
    }
    Ok(if results.incomplete { 130 } else { 0 })
}
