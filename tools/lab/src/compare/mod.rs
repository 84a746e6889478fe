//! Compares two ways of running the same jobs: `a` and `b`, which differ by switches, engine, target, job keys or program.
//!
//! Runs are interleaved: each round has `a`, `b`, `a` again for the noise, and the bare ring as control, in random order.
//! The verdict comes from the ratios of the rounds, so that a machine that gets slower slows both sides.

mod side;
mod figures;
mod measure;
mod layout;
mod registration;
mod rounds;
mod run_notes;
mod results;
mod separate;
mod machine;
mod report;

pub use figures::{Figure, JobFigures, Unit};
pub(crate) use layout::Layout;
pub use machine::Machine;
pub(crate) use measure::{job_words, measure};
pub(crate) use registration::unregistered;
pub(crate) use report::{
    HEADS, control_line, counters_json, counters_of_one_side, effect_percent, interval_json,
    machine_json, notes, number, pairs_line, rows, sentence,
};
pub use report::{json, text};
pub use results::{FigureComparison, JobComparison, Results, Sample};
pub(crate) use results::{logs, of_job};
pub use rounds::{Conditions, MAX_PAIRS, run};
pub(crate) use rounds::{Control, add_new, is_too_late, job_notes};
pub(crate) use run_notes::RunNotes;
pub use separate::compare_results;
pub use side::{Side, SideSource};
