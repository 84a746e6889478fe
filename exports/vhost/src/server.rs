//! [`VhostServer`]: listens on a socket, and serves one front end after the other.

use std::fmt;
use std::fs;
use std::future::poll_fn;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::task::{Poll, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, getsockname, listen, socket_with,
};
use uringfs::reactor::{RequestCounters, RequestCounts};
use uringfs::{Errno, Reactor};
use zerocopy::IntoBytes;

use crate::abi::header;
use crate::connection::{Connection, Received, invalid};
use crate::disk::{Disk, PollCount, ServedDisk};
use crate::message::Request;
use crate::session::{Reply, Session, reply_message};
use crate::worker::Worker;

/// Front ends that wait for their turn.
const BACKLOG: i32 = 8;
/// How long the server waits when it has no descriptor or no memory for a connection.
const ACCEPT_INTERVAL: Duration = Duration::from_millis(100);

/// A disk that waits for front ends at a socket.
///
/// ```no_run
/// use uringfs::device::Access;
/// use uringfs::File;
/// use uringfs_vhost::{Disk, VhostServer};
///
/// # fn main() -> std::io::Result<()> {
/// let disk = Disk::new(File::open("disk.img", Access::ReadWrite)?);
/// VhostServer::bind("/run/disk.sock", 0o600, disk)?.serve()?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct VhostServer {
    listener: Arc<OwnedFd>,
    path: Option<SocketPath>,
    disk: Arc<ServedDisk>,
    control: Arc<Control>,
}

/// Acts on a [`VhostServer`] while it serves, from any thread. It keeps no file open.
#[derive(Clone)]
pub struct ServerHandle {
    disk: Weak<ServedDisk>,
    control: Arc<Control>,
}

/// The wishes of the handle to the serving thread.
#[derive(Debug, Default)]
struct Control {
    state: Mutex<ControlState>,
}

#[derive(Debug, Default)]
struct ControlState {
    is_stopping: bool,
    has_resized: bool,
    waker: Option<Waker>,
}

/// Something that the serving thread is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wish {
    Stop,
    ReportResize,
}

/// A socket in the file system. Removed with the server.
#[derive(Debug)]
struct SocketPath(PathBuf);

impl Drop for SocketPath {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

impl VhostServer {
    /// Listens at `path`, with the permissions `mode`: a client that may write to the socket may use the disk. A
    /// socket without a listener is replaced.
    ///
    /// # Errors
    /// AddrInUse if a server listens there, or if something other than a socket is there; those of `bind(2)`.
    pub fn bind(path: impl AsRef<Path>, mode: u32, disk: Disk) -> io::Result<VhostServer> {
        let path = path.as_ref();
        remove_stale(path)?;
        let flags = SocketFlags::CLOEXEC;
        let listener = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        bind(&listener, &SocketAddrUnix::new(path)?)?;
        let path = SocketPath(path.to_owned());
        // A client cannot connect before it listens.
        fs::set_permissions(&path.0, fs::Permissions::from_mode(mode))?;
        listen(&listener, BACKLOG)?;
        Ok(VhostServer { path: Some(path), ..VhostServer::on_listener(listener, disk) })
    }

    /// Serves at a socket that listens already, of the family `AF_UNIX`.
    pub fn on_listener(listener: OwnedFd, disk: Disk) -> VhostServer {
        VhostServer {
            listener: Arc::new(listener),
            path: None,
            disk: Arc::new(ServedDisk::new(disk)),
            control: Arc::default(),
        }
    }

    /// Something to act on the server with while [`Self::serve`] runs.
    pub fn handle(&self) -> ServerHandle {
        ServerHandle { disk: Arc::downgrade(&self.disk), control: self.control.clone() }
    }

    /// Serves one front end after the other, until [`ServerHandle::stop`]. Requests of a guest are answered in a thread for
    /// each queue; this thread talks with the front end. When a front end has gone, the requests that it has left behind
    /// end, and the next may connect.
    ///
    /// # Errors
    /// When a thread or its reactor cannot be made, or the socket does not listen.
    pub fn serve(self) -> io::Result<()> {
        let VhostServer { listener, path, disk, control } = self;
        let workers = (0..disk.disk.queues).map(|number| Worker::start(number, &disk));
        let mut workers = workers.collect::<io::Result<Vec<_>>>()?;
        let reactor = Reactor::new(disk.disk.reactor.clone())?;
        let served = reactor.block_on(async {
            loop {
                let mut accepted = pin!(reactor.accept(&listener, None));
                let accepted = control.unless_stopped(accepted.as_mut()).await;
                let Some(accepted) = accepted else { return Ok(()) };
                match accepted {
                    Ok(socket) => {
                        let place = path_of(&socket);
                        tracing::info!(
                            target: "uringfs",
                            event = "vhost_front_end_connected",
                            socket = place, "vhost-user front end connected"
                        );
                        disk.update_capacity();
                        let mut session = Session::new(disk.clone(), &mut workers);
                        let connection = Connection::new(&reactor, socket);
                        // A front end that breaks the rules, or goes away, ends its own session only.
                        match serve_session(&mut session, &connection, &control).await {
                            Ok(()) => tracing::info!(
                                target: "uringfs",
                                event = "vhost_front_end_left",
                                socket = place, "vhost-user front end left"
                            ),
                            Err(error) => tracing::warn!(
                                target: "uringfs",
                                event = "vhost_front_end_failed",
                                socket = place, %error, "vhost-user front end failed"
                            ),
                        }
                    }
                    // The front end has gone again.
                    Err(Errno::CONNABORTED | Errno::INTR) => {}
                    Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                        let mut pause = pin!(reactor.local().sleep(ACCEPT_INTERVAL));
                        control.unless_stopped(pause.as_mut()).await;
                    }
                    Err(errno) => return Err(errno.into()),
                }
            }
        });
        drop(path);
        served
    }
}

