//! [`MetricsServer`]: serves the page of a [`Registry`] over HTTP, and nothing else. A client has [`TIMEOUT`] for its request, and
//! gets one reply; at most [`MAX_CLIENTS`] are served at a time, and others wait.

use super::metrics::Registry;
use super::problem::Problem;
use super::service::Context;
use super::socket::{Mode, SharedSocket};
use httparse::{Error as ParseError, Status};
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
/// The longest head of a request, in bytes and in headers.
const MAX_HEAD_BYTES: usize = 8192;
const MAX_HEADERS: usize = 64;
const MAX_CLIENTS: usize = 8;
/// How long a client may take for its request and the reply.
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

/// Answers one request. All of it, and of its answer, has [`TIMEOUT`].
fn reply(mut stream: File, registry: &Registry) -> io::Result<()> {
    let deadline = Instant::now() + TIMEOUT;
    let rest = || match deadline.saturating_duration_since(Instant::now()) {
        Duration::ZERO => Err(io::Error::from(io::ErrorKind::TimedOut)),
        rest => Ok(Some(rest)),
    };
    let mut head = Vec::new();
    let response = loop {
        if let Some(response) = response(&head, registry) {
            break response;
        }
        set_socket_timeout(&stream, Timeout::Recv, rest()?)?;
        let mut bytes = [0; 1024];
        match stream.read(&mut bytes)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            length => head.extend_from_slice(&bytes[..length]),
        }
    };
    let mut left = &response[..];
    while !left.is_empty() {
        set_socket_timeout(&stream, Timeout::Send, rest()?)?;
        left = &left[stream.write(left)?..];
    }
    Ok(())
}

/// The reply to a request, once its head is there or cannot come.
fn response(head: &[u8], registry: &Registry) -> Option<Vec<u8>> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    let parsed = request.parse(head);
    let (method, target) = match (parsed, request.method, request.path) {
        (Ok(Status::Partial), ..) if head.len() <= MAX_HEAD_BYTES => return None,
        (Ok(Status::Complete(length)), Some(method), Some(target)) if length <= MAX_HEAD_BYTES => {
            (method, target)
        }
        (Ok(_) | Err(ParseError::TooManyHeaders), ..) => {
            return Some(text("431 Request Header Fields Too Large", ""));
        }
        (Err(_), ..) => return Some(text("400 Bad Request", "This is no request of HTTP/1.1.\n")),
    };
    let path = target.split('?').next().unwrap_or_default();
    Some(match (method, path) {
        ("GET", "/metrics") => text("200 OK", &registry.page()),
        ("GET", _) => text("404 Not Found", "The metrics are at /metrics.\n"),
        _ => text("405 Method Not Allowed\r\nAllow: GET", ""),
    })
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

    fn status(head: &[u8]) -> Option<String> {
        let reply = String::from_utf8(response(head, &Registry::default())?).unwrap();
        reply.lines().next().map(str::to_owned)
    }

    #[test]
    fn only_the_page_is_served() {
        for (head, expected) in [
            (&b"GET /metrics HTTP/1.1\r\n\r\n"[..], "200 OK"),
            (b"GET /metrics?name=a HTTP/1.0\r\nHost: a\r\n\r\n", "200 OK"),
            (b"GET /metrics HTTP/1.1\nHost: a\n\n", "200 OK"),
            (b"GET /../etc/passwd HTTP/1.1\r\n\r\n", "404 Not Found"),
            (b"POST /metrics HTTP/1.1\r\n\r\n", "405 Method Not Allowed"),
            (b"GET /metrics\r\n\r\n", "400 Bad Request"),
            (b"GET  / HTTP/1.1\r\n\r\n", "400 Bad Request"),
            (b"GET / HTTP/2.0\r\n\r\n", "400 Bad Request"),
            (b"GET / HTTP/1.1\r\nno header\r\n\r\n", "400 Bad Request"),
            (b"\0", "400 Bad Request"),
        ] {
            assert_eq!(status(head).as_deref(), Some(&*format!("HTTP/1.1 {expected}")));
        }
    }

    #[test]
    fn a_head_is_waited_for_until_it_is_too_long() {
        let head = b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n";
        for length in 0..head.len() {
            assert_eq!(status(&head[..length]), None, "{length}");
        }
        let too_long = Some("HTTP/1.1 431 Request Header Fields Too Large".to_owned());
        let long = [&b"GET /metrics HTTP/1.1\r\nA: "[..], &[b'x'; MAX_HEAD_BYTES]].concat();
        assert_eq!(status(&long[..MAX_HEAD_BYTES]), None);
        assert_eq!(status(&long), too_long);
        assert_eq!(status(&[&long[..], b"\r\n\r\n"].concat()), too_long);
        let many = b"A: b\r\n".repeat(MAX_HEADERS + 1);
        assert_eq!(status(&[b"GET / HTTP/1.1\r\n", &many[..], b"\r\n"].concat()), too_long);
    }
}
