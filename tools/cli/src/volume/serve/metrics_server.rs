//! [`MetricsServer`]: serves the page of a [`Registry`] over HTTP, and nothing else. A client has [`TIMEOUT`] for its request, and
//! gets one reply; at most [`MAX_CLIENTS`] are served at a time, and others wait.

use super::metrics::Registry;
use super::problem::Problem;
use super::service::Context;
use super::socket::{Mode, SharedSocket};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::{Errno, ioctl_fionbio};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{SocketFlags, accept_with};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use uringfs_lab::Error;

/// The port of the metrics.
const PORT: u16 = 10810;
/// The longest head of a request in bytes.
const MAX_HEAD_BYTES: usize = 8192;
const MAX_CLIENTS: usize = 8;
/// How long a client may take for its request, and for the reply.
const TIMEOUT: Duration = Duration::from_secs(5);
/// How long new clients wait after one could not be accepted.
const ACCEPT_PAUSE: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };
const OPEN_ADVICE: &str =
    "every program that reaches this address could read the metrics; use 127.0.0.1, or --insecure";

/// Where the metrics are served.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct MetricsOptions {
    /// A path with a slash, or an address.
    pub(super) metrics: Option<String>,
    /// Other machines may reach the address.
    pub(super) insecure: bool,
}

/// Serves until it is dropped.
pub(super) struct MetricsServer {
    pub(super) options: MetricsOptions,
    socket: Arc<SharedSocket>,
    stop: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

impl MetricsServer {
    /// Listens where the options say, if they do. Clients wait until it has started.
    pub(super) fn prepare(
        options: &MetricsOptions,
        context: &mut Context,
    ) -> Result<Option<MetricsServer>, Problem> {
        let Some(place) = &options.metrics else { return Ok(None) };
        let socket = match place.contains('/') {
            true => context.sockets.unix("metrics", Path::new(place), Mode::default(), None)?,
            false => context.sockets.tcp("metrics", place, PORT, options.insecure, OPEN_ADVICE)?,
        };
        let failed =
            |error: Errno| Problem::of("metrics")(Error::run("cannot serve").because(error));
        // A client that has gone again must not hold up the thread.
        ioctl_fionbio(&*socket, true).map_err(failed)?;
        let stop = eventfd(0, EventfdFlags::CLOEXEC).map_err(failed)?;
        Ok(Some(MetricsServer { options: options.clone(), socket, stop, thread: None }))
    }

    pub(super) fn start(&mut self, registry: &Registry) -> io::Result<()> {
        let (stop, socket) = (self.stop.try_clone()?, self.socket.clone());
        let registry = registry.clone();
        let builder = thread::Builder::new().name("uringfs-metrics".to_owned());
        self.thread = Some(builder.spawn(move || serve(&socket, &stop, &registry))?);
        Ok(())
    }

    /// The line for its socket.
    pub(super) fn line(&self) -> String {
        match self.socket.tcp_address() {
            Some(address) => format!("http://{address}/metrics\n"),
            None => {
                let path = self.options.metrics.as_deref().unwrap_or_default();
                let path = std::path::absolute(path).unwrap_or_else(|_| path.into());
                format!("{}\n", path.display())
            }
        }
    }
}

impl Drop for MetricsServer {
    fn drop(&mut self) {
        // An eventfd that nothing has written to takes it.
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            // The panic hook has reported a panic there.
            let _ = thread.join();
        }
    }
}

fn serve(socket: &SharedSocket, stop: &OwnedFd, registry: &Registry) {
    let mut clients: Vec<JoinHandle<()>> = Vec::new();
    while let Some(stream) = accept(socket, stop) {
        clients.retain(|client| !client.is_finished());
        if clients.len() == MAX_CLIENTS {
            // Each ends within its time.
            let _ = clients.remove(0).join();
        }
        let registry = registry.clone();
        // A client that has gone, or was too slow, gets nothing more.
        let answer = move || reply(File::from(stream), &registry).unwrap_or_default();
        // Without a thread the client sees the end of the connection.
        let builder = thread::Builder::new().name("uringfs-metrics".to_owned());
        clients.extend(builder.spawn(answer));
    }
}

