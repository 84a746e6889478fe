//! Queues take requests to a device: push, submit, reap.
//!
//! A queue belongs to one reactor. It owns every request from push to reap, so
//! that memory in the kernel's hands has no other owner.

// Measures the queues of a device and chooses one.
pub mod calibrate;
// io_uring.
pub mod ring;
// Linux AIO.
pub mod aio;
// Threads of its own.
pub mod threads;
// The calling thread.
pub mod sync;

pub use crate::interface::kind::QueueKind;
pub use crate::interface::queue::{Queue, Ready};
pub use calibrate as auto;
