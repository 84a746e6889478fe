//! The loop of a thread: reads requests from its descriptor and answers them in tasks of its reactor.

use std::future::poll_fn;
use std::io;
use std::mem;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use rustix::io::Errno as SystemError;
use uringfs::{Buffer, BufferPool, Errno, Reactor};
use zerocopy::IntoBytes;

use crate::abi::{InHeader, InitIn, InitOut, MAJOR, MIN_MINOR, MINOR, WriteIn, init};
use crate::in_flight::{InFlight, RequestCount};
use crate::listen::Listener;
use crate::request::{Operation, Request, is_change};
use crate::ring::{MAX_RING_TRANSFER, RingQueues, serve_entry};
use crate::session::{Carrier, MAX_TRANSFER, Session, Task};

/// Where the data of a write begin in a buffer: they are aligned, so that they go to the device as they came.
const DATA: usize = 4096;
/// Where a request begins.
const FRONT: usize = DATA - size_of::<InHeader>() - size_of::<WriteIn>();
/// Room for a request of [`MAX_TRANSFER`] bytes.
const REQUEST_BYTES: usize = DATA + MAX_TRANSFER as usize;
/// Less than this is copied out of a request.
const MIN_TAKEN: usize = 16 << 10;
/// Requests that are read before those under way get a turn.
const BATCH: usize = 64;
/// The most requests that the kernel has in flight in the background: readahead, write-back, releases.
const MAX_BACKGROUND: u16 = 256;

/// A thread's memory for the data of requests and replies. It is not cleared between them.
struct Memory {
    /// For up to [`MIN_TAKEN`] bytes.
    small: BufferPool,
    /// For whole requests.
    large: BufferPool,
}

impl Memory {
    /// The most small and large buffers that are kept. More are allocated, and freed.
    const SMALL: usize = 64;
    const LARGE: usize = 8;

    fn new() -> io::Result<Memory> {
        let small = BufferPool::new(MIN_TAKEN, Memory::SMALL)?;
        let large = BufferPool::new(REQUEST_BYTES, Memory::LARGE)?;
        Ok(Memory { small, large })
    }

    /// A buffer of `length` bytes, with any content.
    fn take(&self, length: usize) -> Buffer {
        let pool = if length <= MIN_TAKEN { &self.small } else { &self.large };
        match pool.get() {
            Some(mut buffer) => {
                buffer.truncate(length);
                buffer
            }
            None => Buffer::zeroed(length),
        }
    }

    /// The data of a write, which lie in a request's buffer. Large ones are taken out of it, and another buffer comes in its
    /// place.
    fn data(&self, request: &mut Buffer, data: Range<usize>) -> Buffer {
        let is_taken = data.start == DATA && data.len() >= MIN_TAKEN;
        match if is_taken { self.large.get() } else { None } {
            Some(replacement) => {
                let mut taken = mem::replace(request, replacement).split_off(DATA);
                taken.truncate(data.len());
                taken
            }
            None => {
                let mut copy = self.take(data.len());
                copy.copy_from_slice(&request[data]);
                copy
            }
        }
    }
}

impl Session {
    /// Serves one descriptor, and queues over io_uring if the kernel agrees to it, until the file system is unmounted and all
    /// requests have been answered.
    pub(crate) async fn serve(
        self: &Arc<Self>,
        thread: usize,
        reactor: &Reactor,
        channel: Arc<OwnedFd>,
        queues: Option<RingQueues>,
    ) -> io::Result<()> {
        let in_flight = Rc::<RequestCount>::default();
        for (queue, payload) in queues.iter().flat_map(RingQueues::entries) {
            let (session, channel) = (self.clone(), channel.clone());
            let in_flight = InFlight::new(&in_flight);
            drop(reactor.spawn(serve_entry(session, channel, queue, payload, in_flight)));
        }
        let listener = Listener::new((&self.listeners, thread), reactor, &channel, &in_flight);
        let served = self.serve_channel(listener).await;
        self.ring.decide(false);
        // Requests that a freeze holds back end now.
        let _ = self.volume().map(|volume| volume.thaw());
        in_flight.wait_for_none().await;
        served
    }

