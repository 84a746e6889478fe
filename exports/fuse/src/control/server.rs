//! [`ControlServer`]: the thread that serves a control socket. Without clients it waits in `poll(2)`.
//!
//! Nothing that a client does holds up the mount, or another client for long: there are at most [`MAX_CLIENTS`], each has
//! [`REQUEST_TIMEOUT`] for its lines, which are bounded, and replies go into the socket's buffer or nowhere. A request that
//! waits for the device runs in a thread of its own, one at a time. So does a check, which sends more lines before the last, and
//! each session about files, at most [`MAX_SESSIONS`].

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::net::sockopt::socket_peercred;
use rustix::process::geteuid;
use serde_json::Value;
use uringfs::Errno;

use super::file_session::FileSession;
use super::online_check;
use super::place::ControlSocket;
use super::protocol::{Heard, Received, Request, failure, hello};
use super::requests::Served;

/// The most clients at once. Others wait until one of them is gone.
const MAX_CLIENTS: usize = 8;
/// The most sessions about files at once. Others are refused.
const MAX_SESSIONS: usize = 16;
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
            check: None,
            is_ending: Arc::default(),
            sessions: Vec::new(),
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
    /// A request that takes longer.
    job: Option<Job>,
    check: Option<Job>,
    /// Ends a check.
    is_ending: Arc<AtomicBool>,
    sessions: Vec<Session>,
    stop: OwnedFd,
    clients: Vec<Connection>,
    /// Until when no connection is accepted.
    accepts_again: Option<Instant>,
}

/// A request in a thread of its own. Dropping it waits for its end.
struct Job {
    /// The request is done. Only its reply is left to send, which never blocks.
    is_done: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// A session about files. Dropping it ends it, once the request under way is done.
struct Session {
    /// For its end.
    stream: UnixStream,
    thread: Option<JoinHandle<()>>,
}

/// A client that has not sent its request yet.
pub(super) struct Connection {
    pub(super) stream: UnixStream,
    pub(super) received: Received,
    pub(super) until: Instant,
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
        self.is_ending.store(true, Ordering::Relaxed);
        (self.job, self.check) = (None, None);
        // It may have been a freeze, for which sessions wait.
        self.served.volume.thaw();
        self.sessions.clear();
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
            Heard::Request(Request::Files) => self.begin_session(client.stream),
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

    /// Starts a request in a thread, unless one is under way. A check holds up no other request.
    fn start(&mut self, stream: UnixStream, request: Request) {
        let (job, what) = match request {
            Request::Check { .. } => (&mut self.check, "check"),
            _ => (&mut self.job, "request"),
        };
        if job.as_ref().is_some_and(|job| !job.is_done()) {
            let what = format!("another {what} is under way; try again when it has ended");
            return send(&stream, &failure(&what, Errno::BUSY.raw_os_error()));
        }
        let (served, is_ending) = (self.served.clone(), self.is_ending.clone());
        // If there is no thread, the client sees the end of the conversation.
        *job = Job::begin(served, is_ending, stream, request).ok();
    }

    /// Begins a session about files in a thread of its own.
    fn begin_session(&mut self, stream: UnixStream) {
        self.sessions.retain(|session| !session.is_over());
        if self.sessions.len() == MAX_SESSIONS {
            let what = "too many programs use the volume by its control socket";
            return send(&stream, &failure(what, Errno::BUSY.raw_os_error()));
        }
        // If there is no descriptor or no thread, the client sees the end of the conversation.
        self.sessions.extend(Session::begin(self.served.clone(), stream).ok());
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

impl Job {
    fn begin(
        served: Arc<Served>,
        is_ending: Arc<AtomicBool>,
        stream: UnixStream,
        request: Request,
    ) -> io::Result<Job> {
        let is_done = Arc::<AtomicBool>::default();
        let builder = thread::Builder::new().name("uringfs-control".to_owned());
        let thread = builder.spawn({
            let is_done = is_done.clone();
            move || {
                let reply = match request {
                    Request::Check { deep } => {
                        online_check::serve(&served.volume, deep, &stream, &is_ending)
                    }
                    _ => Ok(served.reply(request)),
                };
                // First: a client that has the reply may send the next request.
                is_done.store(true, Ordering::Release);
                // Without a reply, the client sees the end of the conversation.
                if let Ok(reply) = reply {
                    send(&stream, &reply);
                }
            }
        })?;
        Ok(Job { is_done, thread: Some(thread) })
    }

    fn is_done(&self) -> bool {
        let is_over = |thread: &JoinHandle<()>| thread.is_finished();
        self.is_done.load(Ordering::Acquire) || self.thread.as_ref().is_none_or(is_over)
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            // The panic hook has reported a panic there.
            let _ = thread.join();
        }
    }
}

impl Session {
    fn begin(served: Arc<Served>, stream: UnixStream) -> io::Result<Session> {
        let other = stream.try_clone()?;
        let builder = thread::Builder::new().name("uringfs-files".to_owned());
        let thread = builder.spawn(move || {
            let Served { volume, kernel, is_read_only, .. } = &*served;
            // An error is the end of the session, too.
            let _ = FileSession::serve(volume, kernel, *is_read_only, &other);
            let _ = other.shutdown(Shutdown::Both);
        })?;
        Ok(Session { stream, thread: Some(thread) })
    }

