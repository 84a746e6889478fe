//! State of a file, shared by its handles, and of each handle.

pub(crate) mod append_queue;
pub(crate) mod buffered_handle;
pub(crate) mod delayed_allocation;
pub(crate) mod dirty;
pub(crate) mod file;
pub(crate) mod file_cache;
pub(crate) mod file_state;
pub(crate) mod options;
pub(crate) mod readahead;
