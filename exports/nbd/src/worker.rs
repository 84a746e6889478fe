//! A thread's connections.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::poll_fn;
use std::io;
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};
use rustix::net::{Shutdown, sockopt};
use uringfs::reactor::{LocalReactor, PollEvents};
use uringfs::{Errno, Reactor, ReactorOptions};

use crate::channel::Channel;
use crate::client::Client;
use crate::connection::{self, Shared};
use crate::exports::Exports;
use crate::memory::{Budget, Memory};
use crate::tls::Tls;

/// The most requests of a thread under way, for which its reactor has room, and the most bytes of their data.
const MAX_REQUESTS: usize = 1000;
const MAX_BYTES: usize = 256 << 20;
/// A client that moves nothing for one to two such times, in the middle of a request or of a reply, loses its connection.
const STALL_INTERVAL: Duration = Duration::from_secs(30);
/// A client over TCP that has sent nothing for so long is asked whether it is still there, and then in these intervals. After
/// so many questions without an answer it loses its connection.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_PROBES: u32 = 6;
/// How long clients have at the end to receive the replies that they wait for.
const END_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the server waits after it could not accept a connection, most often for a descriptor.
const ACCEPT_INTERVAL: Duration = Duration::from_millis(100);

/// A thread as the others see it.
pub(crate) struct Worker {
    /// Readable when there is something new.
    event: Arc<OwnedFd>,
    /// New connections.
    sockets: Mutex<Vec<(OwnedFd, Option<Tls>)>>,
    connections: AtomicUsize,
    is_stopped: AtomicBool,
}

impl Worker {
    pub(crate) fn new() -> io::Result<Worker> {
        Ok(Worker {
            event: Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?),
            sockets: Mutex::default(),
            connections: AtomicUsize::new(0),
            is_stopped: AtomicBool::new(false),
        })
    }

    /// Ends its connections, and then the thread.
    pub(crate) fn stop(&self) {
        self.is_stopped.store(true, Ordering::Release);
        self.notify();
    }

    fn assign(&self, socket: OwnedFd, tls: Option<Tls>) {
        let mut sockets = self.sockets.lock();
        if self.is_stopped.load(Ordering::Acquire) {
            return;
        }
        self.connections.fetch_add(1, Ordering::Relaxed);
        sockets.push((socket, tls));
        drop(sockets);
        self.notify();
    }

    fn notify(&self) {
        // An unread counter is full only after 2^64 - 1 of them.
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }
}

/// The threads of a server, and what they serve.
pub(crate) struct Workers {
    pub(crate) workers: Arc<[Worker]>,
    pub(crate) exports: Exports,
    pub(crate) max_connections: usize,
}

/// A socket on which connections arrive.
pub(crate) struct Listener {
    pub(crate) socket: Arc<OwnedFd>,
    /// The TLS that its clients have to use. `None`: they use none.
    pub(crate) tls: Option<Tls>,
}

/// Stops all threads with the first that ends, also by a panic.
struct StopOnDrop<'w>(&'w [Worker]);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.iter().for_each(Worker::stop);
    }
}

/// The connections of a thread.
#[derive(Default)]
struct Connections {
    by_number: RefCell<HashMap<u64, Rc<Channel>>>,
    /// Waits for the end of all.
    idle: RefCell<Option<Waker>>,
}

/// Serves the connections that a worker is assigned, until it is stopped. Accepts connections of `listeners` for all workers.
pub(crate) fn run(
    workers: &Arc<Workers>,
    number: usize,
    listeners: Vec<Listener>,
) -> io::Result<()> {
    // Without one thread, its clients would wait for ever.
    let _stop = StopOnDrop(&workers.workers);
    // A connection waits for bytes in both directions.
    let waits = 2 * workers.max_connections.div_ceil(workers.workers.len()) + 64;
    let options =
        ReactorOptions::new().serving(true).max_waits(waits.try_into().unwrap_or(u32::MAX));
    let reactor = Reactor::new(options)?;
    let shared = Rc::new(Shared {
        reactor: reactor.local().clone(),
        exports: workers.exports.clone(),
        memory: Memory::new()?,
        operations: Budget::new(MAX_REQUESTS, usize::MAX),
        data: Budget::new(usize::MAX, MAX_BYTES),
        is_ending: Cell::new(false),
    });
    for listener in listeners {
        let (local, workers) = (reactor.local().clone(), workers.clone());
        drop(reactor.spawn(accept(local, workers, listener)));
    }
    let connections = Rc::<Connections>::default();
    drop(reactor.spawn(end_stalled(reactor.local().clone(), connections.clone())));
    let served = reactor.block_on(serve(workers, number, &shared, &connections));
    Ok(served?)
}

