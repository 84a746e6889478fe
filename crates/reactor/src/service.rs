//! A reactor of the process's own, for threads that have none.

use std::io;
use std::sync::OnceLock;
use std::sync::mpsc::channel;

use crate::options::ReactorOptions;
use crate::reactor::{Reactor, Remote};

/// The way to the reactor that serves threads without one. Its thread starts at
/// the first call, sleeps while nothing is asked of it, and ends with the process.
///
/// # Errors
/// Why the thread or its reactor could not be made, at every call.
pub fn service() -> io::Result<&'static Remote> {
    static SERVICE: OnceLock<Result<Remote, String>> = OnceLock::new();
    SERVICE.get_or_init(start).as_ref().map_err(|error| io::Error::other(error.clone()))
}

fn start() -> Result<Remote, String> {
    let (send, receive) = channel();
    let run = move || match Reactor::new(ReactorOptions::default()) {
        Ok(reactor) => {
            // The receiver waits below until it has the answer.
            let _ = send.send(Ok(reactor.inner().remote()));
            reactor.block_on(std::future::pending::<()>());
        }
        Err(error) => {
            let _ = send.send(Err(format!("the service reactor cannot start: {error}")));
        }
    };
    std::thread::Builder::new()
        .name("uringfs-service".into())
        .spawn(run)
        .map_err(|error| format!("the service thread cannot start: {error}"))?;
    receive.recv().map_err(|_| "the service thread has died".to_owned())?
}
