//! Images of Ceph's RBD, by librados and librbd made safe: [`Image`].
//!
//! The libraries are loaded by [`Library::load`], so that nothing depends on them at build time. A [`Cluster`] is one client
//! instance of a cluster, an [`Image`] is open through it. [`Image::submit`] begins an operation, which owns its memory; a
//! thread of librbd sends it with its result to the [`Completions`] that were named.
//!
//! ```no_run
//! use std::time::Duration;
//! use uringfs_buffer::Buffer;
//! use uringfs_rbd::{
//!     Cluster, Completions, ConnectOptions, Image, ImageName, Library, Memory, Op, OpenMode,
//! };
//!
//! let options = ConnectOptions {
//!     config: None,
//!     name: None,
//!     settings: Vec::new(),
//!     timeout: Duration::from_secs(30),
//! };
//! let cluster = Cluster::connect(Library::load().unwrap(), &options).unwrap();
//! let name = ImageName {
//!     pool: "rbd".into(),
//!     namespace: String::new(),
//!     image: "disk".into(),
//!     snapshot: None,
//! };
//! let image = Image::open(&cluster, &name, OpenMode::Read).unwrap();
//! let completions = Completions::new().unwrap();
//! let memory = Memory::Single(Buffer::zeroed(4096));
//! assert!(image.submit(Op::Read(0), memory, 0, "the first block", &completions).is_ok());
//! // Until its event is readable, a thread may sleep.
//! let read = loop {
//!     if let Some(ended) = completions.next() {
//!         break ended;
//!     }
//! };
//! assert_eq!(read.result.unwrap(), 4096);
//! ```

#![allow(unsafe_code)]

// Operations on an image.
mod operations;
// The exclusive lock of an image.
mod lock;
// An open image.
mod image;
// The size of an image, which others may change.
mod size_watch;
// The operations that have ended.
mod completions;
// An operation in progress.
mod io;
// A client instance of a cluster.
mod cluster;
// The libraries and their functions.
mod library;
// The end of the process.
mod exit;

pub use cluster::{BlocklistEntry, Cluster, ConnectError, ConnectOptions};
pub use completions::{Completion, Completions, Waker};
pub use image::{Features, Image, ImageInfo, ImageName, OpenError, OpenMode};
pub use io::{Memory, Op};
pub use library::{Library, LoadError};
