//! The page cache: which folio is in memory, and where. Does no I/O.
//!
//! A [`Cache`] holds folios of many files in bounded memory. The folios of one file are its [`FileFolios`]:
//!
//! - [`FileFolios::lookup`] looks a folio up. While you read it, no thread changes it.
//! - [`FileFolios::begin_fill`] inserts absent folios. The caller must fill them, or report an error.
//! - [`FileFolios::wait`] waits for a locked folio. It registers a callback; no thread blocks.
//! - [`FileFolios::lock_for_write`] locks a folio for a write. A dirty folio stays in the cache until it is written back
//!   ([`FileFolios::mark_clean`]) or invalidated.
//!
//! ```
//! use uringfs_cache::{Cache, Lookup};
//!
//! let cache = Cache::new(1 << 20);
//! let file = cache.file_folios(0);
//! assert!(matches!(file.lookup(7), Lookup::Absent));
//! for mut fill in file.begin_fill(7..8, 0).unwrap() {
//!     fill.bytes()[..5].copy_from_slice(b"hello");
//!     fill.end(Ok(()));
//! }
//! let Lookup::Found(folio) = file.lookup(7) else { panic!("the folio was filled") };
//! assert_eq!(&folio[..5], b"hello");
//! ```

// Top down: a module imports only from those below it.

// The public handle.
mod cache;

// The folios of one file.
mod file_folios;

// Waiting for a locked folio.
mod wait;

// Locked folios: filled or changed by the holder of the lock.
mod fill;

// Read access to a folio: a reference or a snapshot.
mod folio_ref;

// The state that all files and handles of a cache share.
mod core;

// The hash table from folios to frames.
mod index;

// One waiter for a folio.
mod waiter;

// Free and taken frames, and their memory.
mod frames;

// Limits for dirty folios, by device.
mod dirty;

// A folio's key and flags.
mod folio;

// The eviction order: S3-FIFO.
#[doc(hidden)]
pub mod eviction;

#[cfg(all(test, loom))]
mod loom_tests;

pub use cache::{Cache, CacheStatistics};
pub use dirty::{MAX_DEVICES, ThrottleWait, WritebackDue};
pub use file_folios::{CacheFull, FileFolios, LockForWrite, Lookup, SnapshotError};
pub use fill::Fill;
pub use folio::{FOLIO, WRITER};
pub use folio_ref::{FolioRef, FolioSnapshot};
pub use wait::{FolioWait, FolioWaitResult};
