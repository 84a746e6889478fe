//! [`Service`]: a server with its thread. [`Context`]: what the servers of a process share.

use super::socket::Sockets;
use super::targets::Targets;
use crate::log::server_started;
use crate::output::print_error;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use uringfs_lab::Error;

/// What the servers of a process share.
#[derive(Default)]
pub(super) struct Context {
    pub(super) targets: Targets,
    pub(super) sockets: Sockets,
}

/// Logs that a server has begun at the addresses in these lines, and returns the lines.
pub(super) fn log_started(protocol: &str, lines: String) -> String {
    lines.lines().for_each(|address| server_started(protocol, address));
    lines
}

/// Stops a server. Keeps no file open.
pub(super) type Stop = Arc<dyn Fn() + Send + Sync>;

/// A server that has all that it needs, and its thread once it runs.
pub(super) struct Service {
    name: &'static str,
    serve: Option<Box<dyn FnOnce() -> io::Result<()> + Send>>,
    stop: Stop,
    thread: Option<JoinHandle<bool>>,
    /// The server has ended. Only the end of its thread is left.
    has_ended: Arc<AtomicBool>,
}

impl Service {
    /// `stop` ends `serve`, from any thread. The name is that of the thread.
    pub(super) fn new(
        name: &'static str,
        serve: impl FnOnce() -> io::Result<()> + Send + 'static,
        stop: impl Fn() + Send + Sync + 'static,
    ) -> Service {
        let (serve, stop) = (Some(Box::new(serve) as _), Arc::new(stop));
        Service { name, serve, stop, thread: None, has_ended: Arc::default() }
    }

    pub(super) fn stop(&self) -> Stop {
        self.stop.clone()
    }

    /// Serves on this thread until it is stopped.
    pub(super) fn run(mut self) -> io::Result<()> {
        self.serve.take().map_or(Ok(()), |serve| serve())
    }

    /// Serves on a thread of its own, which reports an error at once, and calls `on_end` when the server has ended.
    pub(super) fn start(&mut self, on_end: impl FnOnce() + Send + 'static) -> io::Result<()> {
        if let Some(serve) = self.serve.take() {
            let has_ended = self.has_ended.clone();
            let serve = move || {
                let end = End { has_ended, on_end: Some(on_end) };
                let served = serve();
                drop(end);
                let reported = served.as_ref().inspect_err(|error| print_error(&error.to_string()));
                reported.is_ok()
            };
            self.thread = Some(thread::Builder::new().name(self.name.to_owned()).spawn(serve)?);
        }
        Ok(())
    }

    /// Whether it serves.
    pub(super) fn is_running(&self) -> bool {
        self.thread.is_some() && !self.has_ended.load(Ordering::Acquire)
    }

    /// Waits until its thread has ended.
    pub(super) fn join(self) -> Result<(), Error> {
        match self.thread.map(JoinHandle::join) {
            None | Some(Ok(true)) => Ok(()),
            Some(Ok(false) | Err(_)) => Err(Error::run("a server has failed")),
        }
    }
}

/// Reports the end of a server, also after a panic.
struct End<F: FnOnce()> {
    has_ended: Arc<AtomicBool>,
    on_end: Option<F>,
}

impl<F: FnOnce()> Drop for End<F> {
    fn drop(&mut self) {
        self.has_ended.store(true, Ordering::Release);
        if let Some(on_end) = self.on_end.take() {
            on_end();
        }
    }
}
