//! `fsck.uringfs`: `uringfs check` with the options and the exit codes of fsck(8).

use super::check;
use crate::output::print_error;
use signal_hook::flag::register_conditional_shutdown;
use std::ffi::OsString;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use uringfs_lab::Error;
use uringfs_lab::run::stop_signals;

/// The check could not run.
const EXIT_FAILED: u8 = 8;
/// The arguments cannot be used.
pub const EXIT_USAGE: u8 = 16;
const EXIT_STOPPED: i32 = 32;

/// Check and repair a volume.
///
/// The same as uringfs check, with the options and exit codes of fsck(8). A repair asks no questions, so -a, -p and -y
/// are the same: they repair the metadata, and refuse a volume with blocks of metadata that cannot be read. For such a
/// volume see uringfs check --accept-unreadable. They also refuse a device on which another format was made over an old
/// volume. Without an option, nothing is changed.
///
/// Exit codes: 0 no errors; 1 all errors were repaired; 4 errors are left; 8 the check failed: no volume, another format,
/// no permission, the volume is open elsewhere, or the device failed; 16 the arguments cannot be used; 32 stopped by
/// Ctrl-C, SIGTERM or SIGHUP.
#[derive(clap::Parser)]
#[command(name = "fsck.uringfs", version)]
pub struct Arguments {
    /// A block device or a file with a volume that no program writes to
    device: OsString,

    /// Repair errors
    #[arg(short = 'a')]
    automatic: bool,

    /// Repair errors
    #[arg(short = 'p')]
    preen: bool,

    /// Repair errors
    #[arg(short = 'y')]
    yes: bool,

    /// Change nothing
    #[arg(short = 'n', conflicts_with_all = ["automatic", "preen", "yes"])]
    no_changes: bool,

    /// Check even a volume that looks clean, as every check does
    #[arg(short = 'f')]
    force: bool,
}

/// Returns the exit code.
pub fn run(arguments: Arguments) -> u8 {
    let repair = arguments.automatic || arguments.preen || arguments.yes;
    let checked = watch_for_signals()
        .and_then(|()| check::run(check::Arguments::of_fsck(arguments.device, repair)));
    checked.unwrap_or_else(|error| {
        print_error(&error.to_string());
        EXIT_FAILED
    })
}

/// Lets signals end the process with fsck's exit code. A repair can be stopped at any instant, as by a power cut.
fn watch_for_signals() -> Result<(), Error> {
    for signal in stop_signals() {
        let always = Arc::new(AtomicBool::new(true));
        register_conditional_shutdown(signal, EXIT_STOPPED, always)
            .map_err(|error| Error::run("cannot watch for signals").because(error))?;
    }
    Ok(())
}
