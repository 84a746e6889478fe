//! The extension module of the Python package `uringfs`: volumes and files over the Rust library. The package's own
//! Python code, in `python/uringfs`, makes io objects, paths, asyncio and fsspec of it.
//!
//! Calls that may wait release the GIL. Each thread that waits has a reactor, which also serves its event loop.

use pyo3::prelude::*;

// Top down: a module imports only from those below it.

/// Volumes and files; use the package `uringfs`, which imports them.
#[pymodule(gil_used = true)]
mod _uringfs {
    #[pymodule_export]
    use crate::event_loop::{collect, descriptor, finish};
    #[pymodule_export]
    use crate::file::File;
    #[pymodule_export]
    use crate::fork::mark_child;
    #[pymodule_export]
    use crate::thread_reactor::drop_reactor;
    #[pymodule_export]
    use crate::volume::{Volume, create};
}

// Volumes, names and attributes.
mod volume;

// Files: reads, writes, and everything by offset.
mod file;

// Reads and writes of whole buffers.
mod transfer;

// Operations that an event loop awaits.
mod event_loop;

// Reads of many ranges into one buffer.
mod ranges;

// Open files, until they close.
mod handle;

// Paths in a volume.
mod path;

// Attributes as `os.stat_result`.
mod stat;

// The reactor of a thread, and waits on it.
mod thread_reactor;

// The checks of every call, and panics as errors.
mod guard;

// Memory of Python objects as memory of requests.
mod memory;

// Handles of a parent process.
mod fork;

// Errors as OSError.
mod errors;
