//! The options `-i` and `-u` of `cp` and `mv`, about existing files.

use super::volume_path::VolumePath;
use std::io::{BufRead, Write};
use uringfs::volume::Inode;

/// When an existing file is replaced.
#[derive(clap::Args, Clone, Copy)]
pub struct ReplaceOptions {
    /// Ask before an existing file is replaced
    #[arg(short, long, overrides_with = "no_clobber")]
    interactive: bool,

    /// Replace an existing file only if it is older
    #[arg(short, long)]
    update: bool,
}

impl ReplaceOptions {
    /// Whether the existing file at a path stays. Asks the user on standard error.
    pub fn keeps(self, path: &VolumePath, existing: &Inode, new: &Inode) -> bool {
        if self.update && existing.modified >= new.modified {
            return true;
        }
        self.interactive && !self.asks(path)
    }

    /// Whether the answer begins with y. The end of input is no.
    fn asks(self, path: &VolumePath) -> bool {
        let mut answer = Vec::new();
        let mut stderr = std::io::stderr();
        let asked = write!(stderr, "uringfs: overwrite {path}? ").and_then(|()| stderr.flush());
        let read = std::io::stdin().lock().read_until(b'\n', &mut answer);
        asked.is_ok() && read.is_ok() && matches!(answer.first(), Some(b'y' | b'Y'))
    }
}
