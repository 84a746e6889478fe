//! [`Server`]: its sockets and its threads.

use std::fmt;
use std::io;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::thread;

use rustix::io::ioctl_fionbio;

use crate::exports::Exports;
use crate::tls::Tls;
use crate::worker::{self, Listener, Worker, Workers};

/// The most connections of a server: one thread can wait for them.
const MAX_CONNECTIONS: usize = 16_000;

/// Options of a server.
#[derive(Clone, Debug)]
#[must_use]
pub struct ServerOptions {
    threads: usize,
    max_connections: usize,
}

impl Default for ServerOptions {
    fn default() -> ServerOptions {
        ServerOptions::new()
    }
}

impl ServerOptions {
    /// One thread for each processor, at most 8, and at most 4096 connections.
    pub fn new() -> ServerOptions {
        let threads = thread::available_parallelism().map_or(1, |count| count.get().min(8));
        ServerOptions { threads, max_connections: 4096 }
    }

    /// The number of threads that serve connections, each with a reactor of its own; at least 1.
    pub fn threads(mut self, threads: usize) -> ServerOptions {
        self.threads = threads.max(1);
        self
    }

    /// The most connections at a time, from 1 to 16000. One more is closed at once.
    pub fn max_connections(mut self, max_connections: usize) -> ServerOptions {
        self.max_connections = max_connections.clamp(1, MAX_CONNECTIONS);
        self
    }
}

/// Serves [`Exports`] on sockets.
///
/// ```
/// use std::os::unix::net::{UnixListener, UnixStream};
/// use std::io::Read;
/// use std::thread;
/// use uringfs_nbd::{Exports, Server, ServerOptions};
///
/// # fn main() -> std::io::Result<()> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("socket");
/// let mut server = Server::new(Exports::new(), ServerOptions::new())?;
/// server.listen_unix(UnixListener::bind(&path)?);
/// let stopper = server.stopper();
/// let serving = thread::spawn(|| server.serve());
///
/// let mut greeting = [0; 18];
/// UnixStream::connect(&path)?.read_exact(&mut greeting)?;
/// assert_eq!(&greeting[..8], b"NBDMAGIC");
/// stopper.stop();
/// serving.join().expect("no server panics")?;
/// # Ok(())
/// # }
/// ```
pub struct Server {
    workers: Arc<Workers>,
    listeners: Vec<Listener>,
}

/// Stops a [`Server`], from any thread. It keeps no file open.
#[derive(Clone)]
pub struct Stopper {
    workers: Arc<[Worker]>,
}

impl Server {
    /// A server without sockets.
    ///
    /// # Errors
    /// EMFILE or ENFILE when no file descriptor is left.
    pub fn new(exports: Exports, options: ServerOptions) -> io::Result<Server> {
        let ServerOptions { threads, max_connections } = options;
        let workers = (0..threads).map(|_| Worker::new()).collect::<io::Result<_>>()?;
        let workers = Arc::new(Workers { workers, exports, max_connections });
        Ok(Server { workers, listeners: Vec::new() })
    }

    /// Serves clients of a Unix socket, too. Access to it is the caller's: the socket has the mode that `bind` gave it.
    pub fn listen_unix(&mut self, listener: UnixListener) {
        self.listen(listener.into(), None);
    }

    /// Serves clients of a TCP socket, too. All who reach it can read and write the exports. A client whose machine has vanished
    /// loses its connection after two minutes.
    pub fn listen_tcp(&mut self, listener: TcpListener) {
        self.listen(listener.into(), None);
    }

    /// The same for clients that use TLS, and for no others.
    pub fn listen_tls(&mut self, listener: TcpListener, tls: Tls) {
        self.listen(listener.into(), Some(tls));
    }

    fn listen(&mut self, socket: OwnedFd, tls: Option<Tls>) {
        // Otherwise a wait for connections would not wait.
        let _ = ioctl_fionbio(&socket, false);
        self.listeners.push(Listener { socket: Arc::new(socket), tls });
    }

    /// Something to stop it with while [`Self::serve`] runs.
    pub fn stopper(&self) -> Stopper {
        Stopper { workers: self.workers.workers.clone() }
    }

    /// Serves clients on this thread and its helpers until it is stopped. Requests that are under way then are answered, long
    /// zeroings by ESHUTDOWN; those that wait in a socket are not. Completed writes are durable after a flush only: sync the
    /// files, or close their volume, afterwards.
    ///
    /// # Errors
    /// When a reactor or a thread cannot be made.
    pub fn serve(self) -> io::Result<()> {
        let Server { workers, listeners } = self;
        let helpers: io::Result<Vec<_>> = (1..workers.workers.len())
            .map(|number| {
                let workers = workers.clone();
                let name = "uringfs-nbd".to_owned();
                thread::Builder::new()
                    .name(name)
                    .spawn(move || worker::run(&workers, number, Vec::new()))
            })
            .collect();
        let served = match &helpers {
            Ok(_) => worker::run(&workers, 0, listeners),
            Err(_) => Ok(()),
        };
        workers.workers.iter().for_each(Worker::stop);
        let joined = helpers?.into_iter().map(|helper| {
            helper.join().unwrap_or_else(|_| Err(io::Error::other("a server panicked")))
        });
        joined.fold(served, io::Result::and)
    }
}

impl Stopper {
    /// Answers the requests that are under way, ends all connections and then [`Server::serve`].
    pub fn stop(&self) {
        self.workers.iter().for_each(Worker::stop);
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Server of {:?}", self.workers.exports)
    }
}

impl fmt::Debug for Stopper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Stopper")
    }
}
