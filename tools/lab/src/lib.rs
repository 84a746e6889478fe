//! The lab: fio job files in, tables and verdicts out.
//!
//! - [`job::Parser`] reads job files and keys into a [`job::JobSet`].
//! - [`run::Run`] runs the jobs on an [`engine::Engine`].
//! - [`report`] prints the results as fio does.
//! - [`gate`] finds what got slower since a baseline was recorded.
//! - [`sweep`] runs them once for each combination of values, for a table.
//! - [`compare`] runs two sides of the same jobs in pairs, for a verdict; [`page`] shows it in a browser.
//! - [`experiments`] compare one mechanism with itself switched off, beside what its authors published.
//! - [`vm`] runs both in a guest whose clock counts instructions.
//!
//! ```
//! use uringfs_lab::job;
//!
//! let mut parser = job::Parser::new(&job::environment, job::UnknownKeys::Refuse);
//! parser.bytes(b"[scan]\nrw=randread\nbs=4k\nsize=1m\niodepth=8\n", "example.fio")?;
//! let set = parser.finish()?;
//! assert_eq!(set.jobs[0].options.depth, 8);
//! # Ok::<(), uringfs_lab::Error>(())
//! ```

// The search for what got slower since a baseline was recorded.
pub mod gate;
// Guests whose clock counts instructions.
pub mod vm;
// Comparisons, sweeps and experiments as pages of HTML.
pub mod page;
// One mechanism, switched off and on in some cases, compared.
pub mod experiments;
// All combinations of some values, in tables.
pub mod sweep;
// Any two ways of running the same jobs, compared.
pub mod compare;
// Results, printed as fio prints them.
pub mod report;
// Runs the jobs, one thread per `numjobs`.
pub mod run;
// Ways to do I/O: this stack, a bare ring, threads, fio.
pub mod engine;
// The files, devices and volumes that jobs name.
pub mod targets;
// The bytes that writes carry, and their verification when read back.
pub mod fill_pattern;
// The sequence of I/Os of one thread.
pub mod workload;
// Zipf and Pareto distributions of block numbers.
mod zipf;
// Random permutations in fixed memory.
mod permutation;
// Job files and keys.
pub mod job;
// Medians, intervals, histograms.
pub mod stats;
// Block headers and checksums.
mod verify;
// The random number generator.
mod random;
// The error of the lab, and exit codes.
mod error;

pub(crate) use error::LOST_TARGET;
pub use error::{Error, ErrorKind};
