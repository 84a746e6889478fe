//! Images of Ceph's RBD, by librados and librbd made safe.
//!
//! The libraries are loaded by [`Library::load`], so that nothing depends on them at build time. A [`Cluster`] is one client
//! instance of a cluster, an [`Image`] is open through it. [`Image::submit`] begins an operation, which owns its memory; a
//! thread of librbd sends it with its result to the [`Completions`] that were named.

#![allow(unsafe_code)]

// An open image.
mod image;
// The operations that have ended.
mod completions;
// An operation in progress.
mod io;
// A client instance of a cluster.
mod cluster;
// The libraries and their functions.
mod library;

pub use cluster::{Cluster, ConnectError, ConnectOptions};
pub use completions::{Completion, Completions};
pub use image::{Features, Image, ImageInfo, ImageName, OpenError, OpenMode, Watcher};
pub use io::{Memory, Op};
pub use library::{Library, LoadError};