    fn is_over(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // The thread reads the end of the conversation, unless it is over anyway.
        let _ = self.stream.shutdown(Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            // The panic hook has reported a panic there.
            let _ = thread.join();
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
    pub(super) fn begin(stream: UnixStream) -> Option<Connection> {
        stream.set_nonblocking(true).ok()?;
        let peer = socket_peercred(stream.as_fd()).ok()?.uid;
        if !peer.is_root() && peer != geteuid() {
            let what = "permission denied: only root and the server's user may use this socket";
            send(&stream, &failure(what, Errno::PERM.raw_os_error()));
            return None;
        }
        send(&stream, &hello());
        let until = Instant::now() + REQUEST_TIMEOUT;
        Some(Connection { stream, received: Received::default(), until })
    }
}

/// Sends a line. The client has gone, or reads nothing, if it does not fit into the socket's buffer.
pub(super) fn send(mut stream: &UnixStream, line: &Value) {
    let _ = stream.write_all(format!("{line}\n").as_bytes());
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::os::unix::net::UnixDatagram;
    use std::path::PathBuf;

    use tempfile::TempDir;
    use uringfs::device::Device;
    use uringfs::device::backend::memory::Memory;
    use uringfs::volume::{AtimePolicy, CheckStep, FileType, Follow, Inode, Rename, SetXattr};
    use uringfs::{
        Buffer, FormatOptions, OpenOptions, Reactor, ReactorOptions, Token, Tokens, Volume,
    };
    use zerocopy::FromBytes;

    use super::*;
    use crate::abi::OutHeader;
    use crate::control::file_request::Opening;
    use crate::control::protocol::{MAX_REQUEST_BYTES, VERSION};
    use crate::control::remote::RemoteFiles;
    use crate::notify::Kernel;
    use crate::session::{MountCache, Session as MountSession, SessionOptions};

    struct Server {
        _server: ControlServer,
        volume: Volume,
        folder: TempDir,
        session: Arc<MountSession>,
        /// Takes what the kernel would.
        kernel: UnixDatagram,
    }

    impl Server {
        fn start() -> Server {
            let folder = tempfile::tempdir().unwrap();
            let device = Device::new(Memory::new(64 << 20).unwrap()).unwrap();
            let options = FormatOptions::new().size(32 << 20);
            let volume = Volume::create_on(device, &options).unwrap();
            let session = SessionOptions {
                cache: MountCache::Kernel,
                writeback: true,
                commit_interval: Duration::from_secs(5),
                io_uring: false,
                spin: false,
                default_permissions: true,
                access_time: AtimePolicy::Relative,
            };
            let session = Arc::new(MountSession::new(volume.clone(), session, 1));
            let (channel, kernel) = UnixDatagram::pair().unwrap();
            let served = Served {
                volume: volume.clone(),
                kernel: Kernel::new(session.clone(), channel.into()),
                is_read_only: false,
                directory: PathBuf::from("/m"),
                options: "rw".into(),
                threads: 1,
            };
            let socket = ControlSocket::bind_in(folder.path()).unwrap();
            let _server = ControlServer::start(socket, served).unwrap();
            Server { _server, volume, folder, session, kernel }
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
    fn a_check_sends_its_steps_and_its_findings() {
        let server = Server::start();
        server.volume.write("/a", [7; 9000]).unwrap();
        server.volume.sync().unwrap();
        let stream = server.connect();
        let lines = lines(Request::Check { deep: true });
        (&stream).write_all(&lines).unwrap();
        let mut steps = Vec::new();
        let mut received = BufReader::new(&stream).split(b'\n');
        received.next();
        let line = || received.next().unwrap();
        let report = online_check::receive(line, &mut |step, _| steps.push(step)).unwrap();
        assert!(report.is_sound());
        assert_eq!((report.files, report.directories, report.read_blocks), (1, 1, 3));
        steps.dedup();
        assert_eq!(
            steps,
            [
                CheckStep::Pages,
                CheckStep::Records,
                CheckStep::Names,
                CheckStep::Blocks,
                CheckStep::Data
            ]
        );
    }

    #[test]
    fn a_long_request_may_follow_the_reply_to_another() {
        let server = Server::start();
        for _ in 0..100 {
            let freeze = Request::Freeze(Duration::from_secs(3600));
            assert!(server.call(freeze)["result"].is_object());
            assert_eq!(server.call(Request::Thaw)["result"]["was_frozen"], true);
        }
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

    impl Server {
        fn files(&self) -> RemoteFiles {
            let (_, reply, stream) = self.begin_session();
            assert_eq!(reply, "{\"result\":{}}\n");
            RemoteFiles::new(stream)
        }

        /// The hello, and the reply to the request for a session.
        fn begin_session(&self) -> (String, String, BufReader<UnixStream>) {
            let mut stream = self.connect();
            stream.write_all(&lines(Request::Files)).unwrap();
            let mut stream = BufReader::new(stream);
            let (mut hello, mut reply) = (String::new(), String::new());
            stream.read_line(&mut hello).unwrap();
            stream.read_line(&mut reply).unwrap();
            (hello, reply, stream)
        }

        /// The notifications that the kernel has got: the code, and the bytes behind the header.
        fn notifications(&self) -> Vec<(i32, Vec<u8>)> {
            let mut notifications = Vec::new();
            let mut bytes = [0; 512];
            self.kernel.set_nonblocking(true).unwrap();
            while let Ok(length) = self.kernel.recv(&mut bytes) {
                let (header, body) = OutHeader::read_from_prefix(&bytes[..length]).unwrap();
                assert_eq!((header.length as usize, header.unique), (length, 0));
                notifications.push((header.error, body.to_vec()));
            }
            notifications
        }
    }

    #[test]
    fn a_session_does_what_a_program_with_the_volume_does() {
        let server = Server::start();
        let files = server.files();
        let made = files.make(b"/d", &Inode::new(FileType::Directory, 0o755)).unwrap();
        assert_eq!(files.metadata(b"/d", Follow::No).unwrap().ino(), made.0);
        let file = files.open(b"/d/f\xff", Opening::Create(0o640)).unwrap();
        assert_eq!(file.write_at(&[7; 5000], 1 << 20), Ok(5000));
        assert_eq!(file.next_data(0), Ok(Some(1 << 20..(1 << 20) + 5000)));
        let mut bytes = [0; 6000];
        assert_eq!(file.read_at(&mut bytes, 1 << 20), Ok(5000));
        assert_eq!((bytes[4999], bytes[5000]), (7, 0));
        file.set_len(10).unwrap();
        assert_eq!((file.len(), file.next_data(0)), (10, Ok(None)));
        files.set_xattr(b"/d", Follow::No, b"user.a", b"b", SetXattr::Create).unwrap();
        assert_eq!(files.list_xattrs(b"/d", Follow::No).unwrap(), [b"user.a"]);
        assert_eq!(files.get_xattr(b"/d", Follow::No, b"user.a").unwrap(), b"b");
        files.remove_xattr(b"/d", Follow::No, b"user.a").unwrap();
        files.set_attributes(b"/d/f\xff", Follow::No, |inode| inode.user = 7).unwrap();
        files.rename(b"/d/f\xff", b"/g", Rename::NoReplace).unwrap();
        files.hard_link(b"/g", b"/h").unwrap();
        let found = files.metadata(b"/h", Follow::No).unwrap();
        assert_eq!((found.uid(), found.nlink(), found.mode() & 0o777), (7, 2, 0o640));
        let names = files.read_dir(b"/").unwrap();
        let names: Vec<_> = names.into_iter().map(|entry| entry.unwrap().name).collect();
        assert_eq!(names, [b"d", b"g", b"h"]);
        files.remove_file(b"/g").unwrap();
        files.remove_dir(b"/d").unwrap();
        files.sync().unwrap();
        // Its file is still there, under another name.
        assert_eq!(file.write_at(b"x", 0), Ok(1));
        let error = files.remove_file(b"/g").unwrap_err();
        let same = server.volume.remove_file("/g").unwrap_err();
        assert_eq!((error.kind(), error.message()), (same.kind(), same.message()));
    }

    #[test]
    fn the_kernel_drops_what_a_session_has_changed() {
        let server = Server::start();
        let files = server.files();
        files.make(b"/f", &Inode::new(FileType::File, 0o644)).unwrap();
        // It has asked for no file yet but the root.
        let name = [&1_u64.to_ne_bytes()[..], &1_u32.to_ne_bytes(), &[0; 4], b"f\0"].concat();
        let listing = [&1_u64.to_ne_bytes()[..], &[0; 16]].concat();
        let expected = [(3, name), (2, listing)];
        assert_eq!(server.notifications(), expected);
        files.metadata(b"/f", Follow::No).unwrap();
        files.open(b"/f", Opening::Write).unwrap().write_at(b"x", 0).unwrap();
        assert_eq!(server.notifications(), []);
        files.rename(b"/f", b"/f", Rename::Replace).unwrap();
        assert_eq!(server.notifications(), [expected.clone(), expected].concat());
    }

    #[test]
    fn the_kernel_writes_what_it_has_gathered_of_a_file_that_is_opened() {
        let server = Server::start();
        let files = server.files();
        let number = files.make(b"/f", &Inode::new(FileType::File, 0o644)).unwrap();
        let reactor = Reactor::new(ReactorOptions::default()).unwrap();
        let (inode, _) = reactor.block_on(server.volume.inode(number)).unwrap();
        // As after a look-up.
        server.session.nodes.remember(inode);
        server.notifications();
        files.open(b"/f", Opening::Read).unwrap();
        assert_eq!(server.notifications(), []);
        server.session.agree_on_writeback(true);
        files.open(b"/f", Opening::Read).unwrap();
        let pages = [&number.0.to_ne_bytes()[..], &[0; 16]].concat();
        assert_eq!(server.notifications(), [(2, pages.clone())]);
        // Its pages are old after a write, and its attributes after a new mode.
        files.open(b"/f", Opening::Write).unwrap().write_at(b"x", 0).unwrap();
        assert_eq!(server.notifications(), [(2, pages.clone()), (2, pages)]);
        files.set_attributes(b"/f", Follow::No, |inode| inode.permissions = 0).unwrap();
        let attributes = [&number.0.to_ne_bytes()[..], &(-1_i64).to_ne_bytes(), &[0; 8]].concat();
        assert_eq!(server.notifications(), [(2, attributes)]);
    }

    #[test]
    fn a_session_that_ends_leaves_no_unfinished_files_of_its_own() {
        let server = Server::start();
        let (one, other) = (server.files(), server.files());
        let mut staging = Inode::new(FileType::Directory, 0o700);
        staging.is_staging = true;
        for (files, path) in [(&one, b"/1"), (&other, b"/2")] {
            files.make(path, &staging).unwrap();
            files.open(&[path, &b"/f"[..]].concat(), Opening::Create(0o600)).unwrap();
        }
        drop(one);
        while server.volume.exists("/1").unwrap() {
            thread::yield_now();
        }
        assert!(server.volume.exists("/2/f").unwrap());
    }

    #[test]
    fn too_many_sessions_are_refused_and_bad_lines_end_one() {
        let server = Server::start();
        let sessions: Vec<_> = (0..MAX_SESSIONS).map(|_| server.files()).collect();
        assert!(is_failure(&server.call(Request::Files), Errno::BUSY));
        assert!(server.call(Request::Space)["result"].is_object());
        drop(sessions);
        // They are still counted until their threads are gone.
        let mut stream = loop {
            let (hello, reply, stream) = server.begin_session();
            assert!(hello.contains("version"), "{hello}");
            if !reply.contains("error") {
                break stream;
            }
        };
        stream.get_mut().write_all(b"{\"request\":\"fly\"}\n").unwrap();
        let mut rest = String::new();
        stream.read_to_string(&mut rest).unwrap();
        assert!(is_failure(&serde_json::from_str(&rest).unwrap(), Errno::PROTO), "{rest}");
    }

    #[test]
    fn a_session_waits_while_the_volume_is_frozen_and_its_end_does_not() {
        let server = Server::start();
        let files = server.files();
        assert!(server.call(Request::Freeze(Duration::from_secs(3600)))["result"].is_object());
        assert!(files.metadata(b"/", Follow::No).is_ok());
        let making = thread::spawn(move || files.make(b"/f", &Inode::new(FileType::File, 0o644)));
        drop(server);
        // It was made at the end, or the session had ended before.
        let _ = making.join().unwrap();
    }

    #[test]
    fn the_end_of_a_server_removes_its_socket_and_closes_its_clients() {
        let server = Server::start();
        let mut stream = server.connect();
        let Server { _server, volume, folder, session, .. } = server;
        drop((_server, session));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
        volume.close().unwrap();
    }
}
