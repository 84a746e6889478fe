//! Synchronization primitives: [`Oneshot`], a value that one side sets and the other awaits; [`SeqCount`], the counter
//! of a sequence lock; [`Doorbell`], which says when a sleeper must be woken; [`park_on`]; and the atomics and locks below them. With `--cfg loom` all of them are loom's, so that loom can
//! search the interleavings of the crates above.
//!
//! ```
//! use uringfs_sync::{Mutex, Oneshot};
//!
//! let total = Mutex::new(1);
//! *total.lock() += 1;
//! let result = Oneshot::default();
//! result.set(*total.lock());
//! assert_eq!(result.take(), Some(2));
//! ```

// A value that is awaited.
mod oneshot;
// A thread that waits for a future.
mod park;
// Lock-free reads of several words as one state.
mod seq_count;
// When senders must wake a receiver.
mod doorbell;
// Atomics.
pub mod atomic;
// Mutex and condition variable.
mod lock;

pub use doorbell::Doorbell;
pub use lock::{Condvar, Mutex, MutexGuard};
pub use oneshot::Oneshot;
pub use park::{BlockThread, PollWait, park_on, park_on_until, park_thread, set_block_thread};
pub use seq_count::SeqCount;
