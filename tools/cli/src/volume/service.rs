//! The parts of a command that serves, as of any service: how it is stopped, what it reports to the service manager,
//! and its control socket.

use crate::output::{print_error, print_warning};
use sd_notify::NotifyState;
use std::io::Read;
use uringfs_fuse::control::{ControlServer, ControlSocket, ControlVolumes, Reload};
use uringfs_lab::Error;
use uringfs_lab::run::stop_signals;

/// Calls `stop` each time a signal asks to stop: Ctrl-C, SIGTERM or SIGHUP.
pub(super) fn at_stop_signal(stop: impl Fn() + Send + 'static) -> Result<(), Error> {
    at_signals(stop_signals(), stop)
}

/// Calls `act` at each of these signals, on a thread of its own.
pub(super) fn at_signals(
    signals: impl IntoIterator<Item = i32>,
    act: impl Fn() + Send + 'static,
) -> Result<(), Error> {
    let failed = |error| Error::run("cannot watch for signals").because(error);
    let (mut read, write) = std::io::pipe().map_err(failed)?;
    for signal in signals {
        let write = write.try_clone().map_err(failed)?;
        signal_hook::low_level::pipe::register(signal, write).map_err(failed)?;
    }
    std::thread::spawn(move || {
        let mut byte = [0];
        while matches!(read.read(&mut byte), Ok(1)) {
            act();
        }
    });
    Ok(())
}

/// Tells systemd, if it has started this process and waits for a word.
pub(super) fn notify(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        print_error(&format!("the service manager cannot be notified: {error}"));
    }
}

/// Lets other commands reach the volumes. `None`, with a warning after an error, if there is no control socket: all else goes on.
pub(super) fn start_control(
    volumes: &ControlVolumes,
    reload: Option<Reload>,
) -> Option<ControlServer> {
    let start = |socket| ControlServer::start(socket, volumes, reload);
    let started = ControlSocket::bind().and_then(|socket| socket.map(start).transpose());
    started.unwrap_or_else(|error| {
        print_warning(&format!("no control socket: {error}"));
        None
    })
}
