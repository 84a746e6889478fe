//! One thread: run what is ready, submit in one batch, reap, wake.
//!
//! A [`Reactor`] owns the rings and queues of its thread. The crate above
//! (`uringfs-file`) starts operations on it. An operation runs and ends on the
//! reactor that started it. Its caller reaps its token ([`Reactor::reap`]) or awaits it.
//! Threads meet only in the mailbox. A reactor also waits for descriptors, so a
//! server needs no other loop.

// The modules, top down: each imports only from those below it.

// The background reactors, which serve threads that have no reactor.
mod background;
// The public handle: construction, `block_on`, drop.
mod reactor;
// Waits for descriptors: readiness, connections, bytes of a socket.
mod descriptor;
// The handle for tasks.
mod local;
// The loop of one thread: its state, turns, sleep, operations.
mod event_loop;
// Requests on their way to devices and back.
mod io;
// Tasks, their waits, and how a result reaches its caller.
mod tasks;
// Messages from other threads, and how they wake a reactor.
mod wake;
// Counters, by reason.
mod counters;
// State that threads share: quiescence, calls without a reactor, and the writer bias.
mod sync;
// Counts of the requests to served disks.
mod request_counters;
// The switches of a reactor and its queues.
mod options;

pub use background::{background_reactor, set_background_reactors};
pub use counters::{Counter, Counters, total};
pub use descriptor::run_command;
pub use event_loop::batch::{BatchAddresses, LocateBatch, RequestBatch};
pub use event_loop::blocking::{OperationsInFlight, operations_in_flight};
pub use event_loop::completions::{Completions, TakeCompletion};
pub use event_loop::core::{ReactorCore, current};
pub use event_loop::handle::ReactorHandle;
pub use event_loop::operation::{AdmissionPermit, Operation, RequestFuture, RequestSpec};
pub use event_loop::push::{Locate, PushError};
pub use event_loop::siblings::thread_has_reactor;
pub use io::batch_slots::{BatchCompletion, BatchCompletions, BatchTransfer};
pub use io::submission_lock::SubmissionLock;
pub use local::LocalReactor;
pub use options::{CompletionMode, ReactorOptions, Require, on_off};
pub use reactor::Reactor;
pub use request_counters::{RequestCounters, RequestCounts, RequestKind};
pub use sync::callers::CallerGuard;
pub use sync::domains::quiescence;
pub use sync::quiescence::{Domain, Epoch};
pub use sync::writer_bias::WriterBias;
pub use tasks::completion::{Completion, Effect, SubmitError, Token};
pub use tasks::join::{JoinError, JoinHandle};
pub use tasks::op_result::{OpResult, ResultReceiver, ResultSender};
pub use tasks::operation_state::Requester;
pub use uringfs_ring::{Command, ForkDetector, PollEvents};
