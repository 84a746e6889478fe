//! How requests reach a device: push, submit, reap.
//!
//! A queue belongs to one reactor. It owns every request from push to reap, so
//! that memory in the kernel's hands has no other owner.

// Measures the queues of a device and chooses one.
pub mod calibrate;
// io_uring.
pub mod ring;
// Linux AIO.
pub mod aio;
// Threads of the queue's own.
pub mod threads;
// The calling thread.
pub mod sync;
// The result of a calibration.
pub(crate) mod choice;
// The names of the queues.
pub(crate) mod kind;
// The interface of every queue.
#[allow(clippy::module_inception)]
pub(crate) mod queue;

pub use calibrate as auto;
pub use kind::QueueKind;
pub use queue::{Queue, Ready};
