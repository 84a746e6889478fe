//! Queues carry requests to a device: push, submit, reap.
//!
//! A queue belongs to one reactor. It owns every request from push to reap, so
//! memory that the kernel may use has no other owner.

// Measures the queues of a device and chooses one.
pub mod calibrate;
// The rule by which measured rates decide.
mod choice;
// The scheduler's account of a thread.
mod scheduling;
// Commands to NVMe devices, over io_uring.
pub mod nvme;
// io_uring.
pub mod ring;
// Linux AIO.
pub mod aio;
// Worker threads of the queue.
pub mod threads;
// The calling thread.
pub mod sync;
// Notices reads that are slower than measured.
pub mod slowdown;

pub use crate::interface::kind::QueueKind;
pub use crate::interface::queue::{Queue, Ready};
