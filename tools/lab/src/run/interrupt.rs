//! Ctrl-C: the first one stops the run, which then reports; the second one ends the program. SIGTERM and SIGHUP act as
//! Ctrl-C does.

use crate::Error;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::low_level::pipe;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// A flag that the first of the [`stop_signals`] sets.
pub fn stop_on_interrupt() -> Result<Arc<AtomicBool>, Error> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in stop_signals() {
        // In this order: the first signal finds the flag unset, then sets it.
        flag::register_conditional_shutdown(signal, 130, Arc::clone(&stop))
            .and_then(|_| flag::register(signal, Arc::clone(&stop)))
            .map_err(|error| Error::run("cannot watch for signals").because(error))?;
    }
    Ok(stop)
}

/// A socket that is readable from the first of the [`stop_signals`] on, for a program that polls it together
/// with other input.
pub fn readable_on_interrupt() -> Result<UnixStream, Error> {
    let cannot = |error| Error::run("cannot watch for signals").because(error);
    let (reader, writer) = UnixStream::pair().map_err(cannot)?;
    for signal in stop_signals() {
        writer.try_clone().and_then(|writer| pipe::register(signal, writer)).map_err(cannot)?;
    }
    Ok(reader)
}

/// The signals that ask a program to stop. The end of a terminal sends SIGHUP, which a program that nohup(1) has started
/// ignores.
pub fn stop_signals() -> impl Iterator<Item = i32> {
    let hangup = (!is_hangup_ignored()).then_some(SIGHUP);
    [SIGINT, SIGTERM].into_iter().chain(hangup)
}

fn is_hangup_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    ignored.is_some_and(|mask| mask & 1 << (SIGHUP - 1) != 0)
}
