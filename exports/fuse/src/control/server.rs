//! [`ControlServer`]: the thread that serves a control socket. Without clients it waits in `poll(2)`.
//!
//! Nothing that a client does holds up the mount, or another client for long: there are at most [`MAX_CLIENTS`], each has
//! [`REQUEST_TIMEOUT`] for its lines, which are bounded, and replies go into the socket's buffer or nowhere. A request that
//! waits for the device runs in a thread of its own, one at a time, which may send more lines before the last.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::net::sockopt::socket_peercred;
use rustix::process::geteuid;
use serde_json::Value;
use uringfs::Errno;

use super::place::ControlSocket;
use super::protocol::{Heard, Received, Request, failure, hello};
use super::requests::Served;

/// The most clients at once. Others wait until one of them is gone.
const MAX_CLIENTS: usize = 8;
/// The time from the connection of a client to the end of its request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
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
            served: Arc::new(served),
            job: None,
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
    served: Arc<Served>,
    /// The thread of a request that takes longer.
    job: Option<JoinHandle<()>>,
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
            self.accepts_again = self.accepts_again.filter(|until| *until > now);
            for (client, is_readable) in
                std::mem::take(&mut self.clients).into_iter().zip(readable.clients)
            {
                let client = if is_readable { self.serve(client) } else { Some(client) };
                self.clients.extend(client.filter(|client| client.until > now));
            }
            if readable.listener {
                self.accept();
            }
        }
        // No client finds it any more.
        drop(self.socket);
        if let Some(job) = self.job {
            let _ = job.join();
        }
    }

    /// Reads what a client has sent, and replies to a complete request. `None`: the conversation is over.
    fn serve(&mut self, mut client: Connection) -> Option<Connection> {
        let mut bytes = [0; 4096];
        let length = match (&client.stream).read(&mut bytes) {
            Ok(0) => return None,
            Ok(length) => length,
            Err(error) => return (error.kind() == io::ErrorKind::WouldBlock).then_some(client),
        };
        match client.received.push(&bytes[..length]) {
            Heard::Incomplete => return Some(client),
            Heard::Request(request) if request.timeout() != Some(Duration::ZERO) => {
                self.start(client.stream, request);
            }
            Heard::Request(request) => send(&client.stream, &self.served.reply(request)),
            Heard::Refused(reason) => {
                send(&client.stream, &failure(&reason, Errno::PROTO.raw_os_error()));
            }
        }
        None
    }

    /// Starts a request in a thread, unless one is under way.
    fn start(&mut self, stream: UnixStream, request: Request) {
        if self.job.as_ref().is_some_and(|job| !job.is_finished()) {
            let what = "another request is under way; try again when it has ended";
            return send(&stream, &failure(what, Errno::BUSY.raw_os_error()));
        }
        let served = self.served.clone();
        let builder = thread::Builder::new().name("uringfs-control".to_owned());
        // If there is no thread, the client sees the end of the conversation.
        self.job = builder.spawn(move || send(&stream, &served.reply(request))).ok();
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
}

