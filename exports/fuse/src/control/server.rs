//! [`ControlServer`]: the thread that serves a control socket. Without clients it waits in `poll(2)`.
//!
//! Nothing that a client does holds up the mount, or another client for long: there are at most [`MAX_CLIENTS`], each has
//! [`REQUEST_TIMEOUT`] for its lines, which are bounded, and replies go into the socket's buffer or nowhere.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::net::sockopt::socket_peercred;
use rustix::process::geteuid;
use serde_json::Value;
use uringfs::Errno;

use super::place::ControlSocket;
use super::protocol::{Heard, Received, failure, hello};
use super::requests::Served;

/// The most clients at once. Others wait until one of them is gone.
const MAX_CLIENTS: usize = 8;
/// The time from the connection of a client to the end of its request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// How long new connections wait after one could not be accepted: the process may have no descriptor left.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

/// Serves a control socket until it is dropped.
pub(crate) struct ControlServer {
    stop: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

impl ControlServer {
    pub(crate) fn start(socket: ControlSocket, served: Served) -> io::Result<ControlServer> {
        let stop = eventfd(0, EventfdFlags::CLOEXEC)?;
        let loops = Loop {
            socket,
            served,
            stop: stop.try_clone()?,
            clients: Vec::new(),
            accepts_again: None,
        };
        let builder = thread::Builder::new().name("uringfs-control".to_owned());
        let thread = builder.spawn(move || loops.run())?;
        Ok(ControlServer { stop, thread: Some(thread) })
    }
}

impl Drop for ControlServer {
    fn drop(&mut self) {
        // An eventfd that nothing has written to takes it.
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            // The panic hook has reported a panic there.
            let _ = thread.join();
        }
    }
}

/// The state of the thread.
struct Loop {
    socket: ControlSocket,
    served: Served,
    stop: OwnedFd,
    clients: Vec<Connection>,
    /// Until when no connection is accepted.
    accepts_again: Option<Instant>,
}

/// A client that has not sent its request yet.
struct Connection {
    stream: UnixStream,
    received: Received,
    until: Instant,
}

impl Loop {
    fn run(mut self) {
        while let Some(readable) = self.wait() {
            let now = Instant::now();
            let served = &self.served;
            let mut readable_clients = readable.clients.into_iter();
            self.clients.retain_mut(|client| {
                let is_readable = readable_clients.next().unwrap_or(false);
                client.until > now && (!is_readable || client.read(served).is_some())
            });
            self.accepts_again = self.accepts_again.filter(|until| *until > now);
            if readable.listener {
                self.accept();
            }
        }
    }

    /// Waits until something is readable or a time is over. `None`: the server ends.
    fn wait(&self) -> Option<Readable> {
        let is_accepting = self.clients.len() < MAX_CLIENTS && self.accepts_again.is_none();
        let wanted = if is_accepting { PollFlags::IN } else { PollFlags::empty() };
        let mut watched = vec![
            PollFd::new(&self.stop, PollFlags::IN),
            PollFd::new(&self.socket.listener, wanted),
        ];
        watched
            .extend(self.clients.iter().map(|client| PollFd::new(&client.stream, PollFlags::IN)));
        let until = self.clients.iter().map(|client| client.until).chain(self.accepts_again).min();
        let rest = until.map(|until| until.saturating_duration_since(Instant::now()));
        let rest = rest.map(|rest| Timespec::try_from(rest).expect("a short time"));
        // EINTR: nothing is readable, and the loop goes on.
        let _ = poll(&mut watched, rest.as_ref());
        let mut readable = watched.iter().map(|watched| !watched.revents().is_empty());
        match readable.next() {
            Some(false) => {
                let listener = readable.next().unwrap_or(false);
                Some(Readable { listener, clients: readable.collect() })
            }
            _ => None,
        }
    }

    fn accept(&mut self) {
        match self.socket.listener.accept() {
            Ok((stream, _)) => self.clients.extend(Connection::begin(stream)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => self.accepts_again = Some(Instant::now() + ACCEPT_PAUSE),
        }
    }
}

/// What [`Loop::wait`] has found.
struct Readable {
    listener: bool,
    /// One for each client.
    clients: Vec<bool>,
}

impl Connection {
    /// Greets a client that may use the socket. Refuses any other.
    fn begin(stream: UnixStream) -> Option<Connection> {
        stream.set_nonblocking(true).ok()?;
        let peer = socket_peercred(stream.as_fd()).ok()?.uid;
        if !peer.is_root() && peer != geteuid() {
            let what = "only root and the user who has mounted the volume may use this socket";
            send(&stream, &failure(what, Errno::PERM.raw_os_error()));
            return None;
        }
        send(&stream, &hello());
        let until = Instant::now() + REQUEST_TIMEOUT;
        Some(Connection { stream, received: Received::default(), until })
    }

    /// Reads what has come, and replies to a complete request. `None`: the conversation is over.
    fn read(&mut self, served: &Served) -> Option<()> {
        let mut bytes = [0; 4096];
        let length = match (&self.stream).read(&mut bytes) {
            Ok(0) => return None,
            Ok(length) => length,
            Err(error) => return (error.kind() == io::ErrorKind::WouldBlock).then_some(()),
        };
        let reply = match self.received.push(&bytes[..length]) {
            Heard::Incomplete => return Some(()),
            Heard::Request(request) => served.reply(request),
            Heard::Refused(reason) => failure(&reason, Errno::PROTO.raw_os_error()),
        };
        send(&self.stream, &reply);
        None
    }
}

/// Sends a line. The client has gone, or reads nothing, if it does not fit into the socket's buffer.
fn send(mut stream: &UnixStream, line: &Value) {
    let _ = stream.write_all(format!("{line}\n").as_bytes());
}
