//! [`ControlServer`]: the thread that serves a control socket. Without clients it waits in `poll(2)`.
//!
//! Nothing that a client does holds up the process, or another client for long: there are at most [`MAX_CLIENTS`], each
//! has [`REQUEST_TIMEOUT`] for its lines, which are bounded, and replies go into the socket's buffer or nowhere. Work
//! that takes longer runs in a thread of its own: see [`ControlVolumes`].

use std::fmt;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::net::sockopt::socket_peercred;
use rustix::process::geteuid;
use serde_json::json;
use uringfs::Errno;

use super::place::ControlSocket;
use super::protocol::{Heard, Received, Request, failure, hello, result, send};
use super::volumes::ControlVolumes;

/// The most clients at once. Others wait until one of them is gone.
const MAX_CLIENTS: usize = 8;
/// The time from the connection of a client to the end of its request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// How long new connections wait after one could not be accepted: the process may have no descriptor left.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

/// Reads the configuration of a server again, in a thread that nothing waits for. Its error is one line.
pub type Reload = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

/// Serves a control socket until it is dropped. [`ControlVolumes`] shows how.
pub struct ControlServer {
    stop: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

impl ControlServer {
    /// Serves clients of root, and of this process's user: they reach the volumes of the set, as it is at their request.
    /// Without `reload`, requests for that are refused.
    ///
    /// # Errors
    /// When there is no descriptor or no thread.
    pub fn start(
        socket: ControlSocket,
        volumes: &ControlVolumes,
        reload: Option<Reload>,
    ) -> io::Result<ControlServer> {
        let stop = eventfd(0, EventfdFlags::CLOEXEC)?;
        let loops = Loop {
            socket,
            volumes: volumes.clone(),
            reload,
            is_reloading: Arc::default(),
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

impl fmt::Debug for ControlServer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("ControlServer")
    }
}

/// The state of the thread.
struct Loop {
    socket: ControlSocket,
    volumes: ControlVolumes,
    reload: Option<Reload>,
    is_reloading: Arc<AtomicBool>,
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
            Heard::Request(Request::Reload) => self.start_reload(client.stream),
            Heard::Request(request) => match self.volumes.find(client.received.volume()) {
                Ok(volume) => volume.serve(client.stream, request),
                Err((errno, what)) => send(&client.stream, &failure(what, errno.raw_os_error())),
            },
            Heard::Refused(reason) => {
                send(&client.stream, &failure(&reason, Errno::PROTO.raw_os_error()));
            }
        }
        None
    }

