//! `uringfs put`: copies files and trees of the host into a volume.

// The command and its arguments.
mod command;
// Directories, links and special files.
mod tree;
// The bytes of files.
mod file_copy;
// The state of the copy, and its errors.
mod job;

pub use command::{Arguments, run};
