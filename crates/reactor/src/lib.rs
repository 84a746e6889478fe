//! One thread: run what is ready, submit in one batch, reap, wake.
//!
//! A [`Reactor`] owns its thread's rings and queues. Operations are started on
//! it by the crate above (`uringfs-file`), end on it, and are asked for either
//! by token ([`Reactor::reap`]) or by awaiting. Threads meet only in the
//! mailbox. It also waits for descriptors, so that a server needs no other loop.

mod attach;
mod completed;
mod counters;
mod descriptor;
mod guarded;
mod handle;
mod in_flight;
mod io;
mod letters;
mod mailbox;
mod mode;
mod operation;
mod options;
mod quiescence;
mod reactor;
mod service;
mod siblings;
mod sleep;
mod task;
mod timer;
mod turn;
mod watch;
mod worker;

pub use completed::{Completed, Fate, Refused, Token};
pub use counters::{Counter, Counters, total};
pub use descriptor::MAX_WAITS;
pub use guarded::SubmissionLock;
pub use handle::{Outcome, OutcomeCell, OutcomeSender};
pub use mode::Mode;
pub use operation::{Admitted, Asker, Operation, Order, RequestFuture};
pub use options::{CompletionMode, ReactorOptions, Require, on_off};
pub use quiescence::{Domain, Epoch};
pub use reactor::{Inner, Reactor, Remote, Unpushed, current, quiescence};
pub use service::service;
pub use uringfs_ring::ForkMark;
