//! The option `-h` of `ls`, `du` and `df`. As in coreutils, only `--help` prints the help of commands for which `-h`
//! means something else.

use super::format;
use clap::{Arg, ArgAction};

/// The format of sizes in output.
#[derive(clap::Args, Clone, Copy)]
#[command(disable_help_flag = true, arg = long_help())]
pub struct SizeOptions {
    /// Print sizes in powers of 1024, as in 1.5K or 10M
    #[arg(short = 'h', long, overrides_with_all = ["si", "kibibytes"])]
    pub human_readable: bool,

    /// Print sizes in powers of 1000, as in 1.5k or 10M
    #[arg(long, overrides_with_all = ["human_readable", "kibibytes"])]
    pub si: bool,

    /// Print space in units of 1024 bytes, as without options
    #[arg(short = 'k', long, overrides_with_all = ["human_readable", "si"])]
    pub kibibytes: bool,
}

/// The option `--help` without `-h`.
pub(super) fn long_help() -> Arg {
    Arg::new("help").long("help").help("Print help").action(ArgAction::Help).display_order(1000)
}

impl SizeOptions {
    /// Whether sizes have units of their own.
    pub fn are_scaled(self) -> bool {
        self.human_readable || self.si
    }

    /// A size for output: if it is not scaled, in units of `unit` bytes, rounded up.
    pub fn text(self, bytes: u64, unit: u64) -> String {
        match (self.human_readable, self.si) {
            (true, _) => format::human_readable(bytes, 1024),
            (false, true) => format::human_readable(bytes, 1000),
            (false, false) => bytes.div_ceil(unit).to_string(),
        }
    }
}
