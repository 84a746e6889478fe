//! The option `-v` of commands that change a volume.

use super::volume_path::VolumePath;
use super::{format, quoting};
use crate::output::print_bytes;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use uringfs_lab::Error;

/// Whether a command prints its changes.
#[derive(clap::Args, Clone, Copy)]
pub struct VerboseOptions {
    /// Print a line for each file that is changed
    #[arg(short, long)]
    verbose: bool,
}

impl VerboseOptions {
    pub fn is_on(self) -> bool {
        self.verbose
    }

    /// With -v, prints a change as coreutils does: `removed 'v:/a'`, `renamed 'v:/a' -> 'v:/b'`.
    pub fn report(self, change: &str, paths: &[&VolumePath]) -> Result<(), Error> {
        let paths: Vec<Vec<u8>> = paths.iter().map(|path| quoted(path)).collect();
        self.print(&[change.as_bytes(), b" ", &paths.join(&b" -> "[..])])
    }

    /// With -v, prints a line of these parts.
    pub fn print(self, parts: &[&[u8]]) -> Result<(), Error> {
        match self.verbose {
            true => print_bytes(&[&parts.concat(), &b"\n"[..]].concat()),
            false => Ok(()),
        }
    }
}

/// A path in quotes: `'v:/a'`.
pub fn quoted(path: &VolumePath) -> Vec<u8> {
    quoting::quoted(&path.argument()).into_bytes()
}

/// A path as the user would write it: `v:/a`.
pub fn printable_path(path: &VolumePath) -> Vec<u8> {
    format::printable(&path.argument())
}

/// A path of the host in quotes.
pub fn quoted_host(path: &Path) -> Vec<u8> {
    quoting::quoted(path.as_os_str().as_bytes()).into_bytes()
}
