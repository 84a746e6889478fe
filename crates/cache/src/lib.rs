//! The page cache: which folio is where. Does no I/O.
//!
//! A [`Cache`] has folios of many files, in memory with a bound; a file's are its [`Pages`]. Whoever finds one
//! ([`Pages::look`]) may read it, and nobody changes it meanwhile. Whoever finds none takes it into the cache
//! ([`Pages::fill`]), and has a duty then: to fill it, or to say why not. Others that want it meanwhile leave a
//! callback there and are told ([`Pages::wait`]); no thread waits. Whoever changes one takes it in the same way
//! ([`Pages::change`]); what the device does not have of it stays until somebody has saved it ([`Pages::saved`]).
//!
//! ```
//! use uringfs_cache::{Cache, Look};
//!
//! let cache = Cache::new(1 << 20);
//! let pages = cache.pages(0);
//! assert!(matches!(pages.look(7), Look::Absent));
//! for mut fill in pages.fill(7..8, 0).unwrap() {
//!     fill.bytes()[..5].copy_from_slice(b"hello");
//!     fill.end(Ok(()));
//! }
//! let Look::Found(page) = pages.look(7) else { panic!("it was filled") };
//! assert_eq!(&page[..5], b"hello");
//! ```

// Top down: a module imports only from those below it.

// The public handle.
mod cache;

// The folios of one file.
mod file_folios;

// Waiting for a folio that another fills.
mod wait;

// Folios that are being filled.
mod fill;

// A folio that is read: for the moment, or as a snapshot.
mod folio_ref;

// What all files and handles of a cache share.
mod core;

// Which folio is in which frame.
mod index;

// One waiter for a folio.
mod waiter;

// Free and taken frames, and their memory.
mod frames;

// Limits for dirty folios, by device.
mod dirty;

// A folio's key and flags.
mod folio;

// The order in which folios leave: S3-FIFO.
#[doc(hidden)]
pub mod eviction;

#[cfg(all(test, loom))]
mod loom_tests;

pub use cache::{Cache, CacheStatistics};
pub use dirty::{Fewer, MAX_DEVICES, Many};
pub use file_folios::{Full, Look, NoPage, Pages, Taken};
pub use fill::Fill;
pub use folio::{FOLIO, WRITER};
pub use folio_ref::{Found, Page};
pub use wait::{Told, Wait};