impl ServerHandle {
    /// Ends [`VhostServer::serve`], after the requests in flight. Zeroing that is not done soon fails.
    pub fn stop(&self) {
        let disk = self.disk.upgrade();
        disk.iter().for_each(|disk| disk.is_stopping.store(true, Ordering::Release));
        self.control.wish(|state| state.is_stopping = true);
    }

    /// The requests of all guests so far. None once [`VhostServer::serve`] has returned.
    pub fn counts(&self) -> RequestCounts {
        let disk = self.disk.upgrade();
        disk.map_or_else(RequestCounts::default, |disk| {
            disk.counters.iter().map(RequestCounters::get).sum()
        })
    }

    /// How often the threads of queues have looked for work instead of sleeping; 0 for a disk without polling, and once
    /// [`VhostServer::serve`] has returned.
    pub fn polls(&self) -> u64 {
        let polls = |disk: Arc<ServedDisk>| {
            disk.polls.iter().map(|PollCount(count)| count.load(Ordering::Relaxed)).sum()
        };
        self.disk.upgrade().map_or(0, polls)
    }

    /// Takes the size of the file again, or of a whole device, and reports it to the guest if it has changed. May wait for
    /// the server of a device. A front end that connects learns the size in any case.
    pub fn update_size(&self) {
        let Some(disk) = self.disk.upgrade() else { return };
        // A size that cannot be read again is the one from before.
        let _ = disk.disk.file.device().refresh_size();
        if disk.update_capacity() {
            self.control.wish(|state| state.has_resized = true);
        }
    }
}

impl fmt::Debug for ServerHandle {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("ServerHandle").finish_non_exhaustive()
    }
}

impl Control {
    fn wish(&self, set: impl FnOnce(&mut ControlState)) {
        let mut state = self.state.lock();
        set(&mut state);
        let waker = state.waker.take();
        drop(state);
        waker.into_iter().for_each(Waker::wake);
    }

    /// The output of `future`, or what is to be done before.
    async fn or_wish<F: Future + Unpin>(&self, mut future: F) -> Result<F::Output, Wish> {
        poll_fn(|context| {
            let mut state = self.state.lock();
            if state.is_stopping {
                return Poll::Ready(Err(Wish::Stop));
            }
            if std::mem::take(&mut state.has_resized) {
                return Poll::Ready(Err(Wish::ReportResize));
            }
            state.waker = Some(context.waker().clone());
            drop(state);
            std::pin::Pin::new(&mut future).poll(context).map(Ok)
        })
        .await
    }

    /// The output of `future`, or `None` when the server is to stop.
    async fn unless_stopped<F: Future + Unpin>(&self, mut future: F) -> Option<F::Output> {
        loop {
            match self.or_wish(&mut future).await {
                Ok(output) => return Some(output),
                Err(Wish::Stop) => return None,
                // No guest is there.
                Err(Wish::ReportResize) => {}
            }
        }
    }
}

/// Serves a front end until it goes away.
///
/// # Errors
/// Its violation of the protocol, or the error of its socket.
async fn serve_session(
    session: &mut Session<'_>,
    connection: &Connection<'_>,
    control: &Control,
) -> io::Result<()> {
    loop {
        let mut message = pin!(connection.receive());
        let received = loop {
            match control.or_wish(message.as_mut()).await {
                Ok(received) => break received?,
                Err(Wish::Stop) => return Ok(()),
                Err(Wish::ReportResize) => session.report_config_change(),
            }
        };
        let Some(Received { header, payload, descriptors }) = received else { return Ok(()) };
        let request = Request::parse(header.code, &payload, descriptors).map_err(invalid)?;
        let asks = header.flags & header::NEED_REPLY != 0 && session.acknowledges();
        match session.handle(request) {
            Ok(Reply::Bytes(payload)) => {
                connection.send(&reply_message(header.code, &payload), None).await?;
            }
            Ok(Reply::Descriptor(payload, descriptor)) => {
                let message = reply_message(header.code, &payload);
                connection.send(&message, Some(descriptor.as_fd())).await?;
            }
            Ok(Reply::Nothing) if asks => {
                let done = reply_message(header.code, 0_u64.as_bytes());
                connection.send(&done, None).await?;
            }
            Ok(Reply::Nothing) => {}
            Err(_) if asks => {
                let refused = reply_message(header.code, 1_u64.as_bytes());
                connection.send(&refused, None).await?;
            }
            // The front end would take the request for done.
            Err(refused) => return Err(io::Error::other(refused.0)),
        }
    }
}

/// The path of a server's socket, by which the log names its disk.
fn path_of(socket: &OwnedFd) -> String {
    let own = getsockname(socket).and_then(SocketAddrUnix::try_from).ok();
    let path = own.as_ref().and_then(SocketAddrUnix::path_bytes).unwrap_or_default();
    String::from_utf8_lossy(path).into_owned()
}

/// Removes a socket without a listener.
fn remove_stale(path: &Path) -> io::Result<()> {
    let in_use = || {
        let line = format!("{} is in use: choose another path for the socket", path.display());
        Err(io::Error::new(io::ErrorKind::AddrInUse, line))
    };
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(metadata) if !metadata.file_type().is_socket() => in_use(),
        Ok(_) => match UnixStream::connect(path) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
            _ => in_use(),
        },
    }
}