/// The next connection. `None`: the server ends.
fn accept(socket: &SharedSocket, stop: &OwnedFd) -> Option<OwnedFd> {
    loop {
        let mut watched = [PollFd::new(stop, PollFlags::IN), PollFd::new(socket, PollFlags::IN)];
        // EINTR: nothing is readable.
        let _ = poll(&mut watched, None);
        if !watched[0].revents().is_empty() {
            return None;
        }
        match accept_with(socket, SocketFlags::CLOEXEC) {
            Ok(stream) => return Some(stream),
            // The client has gone again.
            Err(Errno::AGAIN | Errno::CONNABORTED | Errno::INTR) => {}
            // Most often there is no descriptor left.
            Err(_) => {
                let _ = poll(&mut watched[..1], Some(&ACCEPT_PAUSE));
            }
        }
    }
}

/// Answers one request.
fn reply(mut stream: File, registry: &Registry) -> io::Result<()> {
    let deadline = Instant::now() + TIMEOUT;
    let mut head = Vec::new();
    while head.len() <= MAX_HEAD_BYTES && !head.windows(4).any(|bytes| bytes == b"\r\n\r\n") {
        let rest = deadline.saturating_duration_since(Instant::now());
        if rest.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        set_socket_timeout(&stream, Timeout::Recv, Some(rest))?;
        let mut bytes = [0; 1024];
        match stream.read(&mut bytes)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            length => head.extend_from_slice(&bytes[..length]),
        }
    }
    set_socket_timeout(&stream, Timeout::Send, Some(TIMEOUT))?;
    stream.write_all(&response(&head, registry))
}

/// The reply to the head of a request.
fn response(head: &[u8], registry: &Registry) -> Vec<u8> {
    let line = head.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let words: Vec<_> = line.split(|byte| *byte == b' ').collect();
    let (method, target) = match words[..] {
        _ if head.len() > MAX_HEAD_BYTES => return text("431 Request Header Fields Too Large", ""),
        [method, target, version] if version.starts_with(b"HTTP/1.") => (method, target),
        _ => return text("400 Bad Request", "This is no request of HTTP/1.1.\n"),
    };
    let path = target.split(|byte| *byte == b'?').next().unwrap_or_default();
    match (method, path) {
        (b"GET", b"/metrics") => text("200 OK", &registry.page()),
        (b"GET", _) => text("404 Not Found", "The metrics are at /metrics.\n"),
        _ => text("405 Method Not Allowed\r\nAllow: GET", ""),
    }
}

fn text(status: &str, body: &str) -> Vec<u8> {
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body.as_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(head: &[u8]) -> String {
        let reply = String::from_utf8(response(head, &Registry::default())).unwrap();
        reply.lines().next().unwrap().to_owned()
    }

    #[test]
    fn only_the_page_is_served() {
        assert_eq!(status(b"GET /metrics HTTP/1.1\r\n\r\n"), "HTTP/1.1 200 OK");
        assert_eq!(status(b"GET /metrics?name=a HTTP/1.0\r\n\r\n"), "HTTP/1.1 200 OK");
        assert_eq!(status(b"GET /../etc/passwd HTTP/1.1\r\n\r\n"), "HTTP/1.1 404 Not Found");
        assert_eq!(status(b"POST /metrics HTTP/1.1\r\n\r\n"), "HTTP/1.1 405 Method Not Allowed");
        for wrong in [&b"GET /metrics\r\n\r\n"[..], b"\r\n\r\n", b"GET  / HTTP/1.1\r\n\r\n", b"\0"]
        {
            assert_eq!(status(wrong), "HTTP/1.1 400 Bad Request");
        }
        let long = [b'x'; MAX_HEAD_BYTES + 1];
        assert_eq!(status(&long), "HTTP/1.1 431 Request Header Fields Too Large");
    }
}
