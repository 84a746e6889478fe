//! A reactor of the process's own, for threads that have none.

use std::convert::Infallible;
use std::future::pending;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::channel;

use parking_lot::Mutex;
use rustix::io::Errno;

use crate::event_loop::handle::Remote;
use crate::options::ReactorOptions;
use crate::reactor::Reactor;

/// The way to the reactor that serves threads without one. Its thread starts at
/// the first call, sleeps while nothing is asked of it, and ends with the process; or when the kernel takes no more
/// requests from it, as after a sandbox has been put around the process: the next call starts another then.
///
/// # Errors
/// Why the thread or its reactor could not be made; ECHILD in the child of a fork whose parent has one.
pub fn service() -> io::Result<Remote> {
    static BACKGROUND: Mutex<Option<Remote>> = Mutex::new(None);
    let mut background = BACKGROUND.lock();
    match &*background {
        // Of what it serves, page caches above all, only the parent's has the truth.
        Some(remote) if remote.is_forked() => Err(Errno::CHILD.into()),
        Some(remote) if !remote.is_gone() => Ok(remote.clone()),
        _ => Ok(background.insert(start_thread()?).clone()),
    }
}

fn start_thread() -> io::Result<Remote> {
    let (send, receive) = channel();
    let run = move || match Reactor::new(ReactorOptions::default()) {
        Ok(reactor) => {
            // The receiver waits below until it has the answer.
            let _ = send.send(Ok(reactor.inner().remote()));
            serve(&reactor);
        }
        Err(error) => {
            let why = format!("the service reactor cannot start: {error}");
            let _ = send.send(Err(io::Error::new(error.kind(), why)));
        }
    };
    std::thread::Builder::new().name("uringfs-service".into()).spawn(run).map_err(|error| {
        io::Error::new(error.kind(), format!("the service thread cannot start: {error}"))
    })?;
    receive.recv().map_err(|_| io::Error::other("the service thread has died"))?
}

/// Serves until the kernel takes no more requests. What panics is a waker, a map or a back end of users': the panic
/// has been reported, whoever asked is answered, and the others are served on.
fn serve(reactor: &Reactor) {
    let serve = || reactor.run_until(pending::<Infallible>());
    while catch_unwind(AssertUnwindSafe(serve)).is_err() {}
}
