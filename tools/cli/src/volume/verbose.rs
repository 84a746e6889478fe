//! The option `-v` of `rm`, `mv` and `mkdir`.

use super::format;
use super::volume_path::VolumePath;
use crate::output::print_bytes;
use std::os::unix::ffi::OsStrExt;
use uringfs_lab::Error;

/// Whether a command prints its changes.
#[derive(clap::Args, Clone, Copy)]
pub struct VerboseOptions {
    /// Print a line for each change
    #[arg(short, long)]
    verbose: bool,
}

impl VerboseOptions {
    /// With -v, prints a change as coreutils does: `removed 'v:/a'`, `renamed 'v:/a' -> 'v:/b'`.
    pub fn report(self, change: &str, paths: &[&VolumePath]) -> Result<(), Error> {
        if !self.verbose {
            return Ok(());
        }
        let quoted = |path: &&VolumePath| {
            let target = format::printable(path.target.as_bytes());
            [b"'", &target[..], b":", &format::printable(&path.bytes), b"'"].concat()
        };
        let paths: Vec<Vec<u8>> = paths.iter().map(quoted).collect();
        print_bytes(&[change.as_bytes(), b" ", &paths.join(&b" -> "[..]), b"\n"].concat())
    }
}
