//! Two ways of doing one thing, measured against each other: interleaved in one process beside a
//! control, pair by pair, so that what the machine does meanwhile meets both alike. The verdict is
//! the median of the pairs' ratios with its interval, and a noise floor from pairs that are equal.

mod cases;
mod table;
mod driver;
mod kernel_files;
mod side_runner;
mod case;

pub use case::{Case, Conditions, Experiment, Side, SideFigures, Sides, TargetChoice};
pub use cases::{CASES, find};
pub use driver::{CaseResult, ExperimentResults, check, run};
pub use table::{json, table};
