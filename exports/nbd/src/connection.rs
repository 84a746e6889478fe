//! A connection: the handshake, then requests, each in a task of its own.

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use uringfs::reactor::{LocalReactor, RequestCounters};
use uringfs::{Buffer, Errno};
use uringfs_nbd_protocol::handshake::Greeting;
use uringfs_nbd_protocol::transmission::{
    Chunk, ChunkKind, Command, ErrorHead, Extent, SimpleReply, chunk_flags, error_number,
};
use zerocopy::IntoBytes;
use zerocopy::byteorder::big_endian::{U32, U64};

use crate::channel::Channel;
use crate::client::Client;
use crate::exports::Exports;
use crate::handshake::{ALLOCATION_ID, Agreement, Handshake, Next};
use crate::inbox::Inbox;
use crate::memory::{Budget, Memory, Share, Shares};
use crate::operations;
use crate::outbox::{Outbox, Reply, yield_now};
use crate::request::{Limits, Operation, Received};
use crate::tls::Tls;

/// How long a handshake may take.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// The most requests of a connection under way, and the most bytes of their data.
const MAX_REQUESTS: usize = 256;
const MAX_BYTES: usize = 64 << 20;
/// Each connection may have requests of so many bytes in all, however many the others hold. The bytes of its further
/// requests, and of a longer request, count against a budget that the thread's connections share.
const RESERVED_BYTES: usize = 256 << 10;
/// Requests that are started before others get a turn.
const BATCH: usize = 32;

/// The state that a thread's connections share.
pub(crate) struct Shared {
    pub(crate) reactor: LocalReactor,
    pub(crate) exports: Exports,
    pub(crate) memory: Memory,
    /// The requests that the files work on.
    pub(crate) operations: Rc<Budget>,
    /// The data of requests, without what each connection has for itself.
    pub(crate) data: Rc<Budget>,
    /// The thread ends.
    pub(crate) is_ending: Cell<bool>,
}

/// A connection after its handshake.
struct Connection {
    shared: Rc<Shared>,
    agreement: Agreement,
    outbox: Outbox,
    budget: Rc<Budget>,
    counters: Arc<RequestCounters>,
    /// The client has gone without a request to disconnect.
    is_lost: Cell<bool>,
}

/// Serves a connection until it ends, and all that it has asked for is answered.
pub(crate) async fn serve(shared: Rc<Shared>, channel: Rc<Channel>, tls: Option<Tls>) {
    let client = Client::new(channel.socket());
    client.connected();
    let mut inbox = Inbox::new(&channel);
    let (mut handshake, greeting) = Handshake::new(&shared.exports, tls.is_some());
    let agreement = shake_hands(&mut handshake, greeting, &channel, &mut inbox, tls).await;
    match (agreement, handshake.into_unknown_export()) {
        (Ok(Some(agreement)), _) => {
            serve_requests(shared, &channel, &mut inbox, agreement, &client).await;
        }
        (_, Some(name)) => client.refused(Some(&name), "there is no export of this name"),
        (agreement, None) => {
            log_end(&client, &channel, None, agreement.map(drop), shared.is_ending.get());
        }
    }
    channel.end_tls().await;
}

/// `is_over`: the connection is served no longer, which over TLS looks like an error.
fn log_end(
    client: &Client,
    channel: &Channel,
    export: Option<&str>,
    received: Result<(), Errno>,
    is_over: bool,
) {
    match channel.failure().map_or(received, Err) {
        Err(errno) if !is_over => client.failed(export, errno),
        _ => client.left(export),
    }
}

async fn serve_requests(
    shared: Rc<Shared>,
    channel: &Rc<Channel>,
    inbox: &mut Inbox,
    agreement: Agreement,
    client: &Client,
) {
    let export = agreement.export.clone();
    let name = Some(export.name());
    let Some(guard) = export.connect(channel.socket()) else {
        return client.refused(name, "the export was removed");
    };
    client.negotiated(export.name());
    let outbox = Outbox::new(channel);
    let budget = Budget::new(MAX_REQUESTS, MAX_BYTES);
    let counters = guard.counters.clone();
    let is_lost = Cell::new(false);
    let connection = Rc::new(Connection { shared, agreement, outbox, budget, counters, is_lost });
    // A client that breaks the connection gets no answer, whatever the reason is.
    let received = connection.receive_requests(inbox).await;
    connection.is_lost.set(received != Ok(true));
    connection.budget.wait_for_none().await;
    log_end(client, channel, name, received.map(drop), connection.is_over());
}

