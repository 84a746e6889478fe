//! Compares two ways of running the same jobs: `a` and `b`, which differ by switches, engine, target, job keys or program.
//!
//! Runs are interleaved: each round has `a`, `b`, `a` again for the noise, and the bare ring as control, in random order.
//! The verdict comes from the ratios of the rounds, so that a machine that gets slower slows both sides.

mod side;
mod figures;
mod measure;
mod layout;
mod rounds;
mod results;
mod separate;
mod machine;
mod report;

pub use figures::Unit;
pub use machine::Machine;
pub use report::{json, text};
pub use results::{FigureComparison, JobComparison, Results, Sample};
pub use rounds::{Conditions, MAX_PAIRS, run};
pub use separate::compare_results;
pub use side::{Side, SideSource};