async fn serve(
    workers: &Arc<Workers>,
    number: usize,
    shared: &Rc<Shared>,
    connections: &Rc<Connections>,
) -> Result<(), Errno> {
    let (reactor, worker) = (&shared.reactor, &workers.workers[number]);
    let mut next = 0;
    loop {
        reactor.poll(&worker.event, PollEvents::IN, None).await?;
        let _ = rustix::io::read(&*worker.event, &mut [0; 8]);
        for (socket, tls) in worker.sockets.lock().drain(..) {
            let (workers, shared, connections) =
                (workers.clone(), shared.clone(), connections.clone());
            let channel = Rc::new(Channel::new(reactor, socket));
            let connection = async move {
                connections.serve(next, shared, channel, tls).await;
                workers.workers[number].connections.fetch_sub(1, Ordering::Relaxed);
            };
            drop(reactor.spawn(connection));
            next += 1;
        }
        if worker.is_stopped.load(Ordering::Acquire) {
            break;
        }
    }
    shared.is_ending.set(true);
    connections.end(reactor).await;
    // Connections that came after the last look are closed.
    worker.sockets.lock().clear();
    Ok(())
}

impl Connections {
    async fn serve(&self, number: u64, shared: Rc<Shared>, channel: Rc<Channel>, tls: Option<Tls>) {
        self.by_number.borrow_mut().insert(number, channel.clone());
        connection::serve(shared, channel, tls).await;
        let mut by_number = self.by_number.borrow_mut();
        by_number.remove(&number);
        if by_number.is_empty() {
            self.idle.take().into_iter().for_each(Waker::wake);
        }
    }

    fn shut(&self, how: Shutdown) {
        self.by_number.borrow().values().for_each(|channel| channel.shut(how));
    }

    /// Answers what has been received, and ends all connections.
    async fn end(&self, reactor: &LocalReactor) {
        self.shut(Shutdown::Read);
        let mut timeout = pin!(reactor.sleep(END_TIMEOUT));
        poll_fn(|context| match self.poll_none(context) {
            Poll::Pending => timeout.as_mut().poll(context),
            Poll::Ready(()) => Poll::Ready(()),
        })
        .await;
        self.shut(Shutdown::Both);
        poll_fn(|context| self.poll_none(context)).await;
    }

    fn poll_none(&self, context: &mut Context<'_>) -> Poll<()> {
        match self.by_number.borrow().is_empty() {
            true => Poll::Ready(()),
            false => {
                self.idle.replace(Some(context.waker().clone()));
                Poll::Pending
            }
        }
    }
}

/// Ends connections whose client stalls.
async fn end_stalled(reactor: LocalReactor, connections: Rc<Connections>) {
    loop {
        reactor.sleep(STALL_INTERVAL).await;
        for channel in connections.by_number.borrow().values() {
            if channel.has_stalled() {
                channel.fail(Errno::TIMEDOUT);
            }
        }
    }
}

/// Replies are not delayed, and a client whose machine has vanished loses its connection. A Unix socket has no such options.
fn set_tcp_options(socket: &OwnedFd) {
    let _ = sockopt::set_tcp_nodelay(socket, true);
    let _ = sockopt::set_tcp_keepidle(socket, KEEPALIVE_IDLE);
    let _ = sockopt::set_tcp_keepintvl(socket, KEEPALIVE_INTERVAL);
    let _ = sockopt::set_tcp_keepcnt(socket, KEEPALIVE_PROBES);
    let _ = sockopt::set_socket_keepalive(socket, true);
}

/// Accepts connections, and assigns each to the worker that has the fewest.
async fn accept(reactor: LocalReactor, workers: Arc<Workers>, listener: Listener) {
    loop {
        match reactor.accept(&listener.socket, None).await {
            Ok(socket) => workers.assign(socket, listener.tls.clone()),
            // The client has gone already.
            Err(Errno::CONNABORTED | Errno::PROTO) => {}
            Err(_) => reactor.sleep(ACCEPT_INTERVAL).await,
        }
    }
}

impl Workers {
    /// Drops the connection if there are too many, and at the end.
    fn assign(&self, socket: OwnedFd, tls: Option<Tls>) {
        let count = |worker: &Worker| worker.connections.load(Ordering::Relaxed);
        let worker = self.workers.iter().min_by_key(|worker| count(worker));
        let worker = worker.expect("a server has a worker");
        let total: usize = self.workers.iter().map(count).sum();
        if total < self.max_connections {
            set_tcp_options(&socket);
            worker.assign(socket, tls);
        } else {
            Client::new(&socket).refused(None, "there are too many connections");
        }
    }
}
