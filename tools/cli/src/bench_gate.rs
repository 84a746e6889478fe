//! `uringfs bench record` and `uringfs bench gate`: find what got slower since a baseline was recorded.

use crate::guest_options::GuestArguments;
use crate::json;
use crate::output::print;
use crate::progress::Progress;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use uringfs_lab::Error;
use uringfs_lab::gate::{self, Baseline, Conditions, Place, Recording};
use uringfs_lab::job::UnknownKeys;
use uringfs_lab::run::{Overwrite, RunProgress, stop_on_interrupt};

/// The arguments that both commands have.
#[derive(clap::Args)]
struct Common {
    /// The file of the baseline
    #[arg(long, value_name = "FILE")]
    baseline: PathBuf,

    /// A key of the jobs' side, as for --a of bench compare: engine=fio, exec=PATH, target=TARGET, a switch
    #[arg(long = "set", value_name = "KEY=VALUE")]
    keys: Vec<String>,

    /// Where the jobs run: here, or in Linux guests under QEMU, on a file in a volume, where instructions are counted
    #[arg(long, value_enum)]
    machine: Option<Machine>,

    /// The seed of the order of the runs in each pair
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// Allow writes to existing files, and to devices that hold a file system
    #[arg(long)]
    overwrite: bool,

    /// Warn about unknown keys of job files instead of failing
    #[arg(long)]
    ignore_unknown: bool,

    #[command(flatten)]
    guest: GuestArguments,
}

/// Where the jobs run.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Machine {
    Host,
    Vm,
}

/// The arguments of `bench record`.
#[derive(clap::Args)]
pub struct RecordArguments {
    /// fio job files
    #[arg(required = true)]
    jobs: Vec<PathBuf>,

    #[command(flatten)]
    common: Common,

    /// Run this many pairs [default: 20, with --machine vm 10]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pairs: Option<u32>,
}

/// The arguments of `bench gate`.
#[derive(clap::Args)]
pub struct GateArguments {
    /// fio job files with jobs of the baseline; without any, all jobs as they were recorded
    jobs: Vec<PathBuf>,

    #[command(flatten)]
    common: Common,

    /// Run this many pairs, and as many again if a figure got worse; one is enough for the counters [default: 10, with --machine vm 5]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pairs: Option<u32>,

    /// The smallest difference that matters, in percent [default: 5, with --machine vm 1]
    #[arg(long, value_name = "PERCENT")]
    effect: Option<f64>,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Examples of `bench record`.
pub const RECORD_HELP: &str = "Examples:
  uringfs bench record --baseline gate.json jobs/*.fio
  uringfs bench record --baseline fio.json job.fio --set engine=fio
  uringfs bench record --baseline vm.json job.fio --machine vm";

/// Examples and exit codes of `bench gate`.
pub const GATE_HELP: &str =
    "Exit codes: 0 nothing got worse, 1 something did, 2 the gate could not run, 130 interrupted

Examples:
  uringfs bench gate --baseline gate.json
  uringfs bench gate --baseline gate.json --set exec=./old/uringfs
  uringfs bench gate --baseline gate.json --pairs 1";

/// Records a baseline. Returns the exit code.
pub fn record(arguments: RecordArguments) -> Result<u8, Error> {
    let RecordArguments { jobs, common, pairs } = arguments;
    let unknown = common.unknown_keys();
    if jobs.iter().any(|path| path == Path::new("-")) {
        return Err(Error::input("a baseline keeps its jobs; give job files, not -"));
    }
    Baseline::check_place(&common.baseline)?;
    let machine = common.machine.unwrap_or(Machine::Host);
    let pairs = pairs.unwrap_or(if machine == Machine::Vm { 10 } else { 20 });
    let (path, keys) = (common.baseline.clone(), common.keys.clone());
    let recording = common.run(machine, pairs, |place, conditions| {
        gate::record(place, &jobs, &keys, unknown, conditions)
    })?;
    let Recording { baseline, pairs, notes, files_made, incomplete } = recording;
    let mut text = gate::recorded_text(&baseline);
    notes.iter().for_each(|line| text += &format!("note: {line}\n"));
    if !files_made.is_empty() {
        text += &format!("Laid out {}\n", files_made.join(", "));
    }
    let file = path.display();
    if incomplete {
        print(&format!("{text}Incomplete: stopped after {pairs} pairs; {file} was not written\n"))?;
        return Ok(130);
    }
    baseline.write(&path)?;
    print(&format!("{text}{pairs} pairs recorded in {file}\n"))?;
    Ok(0)
}

/// Compares with a baseline. Returns the exit code.
pub fn gate(arguments: GateArguments) -> Result<u8, Error> {
    let GateArguments { jobs, common, pairs, effect, json } = arguments;
    let baseline = Baseline::read(&common.baseline)?;
    let machine = match baseline.place.as_str() {
        Place::GUEST => Machine::Vm,
        _ => Machine::Host,
    };
    if common.machine.is_some_and(|given| given != machine) {
        let line =
            format!("--machine: the baseline was recorded with --machine {}", baseline.place);
        return Err(Error::input(line));
    }
    let is_exact = machine == Machine::Vm;
    let effect = effect.unwrap_or(if is_exact { 1.0 } else { 5.0 }) / 100.0;
    if !(effect > 0.0 && effect <= 1.0) {
        return Err(Error::input("--effect needs a percentage above 0, at most 100"));
    }
    let pairs = pairs.unwrap_or(if is_exact { 5 } else { 10 });
    let (keys, unknown) = (common.keys.clone(), common.unknown_keys());
    let results = common.run(machine, pairs, |place, conditions| {
        gate::gate(place, &baseline, &jobs, &keys, unknown, effect, conditions)
    });
    // Exit code 1 is for what got worse.
    let results = results.map_err(|error| match error.exit_code() {
        1 | 6 => error.exiting_with(2),
        _ => error,
    })?;
    print(&match json {
        true => json::document(gate::json(&results)),
        false => gate::text(&results),
    })?;
    Ok(match results.passed() {
        _ if results.incomplete => 130,
        true => 0,
        false => 1,
    })
}

impl Common {
    fn unknown_keys(&self) -> UnknownKeys {
        if self.ignore_unknown { UnknownKeys::Ignore } else { UnknownKeys::Refuse }
    }

    /// Runs something in its place, with a progress line, and Ctrl-C.
    fn run<T>(
        self,
        machine: Machine,
        pairs: u32,
        run: impl FnOnce(Place<'_>, &Conditions<'_>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let overwrite = if self.overwrite { Overwrite::Allow } else { Overwrite::Refuse };
        let seed = self.seed;
        if machine == Machine::Vm {
            return self.guest.run(|runner, stop, progress| {
                let conditions = Conditions { pairs, seed, overwrite, stop, progress };
                run(Place::Guest(runner), &conditions)
            });
        }
        if let Some(option) = self.guest.first_given() {
            return Err(Error::input(format!("{option} is for --machine vm")));
        }
        let stop = stop_on_interrupt()?;
        let live = Arc::new(RunProgress::default());
        let progress = Progress::start(&live);
        let conditions = Conditions { pairs, seed, overwrite, stop: &stop, progress: &live };
        let result = run(Place::Host, &conditions);
        drop(progress);
        result
    }
}
