//! What an experiment compares: its sides and cases, the conditions, and what one side did.

use crate::Error;
use crate::engine::{EngineConfig, EngineKind};
use crate::run::{Live, Overwrite};
use crate::stats::median;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

/// One of the things compared.
#[derive(Debug, Clone)]
pub struct Side {
    /// What the table calls it.
    pub name: String,
    /// How its I/O is done.
    pub config: EngineConfig,
    /// The file that it reads and writes; without one the experiment's target.
    pub file: Option<PathBuf>,
    /// fio keys of this side alone.
    pub keys: Vec<(&'static str, String)>,
}

impl Side {
    /// An engine by name, with dotted switches.
    pub fn new(name: &str, engine: &str, settings: &[(&str, &str)]) -> Result<Self, Error> {
        let mut config = EngineConfig::new(engine.parse::<EngineKind>()?);
        let owned = |&(key, value): &(&str, &str)| (key.to_owned(), value.to_owned());
        config.settings = settings.iter().map(owned).collect();
        Ok(Self { name: name.to_owned(), config, file: None, keys: Vec::new() })
    }
}

/// All that are compared in every case.
#[derive(Debug, Clone)]
pub struct Sides {
    /// The off side, as a rule.
    pub a: Side,
    /// The on side.
    pub b: Side,
    /// What both are held against.
    pub control: Side,
    /// Shown beside them.
    pub beside: Vec<Side>,
}

/// A table of cases over the same sides.
#[derive(Debug, Clone)]
pub struct Experiment {
    /// Its name on the command line.
    pub name: &'static str,
    /// What is compared.
    pub sides: Sides,
    /// fio keys that hold in every case.
    pub keys: Vec<(&'static str, String)>,
    /// One a row.
    pub cases: Vec<Case>,
    /// What reads and writes the files of the kernel's file systems.
    pub kernel_engine: EngineKind,
    /// The counters that tell which way was taken, each by the beginning of its name.
    pub counters: &'static [&'static str],
}

/// One row of an experiment.
#[derive(Debug, Clone)]
pub struct Case {
    /// What sets it apart besides its depth, in words; empty if nothing does.
    pub what: &'static str,
    /// What it reads or writes.
    pub target: TargetChoice,
    /// The fio keys that set it apart.
    pub keys: Vec<(&'static str, String)>,
}

/// What a case reads or writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TargetChoice {
    /// The target itself.
    Target,
    /// A file beside it, made for each run and removed after it. Beside a device there is none.
    NewFile,
}

/// Where and how long.
pub struct Conditions<'a> {
    /// A file, a block device, or `null:SIZE` and its kin.
    pub target: &'a str,
    /// Time for the whole experiment.
    pub seconds: f64,
    /// Pairs of each case.
    pub pairs: u32,
    /// Dotted switches of all sides that are this stack.
    pub settings: &'a [(String, String)],
    /// What may be written over.
    pub overwrite: Overwrite,
    /// Set by Ctrl-C.
    pub stop: &'a AtomicBool,
    /// Shows how it goes.
    pub live: &'a Live,
}

/// What one side did in one case.
#[derive(Debug, Clone, Default)]
pub struct SideFigures {
    /// I/Os a second, of every run.
    pub iops: Vec<f64>,
    /// CPU nanoseconds an I/O, of every run.
    pub cpu_ns: Vec<f64>,
    /// Context switches an I/O, of every run.
    pub switches: Vec<f64>,
    /// The queue it went through.
    pub queue: String,
    /// The sums of its counters.
    pub counters: Vec<(String, u64)>,
}

impl SideFigures {
    /// The median of its runs; none where it cannot reach the target.
    pub fn median(&self) -> Option<f64> {
        if self.iops.is_empty() { None } else { Some(median(&self.iops)) }
    }
}

/// What the jobs of all cases and sides have in common.
pub(super) struct CaseJob<'a> {
    pub experiment: &'a Experiment,
    pub conditions: &'a Conditions<'a>,
    /// Time for each run.
    pub seconds: f64,
    /// Bytes of each target, if not all of it.
    pub size: Option<u64>,
}
