//! The option `-q` of commands that print a report or their progress.

use crate::output::print;
use uringfs_lab::Error;

/// Whether a command prints its report.
#[derive(clap::Args, Clone, Copy, Default)]
pub struct QuietOptions {
    /// Print errors only: no report and no progress
    #[arg(short, long)]
    quiet: bool,
}

impl QuietOptions {
    pub fn is_on(self) -> bool {
        self.quiet
    }

    /// Prints a report, without -q.
    pub fn print(self, report: &str) -> Result<(), Error> {
        match self.quiet {
            true => Ok(()),
            false => print(report),
        }
    }
}