    async fn serve_channel(self: &Arc<Self>, mut listener: Listener<'_>) -> io::Result<()> {
        let (channel, in_flight) = (listener.channel, listener.in_flight);
        let memory = Memory::new()?;
        let mut buffer = memory.take(REQUEST_BYTES);
        let mut taken = 0;
        loop {
            match rustix::io::read(channel, &mut buffer[FRONT..]) {
                // The other end of a socket is closed.
                Ok(0) => return Ok(()),
                // It is unmounted. ECONNABORTED: while a request was taken from the queue (`fuse_dev_do_read` of Linux).
                Err(SystemError::NODEV | SystemError::CONNABORTED) => return Ok(()),
                Ok(length) => {
                    listener.note_request();
                    let carrier = Carrier::Channel(channel.clone(), InFlight::new(in_flight));
                    self.start(listener.reactor, carrier, &memory, (&mut buffer, length));
                    taken += 1;
                    // A single request is answered before the next is expected. Several are submitted together.
                    if in_flight.is_one() || taken == BATCH {
                        taken = 0;
                        yield_now().await;
                    }
                }
                Err(SystemError::AGAIN) => {
                    taken = 0;
                    listener.wait().await?;
                }
                // The request was interrupted before it was read.
                Err(SystemError::NOENT | SystemError::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Starts a request of `length` bytes.
    fn start(
        self: &Arc<Self>,
        reactor: &Reactor,
        carrier: Carrier,
        memory: &Memory,
        (buffer, length): (&mut Buffer, usize),
    ) {
        let bytes = &buffer[FRONT..FRONT + length];
        // The kernel sends no such bytes. Without a request there is nothing to reply to.
        let Ok(Request { header, operation, .. }) = Request::parse(bytes) else { return };
        let task = Task { session: self.clone(), header, carrier };
        match operation {
            Operation::Init(init) => drop(reactor.spawn(task.initialize(init))),
            Operation::Forget(lookups) => self.nodes.forget(header.node, lookups),
            Operation::BatchForget(forgets) => {
                for forget in forgets {
                    let forget = forget.get();
                    self.nodes.forget(forget.node, forget.lookups);
                }
            }
            // Nothing is done yet, or it is done soon: the request is answered as without an interrupt.
            Operation::Interrupt => {}
            Operation::Read(read) => {
                let buffer = memory.take(read.size.min(MAX_TRANSFER) as usize);
                drop(reactor.spawn(task.read(read, buffer)));
            }
            Operation::Write(write, data) => {
                let start = data.as_ptr().addr() - buffer.as_ptr().addr();
                let range = start..start + data.len();
                let data = memory.data(buffer, range);
                drop(reactor.spawn(task.write(write, data)));
            }
            _ => {
                let bytes: Box<[u8]> = bytes.into();
                drop(reactor.spawn(task.run_copy(bytes)));
            }
        }
    }
}

impl Task {
    async fn run_copy(self, bytes: Box<[u8]>) {
        let request = Request::parse(&bytes).expect("it was parsed before");
        self.run(request).await;
    }

    /// Does an operation and replies.
    pub(crate) async fn run(&self, Request { operation, labels, .. }: Request<'_>) {
        let is_change = is_change(self.header.opcode);
        match if is_change { self.session.check_changeable() } else { Ok(()) } {
            Ok(()) => self.answer(operation, &labels).await,
            Err(errno) => self.reply(Err(errno)),
        }
    }

    /// Agrees with the kernel on a version and on capabilities.
    async fn initialize(self, kernel: InitIn) {
        let offered = u64::from(kernel.flags) | u64::from(kernel.flags2) << 32;
        let is_served = kernel.major == MAJOR && kernel.minor >= MIN_MINOR;
        // Without it, SETXATTR has another size.
        if !is_served || offered & init::SETXATTR_EXT == 0 {
            self.reply(Err(Errno::PROTO));
            return;
        }
        let wanted = init::ASYNC_READ
            | init::BIG_WRITES
            | init::DONT_MASK
            | init::DO_READDIRPLUS
            | init::READDIRPLUS_AUTO
            | init::ASYNC_DIO
            | init::PARALLEL_DIROPS
            | init::POSIX_ACL
            | init::MAX_PAGES
            | init::CACHE_SYMLINKS
            | init::HANDLE_KILLPRIV_V2
            | init::SETXATTR_EXT
            | init::SECURITY_CTX
            | init::DIRECT_IO_ALLOW_MMAP
            | init::INIT_EXT;
        let mut agreed = offered & wanted;
        // Without it the kernel would refuse the reply.
        if self.session.default_permissions {
            agreed |= offered & init::ALLOW_IDMAP;
        }
        self.session.note_uncached_mappings(offered & init::DIRECT_IO_ALLOW_MMAP != 0);
        if self.session.agree_on_writeback(offered & init::WRITEBACK_CACHE != 0) {
            agreed |= init::WRITEBACK_CACHE;
        }
        let over_io_uring = offered & init::OVER_IO_URING != 0 && self.session.ring.all_can().await;
        let max_transfer = match over_io_uring {
            true => {
                agreed |= init::OVER_IO_URING;
                MAX_RING_TRANSFER
            }
            false => MAX_TRANSFER,
        };
        let reply = InitOut {
            major: MAJOR,
            minor: MINOR.min(kernel.minor),
            max_readahead: kernel.max_readahead.min(max_transfer),
            flags: agreed as u32,
            flags2: (agreed >> 32) as u32,
            max_background: MAX_BACKGROUND,
            congestion_threshold: MAX_BACKGROUND / 4 * 3,
            max_write: max_transfer,
            time_granularity: 1,
            max_pages: (max_transfer / 4096) as u16,
            ..InitOut::default()
        };
        self.reply(Ok(reply.as_bytes()));
        self.session.ring.decide(over_io_uring);
    }
}

/// Lets the reactor's other work run.
async fn yield_now() {
    let mut is_first = true;
    poll_fn(|context| match std::mem::take(&mut is_first) {
        true => {
            context.waker().wake_by_ref();
            Poll::Pending
        }
        false => Poll::Ready(()),
    })
    .await;
}
