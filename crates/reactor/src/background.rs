//! The background reactor of the process, for threads that have no reactor.

use std::convert::Infallible;
use std::future::pending;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::channel;

use parking_lot::Mutex;
use uringfs_device::Errno;

use crate::event_loop::handle::ReactorHandle;
use crate::options::ReactorOptions;
use crate::reactor::Reactor;

/// A handle to the background reactor.
///
/// The first call starts its thread. The thread sleeps while it has no work, and lives as long as the process.
/// It also ends when the kernel takes no more requests from it, for example after the process has entered a sandbox.
/// The next call then starts another one.
///
/// # Errors
/// The error of creating the thread or its reactor. ECHILD in the child of a fork whose parent has a background reactor.
pub fn background_reactor() -> io::Result<ReactorHandle> {
    static BACKGROUND: Mutex<Option<ReactorHandle>> = Mutex::new(None);
    let mut background = BACKGROUND.lock();
    match &*background {
        // Only the parent's reactor has the current state of what it serves, above all of page caches.
        Some(handle) if handle.is_forked() => Err(Errno::CHILD.into()),
        Some(handle) if !handle.is_gone() => Ok(handle.clone()),
        _ => Ok(background.insert(start_thread()?).clone()),
    }
}

fn start_thread() -> io::Result<ReactorHandle> {
    let (send, receive) = channel();
    let run = move || match Reactor::new(ReactorOptions::default()) {
        Ok(reactor) => {
            // The receiver below waits for this message.
            let _ = send.send(Ok(reactor.inner().handle()));
            serve(&reactor);
        }
        Err(error) => {
            let why = format!("the background reactor cannot start: {error}");
            let _ = send.send(Err(io::Error::new(error.kind(), why)));
        }
    };
    std::thread::Builder::new().name("uringfs-bg".into()).spawn(run).map_err(|error| {
        let why = format!("the thread of the background reactor cannot start: {error}");
        io::Error::new(error.kind(), why)
    })?;
    receive
        .recv()
        .map_err(|_| io::Error::other("the thread of the background reactor has panicked"))?
}

/// Serves until the kernel takes no more requests. A panic comes from a waker, a map or a back end of the user. It has
/// been reported and the caller of the operation has its result, so the loop goes on for the others.
fn serve(reactor: &Reactor) {
    let serve = || reactor.run_until(pending::<Infallible>());
    while catch_unwind(AssertUnwindSafe(serve)).is_err() {}
}
