//! Experiments: one mechanism, switched off and on, in some cases. Each case is a comparison of two sides, which
//! [`crate::compare`] runs and judges; so is each other side that stands beside the mechanism. The figures that the
//! mechanism's authors published for the kernel are shown beside the measured ones.

mod cases;
mod report;
mod reason;
mod run;
mod comparison;
mod kernel_files;
mod locked_memory;
mod published;
mod case;

pub use case::{Beside, Case, Experiment, NamedSide, TargetChoice};
pub use cases::{find, names};
pub use published::{PublishedRow, PublishedTable, TABLES, tables};
pub(crate) use report::{
    counter_lines, detail_lines, heads, incomplete_line, notes, rows, side_lines, source_lines,
};
pub use report::{json, text};
pub use run::{CompletedComparison, Conditions, ExperimentResults, Prepared};
