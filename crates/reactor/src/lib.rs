//! One thread: run what is ready, submit in one batch, reap, wake.
//!
//! A [`Reactor`] owns its thread's rings and queues. Operations are started on
//! it by the crate above (`uringfs-file`), end on it, and are asked for either
//! by token ([`Reactor::reap`]) or by awaiting. Threads meet only in the
//! mailbox. It also waits for descriptors, so that a server needs no other loop.

mod background;

mod descriptor;

mod reactor;

mod event_loop;

mod io;

mod tasks;

mod wake;

mod sync;

mod counters;
mod options;

pub use background::service;
pub use counters::{Counter, Counters, total};
pub use event_loop::core::{Inner, current};
pub use event_loop::handle::Remote;
pub use event_loop::operation::{Admitted, Operation, Order, RequestFuture};
pub use event_loop::push::Unpushed;
pub use io::rings::MAX_WAITS;
pub use io::submission_lock::SubmissionLock;
pub use options::{CompletionMode, ReactorOptions, Require, on_off};
pub use reactor::Reactor;
pub use sync::domains::quiescence;
pub use sync::quiescence::{Domain, Epoch};
pub use sync::writer_bias::Mode;
pub use tasks::completion::{Completed, Fate, Refused, Token};
pub use tasks::op_result::{Outcome, OutcomeCell, OutcomeSender};
pub use tasks::operation_state::Asker;
pub use uringfs_ring::ForkMark;