/// The agreement, or `None` if the client ends the connection.
async fn shake_hands(
    handshake: &mut Handshake,
    greeting: Greeting,
    channel: &Channel,
    inbox: &mut Inbox,
    tls: Option<Tls>,
) -> Result<Option<Agreement>, Errno> {
    let deadline = Instant::now() + HANDSHAKE_TIMEOUT;
    let mut output = greeting.as_bytes().to_vec();
    let mut is_full = false;
    loop {
        if !output.is_empty() {
            channel.send(vec![Buffer::copy_of(&output)], Some(deadline)).await?;
            output.clear();
        }
        if !is_full && !inbox.receive(Some(deadline)).await? {
            return Ok(None);
        }
        let advanced = handshake.advance(inbox.bytes(), &mut output);
        let (taken, next) = advanced.map_err(|_| Errno::PROTO)?;
        inbox.consume(taken);
        is_full = matches!(next, Next::Send);
        if is_full || matches!(next, Next::Receive) {
            continue;
        }
        channel.send(vec![Buffer::copy_of(&output)], Some(deadline)).await?;
        output.clear();
        match (next, &tls) {
            (Next::Begin(agreement), _) => return Ok(Some(agreement)),
            // Bytes that follow in plain text may be anybody's.
            (Next::StartTls, Some(tls)) if inbox.bytes().is_empty() => {
                channel.start_tls(tls, deadline).await?;
            }
            (Next::StartTls, _) => return Err(Errno::PROTO),
            (Next::End | Next::Receive | Next::Send, _) => return Ok(None),
        }
    }
}

impl Connection {
    /// Receives requests and starts them until the client disconnects. Returns whether a request says that it does.
    async fn receive_requests(self: &Rc<Self>, inbox: &mut Inbox) -> Result<bool, Errno> {
        let mut started = 0;
        loop {
            let head = loop {
                match inbox.take::<{ Received::LENGTH }>() {
                    Some(head) => break head,
                    None if inbox.receive(None).await? => started = 0,
                    None => return Ok(false),
                }
            };
            let received = Received::parse(&head).map_err(|_| Errno::PROTO)?;
            if received.command == Command::DISC || self.is_over() {
                return Ok(received.command == Command::DISC);
            }
            let shares = self.take_memory(received.memory()).await;
            let payload = match received.payload_length() {
                0 => None,
                length => {
                    let (_, mut payload) = self.shared.memory.take(0, length);
                    if !inbox.receive_exact(&mut payload).await? {
                        return Ok(false);
                    }
                    Some(payload)
                }
            };
            let operation = self.shared.operations.take(0).await;
            let answer = self.clone().answer(received, payload, shares, operation);
            drop(self.shared.reactor.spawn(answer));
            started += 1;
            if started % BATCH == 0 {
                yield_now().await;
            }
        }
    }