/// Sends a line. The client has gone, or reads nothing, if it does not fit into the socket's buffer.
fn send(mut stream: &UnixStream, line: &Value) {
    let _ = stream.write_all(format!("{line}\n").as_bytes());
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::path::PathBuf;

    use tempfile::TempDir;
    use uringfs::device::Device;
    use uringfs::device::backend::memory::Memory;
    use uringfs::{
        Buffer, FormatOptions, OpenOptions, Reactor, ReactorOptions, Token, Tokens, Volume,
    };

    use super::*;
    use crate::control::protocol::{MAX_REQUEST_BYTES, VERSION};

    struct Server {
        _server: ControlServer,
        volume: Volume,
        folder: TempDir,
    }

    impl Server {
        fn start() -> Server {
            let folder = tempfile::tempdir().unwrap();
            let device = Device::new(Memory::new(64 << 20).unwrap()).unwrap();
            let options = FormatOptions::new().size(32 << 20);
            let volume = Volume::create_on(device, &options).unwrap();
            let served = Served {
                volume: volume.clone(),
                directory: PathBuf::from("/m"),
                options: "rw".into(),
                threads: 1,
            };
            let socket = ControlSocket::bind_in(folder.path()).unwrap();
            let _server = ControlServer::start(socket, served).unwrap();
            Server { _server, volume, folder }
        }

        fn connect(&self) -> UnixStream {
            let process = std::process::id().to_string();
            let path = self.folder.path().join(process).join("control");
            let stream = UnixStream::connect(path).unwrap();
            // Longer than any client may hold up another.
            stream.set_read_timeout(Some(4 * REQUEST_TIMEOUT)).unwrap();
            stream
        }

        /// The last line of the reply to what a client sends.
        fn reply_to(&self, bytes: &[u8]) -> Value {
            let mut stream = self.connect();
            // The server may have heard enough before the end.
            let _ = stream.write_all(bytes);
            last_line(stream)
        }

        fn call(&self, request: Request) -> Value {
            self.reply_to(&lines(request))
        }
    }

    fn lines(request: Request) -> Vec<u8> {
        format!("{}\n{}\n", hello(), request.to_json()).into_bytes()
    }

    fn last_line(stream: UnixStream) -> Value {
        let line = BufReader::new(stream).lines().map_while(Result::ok).last().unwrap();
        serde_json::from_str(&line).unwrap()
    }

    fn is_failure(reply: &Value, errno: Errno) -> bool {
        reply["error"].is_string() && reply["errno"] == errno.raw_os_error()
    }

    #[test]
    fn requests_are_answered() {
        let server = Server::start();
        assert_eq!(server.call(Request::Info)["result"]["mount"]["directory"], "/m");
        let counters = &server.call(Request::Counters)["result"];
        assert!(counters["reactors"]["direct.slow_path"].is_number());
        assert_eq!(counters["volume"]["blocks"], (32 << 20) / 4096);
        let space = &server.call(Request::Resize(64 << 20))["result"];
        assert_eq!((&space["size"], &space["device"]), (&(64 << 20).into(), &(64 << 20).into()));
        assert_eq!(server.call(Request::Space)["result"], *space);
        assert!(is_failure(&server.call(Request::Resize(128 << 20)), Errno::INVAL));
        let freeze = Request::Freeze(Duration::from_secs(3600));
        assert_eq!(server.call(freeze)["result"]["seconds"], 3600);
        assert!(is_failure(&server.call(freeze), Errno::BUSY));
        assert_eq!(server.call(Request::Thaw)["result"]["was_frozen"], true);
        assert_eq!(server.call(Request::Thaw)["result"]["was_frozen"], false);
    }

    #[test]
    fn clients_that_say_nothing_or_half_a_line_hold_up_nobody_for_long() {
        let server = Server::start();
        let silent: Vec<_> = (0..MAX_CLIENTS + 2)
            .map(|client| {
                let mut stream = server.connect();
                stream.write_all(&b"{\"uringfs\":"[..client]).unwrap();
                stream
            })
            .collect();
        assert!(server.call(Request::Space)["result"].is_object());
        drop(silent);
    }

    #[test]
    fn megabytes_and_other_versions_are_refused() {
        let server = Server::start();
        let long = vec![b' '; 4 << 20];
        assert!(is_failure(&server.reply_to(&long), Errno::PROTO));
        assert!(is_failure(&server.reply_to(&long[..=MAX_REQUEST_BYTES]), Errno::PROTO));
        let other = hello().to_string().replace(&VERSION.to_string(), "9") + "\n";
        assert!(is_failure(&server.reply_to(other.as_bytes()), Errno::PROTO));
        assert!(server.call(Request::Space)["result"].is_object());
    }

    #[test]
    fn while_a_long_request_is_under_way_short_ones_are_answered_and_long_ones_refused() {
        let server = Server::start();
        let reactor = Reactor::new(ReactorOptions::default()).unwrap();
        let options = OpenOptions::new().write(true).create(true).direct(true);
        let file = server.volume.open_with("/f", options).unwrap();
        // A freeze waits for it, and nothing turns its reactor.
        reactor.start(file.append(Buffer::zeroed(4096)), Token::new(1)).unwrap();
        let mut freezing = server.connect();
        freezing.write_all(&lines(Request::Freeze(Duration::from_secs(3600)))).unwrap();
        while !is_failure(&server.call(Request::Resize(64 << 20)), Errno::BUSY) {}
        assert!(server.call(Request::Counters)["result"].is_object());
        // Its thread may not have begun yet.
        while server.call(Request::Thaw)["result"]["was_frozen"] != true {}
        assert!(is_failure(&last_line(freezing), Errno::TIMEDOUT));
        let mut completed = Vec::new();
        reactor.reap(1, None, &mut completed).unwrap();
    }

    #[test]
    fn the_end_of_a_server_removes_its_socket_and_closes_its_clients() {
        let server = Server::start();
        let mut stream = server.connect();
        let Server { _server, volume, folder } = server;
        drop(_server);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
        volume.close().unwrap();
    }
}
