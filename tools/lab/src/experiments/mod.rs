//! Compares two ways of doing one thing. Their runs are interleaved in one process, pair by pair, with a
//! control, so that other load on the machine affects both sides. The verdict is the median of the pairs'
//! ratios with its interval; the noise is the ratio of equal runs.

mod cases;
mod table;
mod driver;
mod kernel_files;
mod side_runner;
mod case;

pub use case::{Case, Conditions, Experiment, Side, SideFigures, Sides, TargetChoice};
pub use cases::{CASES, find, names};
pub use driver::{CaseResult, ExperimentResults, check, run};
pub use table::{json, table};