    /// Starts a reload, unless one is under way.
    fn start_reload(&mut self, stream: UnixStream) {
        let Some(reload) = self.reload.clone() else {
            let what = "this server has no configuration to read again";
            return send(&stream, &failure(what, Errno::OPNOTSUPP.raw_os_error()));
        };
        if self.is_reloading.swap(true, Ordering::Acquire) {
            let what = "another reload is under way; try again when it has ended";
            return send(&stream, &failure(what, Errno::BUSY.raw_os_error()));
        }
        let is_reloading = IsReloading(self.is_reloading.clone());
        let builder = thread::Builder::new().name("uringfs-control".to_owned());
        // If there is no thread, the client sees the end of the conversation.
        let _ = builder.spawn(move || {
            let reply = match reload() {
                Ok(()) => result(json!({})),
                Err(reason) => failure(&reason, Errno::INVAL.raw_os_error()),
            };
            // First: a client that has the reply may send the next request.
            drop(is_reloading);
            send(&stream, &reply);
        });
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

/// A reload is under way until it is dropped.
struct IsReloading(Arc<AtomicBool>);

impl Drop for IsReloading {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// The sockets that [`Loop::wait`] has found readable.
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
            let what = "permission denied: only root and the server's user may use this socket";
            send(&stream, &failure(what, Errno::PERM.raw_os_error()));
            return None;
        }
        send(&stream, &hello(None));
        let until = Instant::now() + REQUEST_TIMEOUT;
        Some(Connection { stream, received: Received::default(), until })
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::net::UnixDatagram;
    use std::path::PathBuf;

    use serde_json::Value;
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
    use crate::changes::{SyncMarks, SyncScope};
    use crate::control::file_request::Opening;
    use crate::control::online_check;
    use crate::control::protocol::{MAX_REQUEST_BYTES, VERSION};
    use crate::control::remote::RemoteFiles;
    use crate::control::requests::{Served, ServedMount};
    use crate::control::volumes::{ControlledVolume, MAX_SESSIONS};
    use crate::notify::Kernel;
    use crate::session::{MountCache, Session as MountSession, SessionOptions};

    struct Server {
        controlled: ControlledVolume,
        _server: ControlServer,
        volume: Volume,
        volumes: ControlVolumes,
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
            let mount = ServedMount {
                kernel: Kernel::new(session.clone(), channel.into()),
                directory: PathBuf::from("/m"),
                options: "rw".into(),
                threads: 1,
            };
            let volumes = ControlVolumes::default();
            let served = Served { volume: volume.clone(), is_read_only: false, mount: Some(mount) };
            let controlled = volumes.insert_served(served);
            let socket = ControlSocket::bind_in(folder.path()).unwrap();
            let _server = ControlServer::start(socket, &volumes, None).unwrap();
            Server { controlled, _server, volume, volumes, folder, session, kernel }
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
        format!("{}\n{}\n", hello(None), request.to_json()).into_bytes()
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
    fn clients_that_say_nothing_or_half_a_line_do_not_hold_up_others_for_long() {
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
        let other = hello(None).to_string().replace(&VERSION.to_string(), "9") + "\n";
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
    fn a_resize_that_a_freeze_holds_back_does_not_hold_up_the_end_of_its_volume() {
        let server = Server::start();
        assert!(server.call(Request::Freeze(Duration::from_secs(3600)))["result"].is_object());
        let mut resizing = server.connect();
        resizing.write_all(&lines(Request::Resize(64 << 20))).unwrap();
        assert!(server.call(Request::Space)["result"].is_object());
        server.volumes.close();
        let reply = last_line(resizing);
        // The server may read the request only after the end of the volume.
        assert!(reply["result"].is_object() || is_failure(&reply, Errno::NOENT), "{reply}");
        assert!(!server.volume.thaw());
    }

    #[test]
    fn a_freeze_that_waits_does_not_hold_up_the_end_of_its_volume() {
        let server = Server::start();
        let reactor = Reactor::new(ReactorOptions::default()).unwrap();
        let options = OpenOptions::new().write(true).create(true).direct(true);
        let file = server.volume.open_with("/f", options).unwrap();
        // A freeze waits for it, and nothing turns its reactor.
        reactor.start(file.append(Buffer::zeroed(4096)), Token::new(1)).unwrap();
        let mut freezing = server.connect();
        freezing.write_all(&lines(Request::Freeze(Duration::from_secs(3600)))).unwrap();
        while !is_failure(&server.call(Request::Resize(64 << 20)), Errno::BUSY) {}
        server.volumes.close();
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
    fn a_sync_by_a_program_is_not_skipped_after_a_change_by_a_session() {
        let server = Server::start();
        let files = server.files();
        files.make(b"/f", &Inode::new(FileType::File, 0o644)).unwrap();
        // Those of the handle of a program, which syncs.
        let marks = SyncMarks::default();
        let is_skipped = || {
            let count = server.session.changes.count();
            let is_skipped = marks.cover(SyncScope::Everything, count);
            marks.note_sync(SyncScope::Everything, count);
            is_skipped
        };
        assert_eq!([is_skipped(), is_skipped()], [false, true]);
        let file = files.open(b"/f", Opening::Write).unwrap();
        file.write_at(&[7; 4096], 0).unwrap();
        assert_eq!([is_skipped(), is_skipped()], [false, true]);
        file.set_len(10).unwrap();
        assert_eq!([is_skipped(), is_skipped()], [false, true]);
        files.set_attributes(b"/f", Follow::No, |inode| inode.permissions = 0o600).unwrap();
        assert_eq!([is_skipped(), is_skipped()], [false, true]);
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

    /// A volume in an image, which has a lock, with a file of that name.
    fn image(folder: &TempDir, name: &str) -> Volume {
        let path = folder.path().join(name);
        let volume = Volume::create(&path, &FormatOptions::new().size(32 << 20)).unwrap();
        volume.write(format!("/{name}"), name).unwrap();
        volume.sync().unwrap();
        volume
    }

    #[test]
    fn a_client_names_one_of_several_volumes() {
        let server = Server::start();
        let images = ["a", "b"].map(|name| image(&server.folder, name));
        let controlled = images.each_ref().map(|volume| server.volumes.insert(volume));
        let call = |volume: Option<&str>, request: Request| {
            server.reply_to(format!("{}\n{}\n", hello(volume), request.to_json()).as_bytes())
        };
        assert!(is_failure(&call(None, Request::Space), Errno::INVAL));
        assert!(is_failure(&call(Some("00:00:1"), Request::Space), Errno::NOENT));
        for volume in &images {
            let lock = &volume.locks()[0];
            let info = &call(Some(lock), Request::Info)["result"];
            assert_eq!(info["uuid"], json!(volume.uuid()));
            assert!(info["mount"].is_null());
            assert_eq!(
                call(Some(lock), Request::Freeze(Duration::from_secs(60)))["result"]["seconds"],
                60
            );
        }
        let lock = images[0].locks().remove(0);
        drop(controlled);
        assert!(is_failure(&call(Some(&lock), Request::Info), Errno::NOENT));
        // It has thawed, and nothing keeps it open.
        for volume in images {
            volume.write("/later", "content").unwrap();
            volume.close().unwrap();
        }
    }

    #[test]
    fn sessions_of_a_volume_that_is_not_mounted_change_its_files() {
        let server = Server::start();
        let volume = image(&server.folder, "a");
        let controlled = server.volumes.insert(&volume);
        let mut stream = server.connect();
        let lock = &volume.locks()[0];
        let lines = format!("{}\n{}\n", hello(Some(lock)), Request::Files.to_json());
        stream.write_all(lines.as_bytes()).unwrap();
        let mut stream = BufReader::new(stream);
        for _ in 0..2 {
            stream.read_line(&mut String::new()).unwrap();
        }
        let files = RemoteFiles::new(stream);
        files.open(b"/a", Opening::Write).unwrap().write_at(b"b", 0).unwrap();
        files.rename(b"/a", b"/c", Rename::NoReplace).unwrap();
        files.sync().unwrap();
        assert_eq!(volume.read("/c").unwrap(), b"b");
        server.volumes.close();
        assert!(files.metadata(b"/c", Follow::No).is_err());
        drop((files, controlled));
        volume.close().unwrap();
    }

    #[test]
    fn a_reload_is_done_or_its_reason_is_reported() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(std::process::id().to_string()).join("control");
        let call = |request: Request| {
            let mut stream = UnixStream::connect(&path).unwrap();
            stream.write_all(&lines(request)).unwrap();
            last_line(stream)
        };
        for (reloaded, expected) in [
            (Ok(()), json!({"result": {}})),
            (Err("line 7".to_owned()), failure("line 7", Errno::INVAL.raw_os_error())),
        ] {
            let socket = ControlSocket::bind_in(folder.path()).unwrap();
            let volumes = ControlVolumes::default();
            let reload: Reload = Arc::new(move || reloaded.clone());
            let _server = ControlServer::start(socket, &volumes, Some(reload)).unwrap();
            assert_eq!(call(Request::Reload), expected);
            assert!(is_failure(&call(Request::Space), Errno::NOENT));
        }
        let server = Server::start();
        assert!(is_failure(&server.call(Request::Reload), Errno::OPNOTSUPP));
    }

    #[test]
    fn a_client_that_says_nothing_does_not_hold_up_the_end() {
        let server = Server::start();
        let mut stream = server.connect();
        stream.read_exact(&mut [0; 10]).unwrap();
        drop(server);
    }

    #[test]
    fn the_end_of_a_server_removes_its_socket_and_closes_its_clients() {
        let server = Server::start();
        let mut stream = server.connect();
        let Server { controlled, _server, volume, folder, session, .. } = server;
        drop((_server, controlled, session));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
        volume.close().unwrap();
    }
}
