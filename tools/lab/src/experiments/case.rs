//! The description of an experiment: sides, cases and conditions; and the figures of one side.

use crate::Error;
use crate::engine::{EngineConfig, EngineKind};
use crate::run::{Overwrite, RunProgress};
use crate::stats::median;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

/// One side of a comparison.
#[derive(Debug, Clone)]
pub struct Side {
    /// Its name in the table.
    pub name: String,
    /// Its engine and settings.
    pub config: EngineConfig,
    /// The file that it reads and writes; `None` is the experiment's target.
    pub file: Option<PathBuf>,
    /// fio keys of this side only.
    pub keys: Vec<(&'static str, String)>,
}

impl Side {
    /// A side with an engine, by name, and switches of the stack.
    pub fn new(name: &str, engine: &str, settings: &[(&str, &str)]) -> Result<Self, Error> {
        let mut config = EngineConfig::new(engine.parse::<EngineKind>()?);
        let owned = |&(key, value): &(&str, &str)| (key.to_owned(), value.to_owned());
        config.settings = settings.iter().map(owned).collect();
        Ok(Self { name: name.to_owned(), config, file: None, keys: Vec::new() })
    }
}

/// The sides that are compared in each case.
#[derive(Debug, Clone)]
pub struct Sides {
    /// The off side, as a rule.
    pub a: Side,
    /// The on side.
    pub b: Side,
    /// The control, with which both are compared.
    pub control: Side,
    /// Further sides, shown in the same table.
    pub beside: Vec<Side>,
}

/// A table of cases over the same sides.
#[derive(Debug, Clone)]
pub struct Experiment {
    /// Its name on the command line.
    pub name: &'static str,
    /// The sides.
    pub sides: Sides,
    /// fio keys of all cases.
    pub keys: Vec<(&'static str, String)>,
    /// The cases, one per row.
    pub cases: Vec<Case>,
    /// The engine for files on the kernel's file systems.
    pub kernel_engine: EngineKind,
    /// Prefixes of the counters that show which path the I/O took.
    pub counters: &'static [&'static str],
}

/// One row of an experiment.
#[derive(Debug, Clone)]
pub struct Case {
    /// A description for the table; empty if only the depth differs.
    pub what: &'static str,
    /// The target of its I/O.
    pub target: TargetChoice,
    /// The fio keys of this case.
    pub keys: Vec<(&'static str, String)>,
}

/// The target of a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TargetChoice {
    /// The experiment's target.
    Target,
    /// A new file beside the target, created for each run and removed after it. A device has none.
    NewFile,
}

/// The conditions of an experiment: target, time, switches.
#[derive(Debug)]
pub struct Conditions<'a> {
    /// A file, a block device, or a virtual target such as `null:SIZE`.
    pub target: &'a str,
    /// Time for the whole experiment, in seconds.
    pub seconds: f64,
    /// Interleaved pairs of runs per case.
    pub pairs: u32,
    /// Switches for all sides of engine `uringfs`.
    pub settings: &'a [(String, String)],
    /// Whether existing data may be overwritten.
    pub overwrite: Overwrite,
    /// Set by Ctrl-C; ends the experiment.
    pub stop: &'a AtomicBool,
    /// Receives the progress.
    pub progress: &'a RunProgress,
}

/// The figures of one side in one case, one value per run.
#[derive(Debug, Clone, Default)]
pub struct SideFigures {
    /// I/Os per second.
    pub iops: Vec<f64>,
    /// CPU time per I/O in nanoseconds.
    pub cpu_ns: Vec<f64>,
    /// Context switches per I/O.
    pub switches: Vec<f64>,
    /// The queue of the I/O.
    pub queue: String,
    /// The counters, summed over the runs.
    pub counters: Vec<(String, u64)>,
}

impl SideFigures {
    /// The median of I/Os per second; `None` if the side cannot use the target.
    pub fn median(&self) -> Option<f64> {
        if self.iops.is_empty() { None } else { Some(median(&self.iops)) }
    }
}

/// The common part of the jobs of all cases and sides.
pub(super) struct CaseJob<'a> {
    pub experiment: &'a Experiment,
    pub conditions: &'a Conditions<'a>,
    /// Time of each run, in seconds.
    pub seconds: f64,
    /// Bytes used of each target; `None` is all.
    pub size: Option<u64>,
}
