//! The loop of a thread: reads requests from its descriptor and answers them in tasks of its reactor.

use std::future::poll_fn;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use rustix::io::Errno as SystemError;
use uringfs::reactor::PollEvents;
use uringfs::{Buffer, Errno, Reactor};
use zerocopy::IntoBytes;

use crate::abi::{InitIn, InitOut, MAJOR, MIN_MINOR, MINOR, init};
use crate::request::{Operation, Request, is_change};
use crate::ring::{MAX_RING_TRANSFER, RingQueues, serve_entry};
use crate::session::{Carrier, InFlight, MAX_TRANSFER, RequestCount, Session, Task};

/// Room for a request of [`MAX_TRANSFER`] bytes: the kernel wants a page for what is before them.
const READ_BYTES: usize = MAX_TRANSFER as usize + 4096;
/// Requests that are read before those under way get a turn.
const BATCH: usize = 64;
/// The most requests that the kernel has in flight in the background: readahead, write-back, releases.
const MAX_BACKGROUND: u16 = 256;

impl Session {
    /// Serves one descriptor, and queues over io_uring if the kernel agrees to it, until the file system is unmounted and all
    /// requests have been answered.
    pub(crate) async fn serve(
        self: &Arc<Self>,
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
        let served = self.serve_channel(reactor, &channel, &in_flight).await;
        self.ring.decide(false);
        // Requests that a freeze holds back end now.
        let _ = self.volume().map(|volume| volume.thaw());
        in_flight.wait_for_none().await;
        served
    }

    async fn serve_channel(
        self: &Arc<Self>,
        reactor: &Reactor,
        channel: &Arc<OwnedFd>,
        in_flight: &Rc<RequestCount>,
    ) -> io::Result<()> {
        let mut buffer = vec![0; READ_BYTES];
        loop {
            for _ in 0..BATCH {
                match rustix::io::read(channel, &mut buffer[..]) {
                    // The other end of a socket is closed.
                    Ok(0) | Err(SystemError::NODEV) => return Ok(()),
                    Ok(length) => self.start(reactor, channel, &buffer[..length], in_flight),
                    Err(SystemError::AGAIN) => {
                        // All threads wait for the requests of one queue: a request wakes one of them.
                        let events = PollEvents::IN | PollEvents::EXCLUSIVE;
                        reactor.poll(channel, events, None).await?;
                    }
                    // The request was interrupted before it was read.
                    Err(SystemError::NOENT | SystemError::INTR) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            yield_now().await;
        }
    }

    /// Starts a request.
    fn start(
        self: &Arc<Self>,
        reactor: &Reactor,
        channel: &Arc<OwnedFd>,
        bytes: &[u8],
        in_flight: &Rc<RequestCount>,
    ) {
        // The kernel sends no such bytes. Without a request there is nothing to reply to.
        let Ok(Request { header, operation, .. }) = Request::parse(bytes) else { return };
        let carrier = Carrier::Channel(channel.clone(), InFlight::new(in_flight));
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
            // Nothing is done yet, or it is done soon: the request is answered as if nobody had interrupted it.
            Operation::Interrupt => {}
            Operation::Read(read) => drop(reactor.spawn(task.read(read))),
            Operation::Write(write, data) => {
                let data = Buffer::copy_of(data);
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
