//! Ctrl-C: the first one stops the run, which then reports; the second one ends the program.

use crate::Error;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::low_level::pipe;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// A flag that SIGINT and SIGTERM set.
pub fn stop_on_interrupt() -> Result<Arc<AtomicBool>, Error> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // In this order: the first signal finds the flag unset, then sets it.
        flag::register_conditional_shutdown(signal, 130, Arc::clone(&stop))
            .and_then(|_| flag::register(signal, Arc::clone(&stop)))
            .map_err(|error| Error::run("cannot watch for signals").because(error))?;
    }
    Ok(stop)
}

/// A socket that is readable from the first SIGINT or SIGTERM on, for a program that polls it together
/// with other input.
pub fn readable_on_interrupt() -> Result<UnixStream, Error> {
    let cannot = |error| Error::run("cannot watch for signals").because(error);
    let (reader, writer) = UnixStream::pair().map_err(cannot)?;
    for signal in [SIGINT, SIGTERM] {
        writer.try_clone().and_then(|writer| pipe::register(signal, writer)).map_err(cannot)?;
    }
    Ok(reader)
}
