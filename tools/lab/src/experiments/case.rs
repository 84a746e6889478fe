//! The description of an experiment: two sides of one mechanism, what stands beside them, and cases.

use crate::engine::EngineKind;
use std::path::PathBuf;

/// A side of comparisons.
#[derive(Debug, Clone)]
pub struct NamedSide {
    /// Its name.
    pub name: String,
    /// Its engine.
    pub engine: EngineKind,
    /// Its own switches and job keys, `KEY=VALUE` each.
    pub keys: Vec<String>,
    /// The file that it reads and writes; `None` is the experiment's target.
    pub file: Option<PathBuf>,
}

impl NamedSide {
    /// A side on the experiment's target.
    pub fn new(name: impl Into<String>, engine: EngineKind, keys: &[&str]) -> Self {
        let keys = keys.iter().map(|key| (*key).to_owned()).collect();
        Self { name: name.into(), engine, keys, file: None }
    }
}

/// A side that the mechanism is compared with in comparisons of their own.
#[derive(Debug, Clone)]
pub struct Beside {
    /// The side.
    pub side: NamedSide,
    /// Why it may be as fast as the mechanism, or faster.
    pub why: &'static str,
}

/// Comparisons of one mechanism, switched off and on.
#[derive(Debug, Clone)]
pub struct Experiment {
    /// Its name on the command line.
    pub name: &'static str,
    /// The subject of its comparisons, in a few words.
    pub about: &'static str,
    /// The mechanism switched off: side `a`.
    pub off: NamedSide,
    /// The mechanism switched on: side `b`.
    pub on: NamedSide,
    /// Other sides `a`, each compared with the mechanism switched on.
    pub beside: Vec<Beside>,
    /// fio keys of all cases.
    pub keys: Vec<(&'static str, String)>,
    /// The cases.
    pub cases: Vec<Case>,
    /// The engine for files on the kernel's file systems.
    pub kernel_engine: EngineKind,
    /// Prefixes of the counters that show which path the I/O took.
    pub counters: &'static [&'static str],
}

/// One case of an experiment.
#[derive(Debug, Clone)]
pub struct Case {
    /// Its name, unique in the experiment.
    pub name: String,
    /// The target of its I/O.
    pub target: TargetChoice,
    /// Its fio keys.
    pub keys: Vec<(&'static str, String)>,
    /// Why the mechanism may make no difference to the rate here, or a bad one, although the processors limit it.
    pub why: &'static str,
}

/// The target of a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TargetChoice {
    /// The experiment's target.
    Target,
    /// A new file beside the target, created for each run and removed after it. A device has none.
    NewFile,
}
