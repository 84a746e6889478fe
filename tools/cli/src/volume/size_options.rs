//! The option `-h` of `ls`, `du` and `df`. As in coreutils, only `--help` prints their help.

use super::format;
use clap::{Arg, ArgAction};

/// The format of sizes in output.
#[derive(clap::Args, Clone, Copy)]
#[command(
    disable_help_flag = true,
    arg = Arg::new("help").long("help").help("Print help").action(ArgAction::Help).display_order(1000)
)]
pub struct SizeOptions {
    /// Print sizes in powers of 1024, as in 1.5K or 10M
    #[arg(short = 'h', long)]
    pub human_readable: bool,
}

impl SizeOptions {
    /// A size for output: without -h in units of `unit` bytes, rounded up.
    pub fn text(self, bytes: u64, unit: u64) -> String {
        match self.human_readable {
            true => format::human_readable(bytes),
            false => bytes.div_ceil(unit).to_string(),
        }
    }
}