    async fn take_memory(&self, bytes: usize) -> Shares {
        let own = self.budget.take(bytes).await;
        let mut within = pin!(self.budget.wait_within(RESERVED_BYTES));
        let mut shared = pin!(self.shared.data.take(bytes));
        let shared = poll_fn(|context| match within.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(None),
            Poll::Pending => shared.as_mut().poll(context).map(Some),
        });
        (own, shared.await)
    }

    /// Whether it is served no longer.
    fn is_over(&self) -> bool {
        self.agreement.export.is_removed() || self.shared.is_ending.get()
    }

    /// Gives other tasks a turn in a long operation. False if the operation is to end: the server stops, or its client is gone.
    async fn goes_on(&self) -> bool {
        yield_now().await;
        !(self.is_over() || self.is_lost.get() || self.outbox.has_failed())
    }

    fn limits(&self) -> Limits {
        let export = &self.agreement.export;
        Limits {
            size: export.size(),
            read_only: export.is_read_only(),
            cached: export.file().is_buffered(),
            block_status: self.agreement.block_status,
        }
    }

    /// Does what is asked, and sends the reply.
    async fn answer(
        self: Rc<Self>,
        received: Received,
        payload: Option<Buffer>,
        shares: Shares,
        operation_share: Share,
    ) {
        let reply = match received.operation(&self.limits()) {
            Ok(operation) => self.run(operation, &received, payload).await,
            Err(errno) => Err(errno),
        };
        let bytes = reply.is_ok().then_some(received.length.into());
        self.counters.count(received.kind(), bytes);
        drop(operation_share);
        let reply = reply.unwrap_or_else(|errno| self.error(received.cookie, errno));
        self.outbox.send(reply, shares).await;
    }

    async fn run(
        &self,
        operation: Operation,
        received: &Received,
        payload: Option<Buffer>,
    ) -> Result<Reply, Errno> {
        let file = self.agreement.export.file();
        let Received { cookie, offset, .. } = *received;
        let length = received.length.into();
        let durable = match operation {
            Operation::Read => return self.read(received).await,
            Operation::BlockStatus { one } => {
                let max = if one { 1 } else { usize::MAX };
                let extents = operations::extents(file, offset, length, max);
                return Ok(block_status(cookie, &extents));
            }
            Operation::Write { durable } => {
                let payload = payload.expect("a write has a payload");
                operations::write(file, payload, offset, durable).await?;
                false
            }
            Operation::Flush => true,
            Operation::Cache => {
                operations::cache(file, offset, length).await?;
                false
            }
            Operation::Trim { durable } => {
                operations::trim(file, offset, length).await?;
                durable
            }
            Operation::WriteZeroes { durable, no_hole, fast } => {
                let goes_on = async || self.goes_on().await;
                operations::write_zeroes(file, offset, length, !no_hole, fast, goes_on).await?;
                durable
            }
        };
        if durable {
            file.sync_data().await?;
        }
        Ok(self.success(cookie))
    }

    async fn read(&self, received: &Received) -> Result<Reply, Errno> {
        let Received { cookie, offset, length, .. } = *received;
        let (bytes, head_length) = match self.agreement.structured {
            true => {
                let data_length = size_of::<U64>() as u32 + length;
                let chunk =
                    Chunk::new(ChunkKind::OFFSET_DATA, chunk_flags::DONE, cookie, data_length);
                let mut bytes = [0; size_of::<Chunk>() + size_of::<U64>()];
                bytes[..size_of::<Chunk>()].copy_from_slice(chunk.as_bytes());
                bytes[size_of::<Chunk>()..].copy_from_slice(U64::new(offset).as_bytes());
                (bytes, bytes.len())
            }
            false => {
                let mut bytes = [0; size_of::<Chunk>() + size_of::<U64>()];
                let reply = SimpleReply::new(0, cookie);
                bytes[..size_of::<SimpleReply>()].copy_from_slice(reply.as_bytes());
                (bytes, size_of::<SimpleReply>())
            }
        };
        let (mut head, data) = self.shared.memory.take(head_length, length as usize);
        let (read, data) = operations::read(self.agreement.export.file(), data, offset).await;
        read?;
        head.copy_from_slice(&bytes[..head_length]);
        head.join(data).expect("the data follow their head");
        Ok(Reply::Data(head))
    }

    fn success(&self, cookie: u64) -> Reply {
        let chunk = Chunk::new(ChunkKind::NONE, chunk_flags::DONE, cookie, 0);
        let simple = SimpleReply::new(0, cookie);
        Reply::Head(match self.agreement.structured {
            true => chunk.as_bytes().to_vec(),
            false => simple.as_bytes().to_vec(),
        })
    }

    fn error(&self, cookie: u64, errno: Errno) -> Reply {
        let number = error_number(errno);
        if !self.agreement.structured {
            return Reply::Head(SimpleReply::new(number, cookie).as_bytes().to_vec());
        }
        let head = ErrorHead { error: number.into(), length: 0.into() };
        let length = size_of::<ErrorHead>() as u32;
        let chunk = Chunk::new(ChunkKind::ERROR, chunk_flags::DONE, cookie, length);
        Reply::Head([chunk.as_bytes(), head.as_bytes()].concat())
    }
}

fn block_status(cookie: u64, extents: &[Extent]) -> Reply {
    let length = size_of::<U32>() + size_of_val(extents);
    let chunk = Chunk::new(ChunkKind::BLOCK_STATUS, chunk_flags::DONE, cookie, length as u32);
    let id = U32::new(ALLOCATION_ID);
    Reply::Head([chunk.as_bytes(), id.as_bytes(), extents.as_bytes()].concat())
}
