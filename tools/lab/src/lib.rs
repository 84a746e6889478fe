//! The lab: fio job files in, tables and verdicts out.
//!
//! A [`job::Parser`] reads job files and keys into a [`job::JobSet`]; a [`run::Run`] carries it
//! out on an [`engine::Engine`]; [`report`] prints the results as fio does. [`experiments`]
//! compare two ways of doing one thing.
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

// Guests that count instructions.
pub mod vm;
// Two sides of one mechanism, compared.
pub mod experiments;
// What a run found, as fio prints it.
pub mod report;
// Jobs carried out, thread by thread.
pub mod run;
// Ways to carry out I/O.
pub mod engine;
// Files, devices and volumes that jobs name.
pub mod targets;
// Bytes that are written, and read back.
pub mod fill_pattern;
// Which I/O comes next.
pub mod workload;
mod zipf;
mod permutation;
// Job files and keys.
pub mod job;
// Medians, intervals, histograms.
pub mod stats;
mod verify;
mod random;
mod error;

pub use error::{Error, ErrorKind};
