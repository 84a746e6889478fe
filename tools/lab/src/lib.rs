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

pub mod contents;
pub mod engine;
mod error;
pub mod experiments;
pub mod job;
mod permutation;
mod popularity;
mod random;
pub mod report;
pub mod run;
pub mod stats;
pub mod target;
mod verify;
pub mod vm;
pub mod workload;

pub use error::{Error, ErrorKind};
