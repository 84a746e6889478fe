//! [`ControlVolumes`]: the volumes that clients of a control socket reach, with the requests and sessions of each.
//!
//! A request that waits for the device runs in a thread of its own, one at a time in a volume. So does a check, which sends more
//! lines before the last, and each session about files, at most [`MAX_SESSIONS`] in a volume.

use std::fmt;
use std::io;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::Mutex;
use uringfs::{Errno, Volume};

use super::file_session::FileSession;
use super::online_check;
use super::protocol::{Request, failure, send};
use super::requests::Served;

/// The most sessions about files of a volume at once. Others are refused.
pub(super) const MAX_SESSIONS: usize = 16;

/// The time between two thaws while a volume is being closed.
const THAW_INTERVAL: Duration = Duration::from_millis(1);

/// The open volumes of a process that clients of its control socket reach. Clones are the same set.
///
/// ```no_run
/// use uringfs::Volume;
/// use uringfs_fuse::control::{ControlServer, ControlSocket, ControlVolumes};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let volumes = ControlVolumes::default();
/// let socket = ControlSocket::bind()?.expect("a user with a runtime directory");
/// let server = ControlServer::start(socket, &volumes, None)?;
/// let volume = Volume::open("disk.img")?;
/// let controlled = volumes.insert(&volume);
/// // Other programs read and write files of the volume by its server.
/// drop(controlled);
/// volume.close()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Default)]
pub struct ControlVolumes(Arc<Mutex<Vec<Arc<OpenVolume>>>>);

/// A volume that clients reach until this is dropped. Then their sessions end, once the request under way is done, and the volume
/// thaws: nothing here keeps it open any more.
#[must_use]
pub struct ControlledVolume {
    volumes: ControlVolumes,
    open: Arc<OpenVolume>,
}

/// A volume of the set.
pub(super) struct OpenVolume {
    /// The names of its locks, by which clients find it.
    locks: Vec<String>,
    /// `None`: it is being closed.
    clients: Mutex<Option<Clients>>,
}

/// The requests and sessions of a volume's clients. Dropping it ends them.
struct Clients {
    served: Arc<Served>,
    /// A request that takes longer.
    job: Option<Job>,
    check: Option<Job>,
    /// Ends a check.
    is_ending: Arc<AtomicBool>,
    sessions: Vec<Session>,
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

impl ControlVolumes {
    /// Lets clients reach a volume that is not mounted.
    pub fn insert(&self, volume: &Volume) -> ControlledVolume {
        self.insert_served(Served::of_volume(volume))
    }

    pub(crate) fn insert_served(&self, served: Served) -> ControlledVolume {
        let locks = served.volume.locks();
        let clients = Clients {
            served: Arc::new(served),
            job: None,
            check: None,
            is_ending: Arc::default(),
            sessions: Vec::new(),
        };
        let open = Arc::new(OpenVolume { locks, clients: Mutex::new(Some(clients)) });
        self.0.lock().push(open.clone());
        ControlledVolume { volumes: self.clone(), open }
    }

    /// Ends what clients do in all volumes, thaws these, and lets no client in any more: a server that is to end first answers
    /// the requests that it has, which may wait for a thaw.
    pub fn close(&self) {
        let open = self.0.lock().clone();
        open.iter().for_each(|volume| volume.close());
    }

    /// The volume with a lock, or the only one.
    ///
    /// # Errors
    /// ENOENT if it is not among these, or is being closed; EINVAL if a client has to name one of several.
    pub(super) fn find(
        &self,
        lock: Option<&str>,
    ) -> Result<Arc<OpenVolume>, (Errno, &'static str)> {
        let open = self.0.lock();
        match (lock, &open[..]) {
            (Some(lock), open) => {
                let mut open = open.iter();
                open.find(|volume| volume.has(lock)).cloned().ok_or(NOT_OPEN)
            }
            (None, [only]) => Ok(only.clone()),
            (None, []) => Err(NOT_OPEN),
            (None, _) => {
                Err((Errno::INVAL, "the server has several volumes; the hello has to name one"))
            }
        }
    }
}

const NOT_OPEN: (Errno, &str) = (Errno::NOENT, "the server does not have the volume open");

impl Drop for ControlledVolume {
    fn drop(&mut self) {
        self.volumes.0.lock().retain(|open| !Arc::ptr_eq(open, &self.open));
        self.open.close();
    }
}

impl OpenVolume {
    fn has(&self, lock: &str) -> bool {
        self.locks.iter().any(|own| own == lock)
    }

    /// Replies to a request, now or from a thread.
    pub(super) fn serve(&self, stream: UnixStream, request: Request) {
        let mut clients = self.clients.lock();
        match (&mut *clients, request) {
            (None, _) => send(&stream, &failure(NOT_OPEN.1, NOT_OPEN.0.raw_os_error())),
            (Some(clients), Request::Files) => clients.begin_session(stream),
            (Some(clients), _) if request.timeout() != Some(Duration::ZERO) => {
                clients.start(stream, request);
            }
            (Some(clients), _) => send(&stream, &clients.served.reply(request)),
        }
    }

    fn close(&self) {
        let clients = self.clients.lock().take();
        // It may wait for requests of the clients: others see meanwhile that the volume is being closed.
        drop(clients);
    }
}

impl Clients {
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
}

impl Drop for Clients {
    fn drop(&mut self) {
        self.is_ending.store(true, Ordering::Relaxed);
        // A resize waits while the volume is frozen. A freeze that waits for changes ends by a thaw, but not by one before its
        // thread has begun.
        while self.job.as_ref().is_some_and(|job| !job.is_done()) {
            self.served.volume.thaw();
            thread::sleep(THAW_INTERVAL);
        }
        (self.job, self.check) = (None, None);
        // The job may have been a freeze, for which sessions wait.
        self.served.volume.thaw();
        self.sessions.clear();
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
            // An error is the end of the session, too.
            let _ = FileSession::serve(&served, &other);
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

impl fmt::Debug for ControlVolumes {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let open = self.0.lock();
        out.debug_list().entries(open.iter().map(|volume| &volume.locks)).finish()
    }
}

impl fmt::Debug for ControlledVolume {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_tuple("ControlledVolume").field(&self.open.locks).finish()
    }
}
