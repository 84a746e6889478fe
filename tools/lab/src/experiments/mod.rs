//! Two ways of doing one thing, measured against each other: interleaved in one process beside a
//! control, pair by pair, so that what the machine does meanwhile meets both alike. The verdict is
//! the median of the pairs' ratios with its interval, and a noise floor from pairs that are equal.

mod cases;
mod driver;
mod kernel;
mod lane;
mod table;

pub use cases::{CASES, find};
pub use driver::{
    Case, CaseResult, Conditions, Experiment, Measured, Place, Results, Side, Sides, check, run,
};
pub use table::{json, table};
