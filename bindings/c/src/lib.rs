//! The C interface of uringfs: liburingfs, with the header `include/uringfs.h`, which is generated from these files.
//!
//! Each exported function is one call of the crate `uringfs`. The module `handle` has what they share: they check their
//! handle, catch panics, and return a negative errno.

#![allow(unsafe_code)]

// Top down: a module imports only from those below it.

// Calls that panic, for tests.
#[cfg(debug_assertions)]
mod planted;

// Reads and writes that one call queues, from an array.
mod transfers;

// Operations that are queued on a reactor.
mod queue;

// A thread's event loop, and its completions.
mod reactor;

// Links: further names of files, and symbolic links.
mod links;

// Names: directories, renames, attributes.
mod directory;

// The space of files.
mod space;

// Data of files in the page cache.
mod cached;

// Files: opening and closing, and the calls that block.
mod file;

// Buffers that the kernel knows.
mod pool;

// Volumes.
mod volume;

// Checks, panics, results.
mod handle;

// The thread that a handle belongs to.
mod thread;

// Structs that carry their size.
mod sized;

// Lists of switches.
mod switches;

// Strings, memory and arrays of C.
mod pointers;

// Failures and their text.
mod error;

// The version.
mod version;

pub use cached::*;
pub use directory::*;
pub use error::*;
pub use file::*;
pub use links::*;
#[cfg(debug_assertions)]
pub use planted::*;
pub use pool::*;
pub use queue::*;
pub use reactor::*;
pub use space::*;
pub use transfers::*;
pub use version::*;
pub use volume::*;
