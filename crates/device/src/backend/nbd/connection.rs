//! One connection to a server, from `connect` to its end. Never blocks. It does not reconnect: see
//! [`Link`](super::link::Link).

use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};
use std::mem;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendFlags, Shutdown, SocketAddrAny, SocketFlags,
    SocketType, connect, sendmsg, socket_with, sockopt,
};
use uringfs_errno::Errno;
use uringfs_nbd_protocol::transmission::{self, Command};
use uringfs_ring::ForkDetector;
use zerocopy::IntoBytes;

use super::export::Export;
use super::handshake::{self, Handshake};
use super::inbox::Inbox;
use super::job::{Job, Message, MessagePayload, Next, Work};
use super::peer::Peer;
use super::refusal::Refusal;
use super::replies::{Awaited, Event, ExpectedReply, Piece, ReplyParser, Violation};
use crate::request::{Request, Tag};

/// The bytes received in one call apart from those that go straight to the memory of a read: several replies to small
/// requests, and little of a long one, which is copied from here.
const RECEIVE_BYTES: usize = 16 << 10;

/// The most pieces of memory in one call that sends or receives.
const MAX_PIECES: usize = 128;

/// The limit for a silent server that has a flush, a discard or a zeroing to do, in timeouts. A flush of what a disk has
/// cached takes minutes, and ending the connection then would lose acknowledged writes.
const SLOW_TIMEOUTS: u32 = 20;

/// The probes of a silent TCP connection, which find within a timeout that the host is gone: the first after half of it.
const KEEPALIVE_PROBES: u32 = 4;

/// The bounds of the kernel for the times between them.
const MIN_KEEPALIVE: Duration = Duration::from_secs(1);
const MAX_KEEPALIVE: Duration = Duration::from_secs(32767);

/// Zeros to be written.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// A connection.
pub(super) struct Connection {
    socket: OwnedFd,
    phase: Phase,
    received: Received,
    /// Bytes of the handshake to be sent.
    hello: Vec<u8>,
    flights: Flights,
    /// The places of messages that are not sent, or only in part.
    unsent: VecDeque<u32>,
    /// Bytes of the first of them that are sent.
    front_sent: usize,
    /// The socket takes no more bytes for now.
    is_blocked: bool,
    /// A job that the server has refused because it shuts down.
    refused: Option<Job>,
    /// When the server last sent or took bytes, except those that its socket takes without it, or got something to do.
    last_heard: Instant,
    /// Acknowledged writes that a flush must make durable, and those that one has.
    acknowledged: u64,
    flushed: u64,
    system_calls: u64,
    fork_detector: ForkDetector,
}

enum Phase {
    Connecting(Handshake),
    Handshake(Handshake),
    Live(Export, ReplyParser),
}

/// Bytes that are received and not parsed.
struct Received {
    bytes: Box<[u8]>,
    begin: usize,
    end: usize,
    /// Bytes that went straight to the memory of a read, and are not noted.
    direct: u32,
}

/// Requests in flight. A cookie is a place, and the number of its use.
#[derive(Default)]
struct Flights {
    places: Vec<(u32, Option<Flight>)>,
    free: Vec<u32>,
    /// The number of those that take a server long.
    slow: usize,
}

struct Flight {
    job: Job,
    message: Message,
    head: transmission::Request,
    expected: ExpectedReply,
    is_sent: bool,
    /// The connection's `acknowledged` when it began.
    acknowledged: u64,
}

/// A job that has ended, and its result.
pub(super) type EndedJob = (Job, Result<u32, Errno>);

/// Why a connection has ended.
#[derive(Debug)]
pub(super) enum Loss {
    Error(Errno),
    /// The server has closed it, or shuts down.
    Closed,
    /// The handshake has failed.
    Refused(Refusal),
    Violation(Violation),
}

impl From<rustix::io::Errno> for Loss {
    fn from(error: rustix::io::Errno) -> Loss {
        Loss::Error(error.into())
    }
}

impl From<Refusal> for Loss {
    fn from(refusal: Refusal) -> Loss {
        Loss::Refused(refusal)
    }
}

impl From<Violation> for Loss {
    fn from(violation: Violation) -> Loss {
        Loss::Violation(violation)
    }
}

impl Connection {
    /// Begins to connect to `address`, for the export `name` of a server with this timeout.
    pub(super) fn begin(
        address: &SocketAddrAny,
        name: &str,
        timeout: Duration,
        now: Instant,
    ) -> Result<Connection, Errno> {
        let (family, flags) =
            (address.address_family(), SocketFlags::NONBLOCK | SocketFlags::CLOEXEC);
        let socket = socket_with(family, SocketType::STREAM, flags, None)?;
        if family != AddressFamily::UNIX {
            // Requests are batched here.
            sockopt::set_tcp_nodelay(&socket, true)?;
            let [idle, interval] = [timeout / 2, timeout / 2 / KEEPALIVE_PROBES]
                .map(|time| time.clamp(MIN_KEEPALIVE, MAX_KEEPALIVE));
            sockopt::set_tcp_keepidle(&socket, idle)?;
            sockopt::set_tcp_keepintvl(&socket, interval)?;
            sockopt::set_tcp_keepcnt(&socket, KEEPALIVE_PROBES)?;
            sockopt::set_socket_keepalive(&socket, true)?;
        }
        let handshake = Handshake::new(name);
        let phase = match connect(&socket, address) {
            Ok(()) => Phase::Handshake(handshake),
            Err(rustix::io::Errno::INPROGRESS) => Phase::Connecting(handshake),
            Err(error) => return Err(error.into()),
        };
        Ok(Connection {
            socket,
            phase,
            received: Received::new(),
            hello: Vec::new(),
            flights: Flights::default(),
            unsent: VecDeque::new(),
            front_sent: 0,
            is_blocked: false,
            refused: None,
            last_heard: now,
            acknowledged: 0,
            flushed: 0,
            system_calls: 2,
            fork_detector: ForkDetector::default(),
        })
    }

    /// The export, once the handshake is done.
    pub(super) fn export(&self) -> Option<Export> {
        match self.phase {
            Phase::Live(export, _) => Some(export),
            Phase::Connecting(_) | Phase::Handshake(_) => None,
        }
    }

    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Whether [`Self::drive`] waits until the socket is writable, too.
    pub(super) fn waits_to_send(&self) -> bool {
        matches!(self.phase, Phase::Connecting(_))
            || !self.unsent.is_empty()
            || !self.hello.is_empty()
    }

    /// Whether messages of any queue wait for the socket.
    pub(super) fn is_blocked(&self) -> bool {
        self.is_blocked
    }

    /// Whether the server owes something: a step of the handshake, or a reply.
    pub(super) fn is_waiting(&self) -> bool {
        self.export().is_none() || !self.flights.is_empty()
    }

    /// When a server with this timeout has been silent for too long.
    pub(super) fn silent_at(&self, timeout: Duration) -> Instant {
        match self.flights.slow {
            0 => self.last_heard + timeout,
            _ => self.last_heard + timeout * SLOW_TIMEOUTS,
        }
    }

    /// Whether writes were acknowledged that no flush has made durable.
    pub(super) fn is_dirty(&self) -> bool {
        self.acknowledged > self.flushed
    }

    pub(super) fn system_calls(&self) -> u64 {
        self.system_calls
    }

    /// Adds a job, which [`Self::drive`] sends. Only once there is an [`Self::export`].
    pub(super) fn push(&mut self, job: Job, peer: &Peer, now: Instant) {
        if self.flights.is_empty() {
            self.last_heard = now;
        }
        let export = self.export().expect("its handshake is done");
        let message = job.message(&export, peer);
        let expected = match message.command {
            Command::READ => ExpectedReply::to_read(message.offset, message.length),
            _ => ExpectedReply::to_other(),
        };
        let acknowledged = self.acknowledged;
        let place = self.flights.insert(|cookie| {
            let Message { command, flags, offset, length, .. } = message;
            let head = transmission::Request::new(command, flags, cookie, offset, length);
            Flight { job, message, head, expected, is_sent: false, acknowledged }
        });
        self.unsent.push_back(place);
    }

    /// Sends and receives what it can. Stops early when jobs have ended.
    pub(super) fn drive(
        &mut self,
        peer: Option<&Peer>,
        now: Instant,
        ended: &mut Vec<EndedJob>,
    ) -> Result<(), Loss> {
        if self.export().is_none() && !self.shake_hands(now)? {
            return Ok(());
        }
        match peer {
            Some(peer) => {
                self.send(now)?;
                self.receive(peer, now, ended)
            }
            None => Ok(()),
        }
    }

    /// Sends what is pushed, as far as the socket takes it.
    pub(super) fn send(&mut self, now: Instant) -> Result<(), Loss> {
        let mut was_blocked = mem::take(&mut self.is_blocked);
        while !self.unsent.is_empty() {
            let mut pieces = Vec::with_capacity(MAX_PIECES.min(2 * self.unsent.len()));
            let mut skip = self.front_sent;
            for place in &self.unsent {
                if pieces.len() == MAX_PIECES {
                    break;
                }
                self.flights.at(*place).gather(mem::take(&mut skip), &mut pieces);
            }
            self.system_calls += 1;
            let (mut none, flags) = (SendAncillaryBuffer::default(), SendFlags::NOSIGNAL);
            match sendmsg(&self.socket, &pieces, &mut none, flags) {
                Ok(sent) => {
                    if mem::take(&mut was_blocked) {
                        self.last_heard = now;
                    }
                    self.mark_sent(sent);
                }
                Err(rustix::io::Errno::AGAIN) => {
                    self.is_blocked = true;
                    return Ok(());
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn mark_sent(&mut self, mut sent: usize) {
        while let Some(place) = self.unsent.front() {
            let flight = self.flights.at_mut(*place);
            let left = flight.bytes() - self.front_sent;
            if sent < left {
                self.front_sent += sent;
                return;
            }
            flight.is_sent = true;
            sent -= left;
            self.front_sent = 0;
            self.unsent.pop_front();
        }
    }

    /// Returns true once the handshake is done.
    fn shake_hands(&mut self, now: Instant) -> Result<bool, Loss> {
        if let Phase::Connecting(_) = self.phase {
            self.system_calls += 1;
            let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
            if poll(&mut [PollFd::new(&self.socket, PollFlags::OUT)], Some(&zero))? == 0 {
                return Ok(false);
            }
            sockopt::socket_error(&self.socket)??;
        }
        loop {
            let (Phase::Connecting(handshake) | Phase::Handshake(handshake)) = &mut self.phase
            else {
                return Ok(true);
            };
            let (parsed, export) = handshake.advance(self.received.unparsed(), &mut self.hello)?;
            self.received.consume(parsed);
            if let Some(export) = export {
                self.phase = Phase::Live(export, ReplyParser::new(export.structured));
                return Ok(true);
            }
            if let Phase::Connecting(handshake) = &mut self.phase {
                self.phase = Phase::Handshake(mem::replace(handshake, Handshake::new("")));
            }
            self.send_hello()?;
            if parsed == 0 && self.fill(now)? == 0 {
                return Ok(false);
            }
        }
    }

    fn send_hello(&mut self) -> Result<(), Loss> {
        while !self.hello.is_empty() {
            self.system_calls += 1;
            match rustix::net::send(&self.socket, &self.hello, SendFlags::NOSIGNAL) {
                Ok(sent) => drop(self.hello.drain(..sent)),
                Err(rustix::io::Errno::AGAIN) => return Ok(()),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn receive(
        &mut self,
        peer: &Peer,
        now: Instant,
        ended: &mut Vec<EndedJob>,
    ) -> Result<(), Loss> {
        loop {
            self.parse(peer, now, ended)?;
            if !ended.is_empty() || self.fill(now)? == 0 {
                return self.send(now);
            }
        }
    }

    /// Receives bytes, those of a read straight into its memory. Returns 0 if there are none.
    fn fill(&mut self, now: Instant) -> Result<usize, Loss> {
        let mut pieces = Vec::new();
        let mut direct = 0;
        let piece = match &self.phase {
            Phase::Live(_, parser) => parser.payload(),
            Phase::Connecting(_) | Phase::Handshake(_) => None,
        };
        if let Some(piece) = piece {
            let request = self.flights.request_mut(piece.cookie);
            direct = window(request, piece.begin, piece.length, &mut pieces);
        }
        if piece.is_none_or(|piece| piece.length as usize == direct) {
            pieces.push(IoSliceMut::new(self.received.room()));
        }
        self.system_calls += 1;
        let received = match rustix::io::readv(&self.socket, &mut pieces) {
            Ok(0) => return Err(Loss::Closed),
            Ok(received) => received,
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return Ok(0),
            Err(error) => return Err(error.into()),
        };
        self.last_heard = now;
        self.received.end += received.saturating_sub(direct);
        self.received.direct = received.min(direct) as u32;
        Ok(received)
    }

    /// Takes what is received.
    fn parse(&mut self, peer: &Peer, now: Instant, ended: &mut Vec<EndedJob>) -> Result<(), Loss> {
        loop {
            let Phase::Live(_, parser) = &mut self.phase else { return Ok(()) };
            let event = match parser.payload() {
                Some(piece) => {
                    let moved = match mem::take(&mut self.received.direct) {
                        0 => {
                            copy(self.flights.request_mut(piece.cookie), piece, &mut self.received)
                        }
                        direct => direct,
                    };
                    if moved == 0 {
                        return Ok(());
                    }
                    parser.advance_payload(moved, &mut self.flights)?
                }
                None => {
                    let (parsed, event) =
                        parser.parse(self.received.unparsed(), &mut self.flights)?;
                    self.received.consume(parsed);
                    if parsed == 0 && event.is_none() {
                        return Ok(());
                    }
                    event
                }
            };
            match event {
                None => {}
                Some(Event::Zeros(piece)) => clear(self.flights.request_mut(piece.cookie), piece),
                Some(Event::End { cookie, result }) => {
                    self.end(cookie, result, peer, now, ended)?
                }
            }
        }
    }

    fn end(
        &mut self,
        cookie: u64,
        result: Result<(), Errno>,
        peer: &Peer,
        now: Instant,
        ended: &mut Vec<EndedJob>,
    ) -> Result<(), Loss> {
        let Flight { job, message, acknowledged, .. } = self.flights.remove(cookie);
        match result {
            Err(Errno::SHUTDOWN) => {
                self.refused = Some(job);
                return Err(Loss::Closed);
            }
            Err(error) => ended.push((job, Err(error))),
            Ok(()) => {
                self.acknowledged += u64::from(job.is_volatile(peer));
                if message.command == Command::FLUSH {
                    self.flushed = self.flushed.max(acknowledged);
                }
                match job.advance(message.length) {
                    Next::Message(job) => self.push(job, peer, now),
                    Next::End(job, _) if job.is_change() && peer.has_lost_writes() => {
                        ended.push((job, Err(Errno::IO)));
                    }
                    Next::End(job, moved) => ended.push((job, Ok(moved))),
                }
            }
        }
        Ok(())
    }

    /// Removes the requests of this queue with this tag that are not being sent.
    pub(super) fn cancel(&mut self, owner: &Arc<Inbox>, tag: Tag, ended: &mut Vec<EndedJob>) {
        let is_front_partly_sent = self.front_sent > 0;
        let mut kept = VecDeque::with_capacity(self.unsent.len());
        for (index, place) in mem::take(&mut self.unsent).into_iter().enumerate() {
            let is_begun = index == 0 && is_front_partly_sent;
            if !is_begun && self.flights.at(place).job.has_tag(owner, tag) {
                let job = self.flights.remove_at(place).job;
                ended.push((job, Err(Errno::CANCELED)));
            } else {
                kept.push_back(place);
            }
        }
        self.unsent = kept;
    }

    /// The jobs that the server has not acknowledged.
    pub(super) fn into_jobs(mut self) -> Vec<Job> {
        let flights = mem::take(&mut self.flights);
        let in_flight = flights.places.into_iter().filter_map(|(_, flight)| Some(flight?.job));
        self.refused.take().into_iter().chain(in_flight).collect()
    }
}

impl Drop for Connection {
    /// Says goodbye if no request is in flight, as a server expects it. Does not wait. Ends the connection also where the
    /// child of a fork has the socket open, since a server may accept only one.
    fn drop(&mut self) {
        if self.fork_detector.is_forked() {
            return;
        }
        if self.export().is_some() && self.flights.is_empty() && self.front_sent == 0 {
            let goodbye = transmission::Request::new(Command::DISC, 0, 0, 0, 0);
            let _ = rustix::net::send(&self.socket, goodbye.as_bytes(), SendFlags::NOSIGNAL);
        }
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Both);
    }
}

impl Received {
    fn new() -> Received {
        const { assert!(RECEIVE_BYTES >= handshake::MAX_REPLY) }
        Received { bytes: vec![0; RECEIVE_BYTES].into(), begin: 0, end: 0, direct: 0 }
    }

    fn unparsed(&self) -> &[u8] {
        &self.bytes[self.begin..self.end]
    }

    fn consume(&mut self, parsed: usize) {
        self.begin += parsed;
        if self.begin == self.end {
            (self.begin, self.end) = (0, 0);
        }
    }

    /// Room for more. Never empty, since each message that is parsed as a whole is shorter.
    fn room(&mut self) -> &mut [u8] {
        if self.begin > 0 {
            self.bytes.copy_within(self.begin..self.end, 0);
            (self.begin, self.end) = (0, self.end - self.begin);
        }
        &mut self.bytes[self.end..]
    }
}

impl Flights {
    fn is_empty(&self) -> bool {
        self.free.len() == self.places.len()
    }

    fn insert(&mut self, flight: impl FnOnce(u64) -> Flight) -> u32 {
        let place = self.free.pop().unwrap_or_else(|| {
            self.places.push((0, None));
            self.places.len() as u32 - 1
        });
        let (uses, slot) = &mut self.places[place as usize];
        *uses = uses.wrapping_add(1);
        let flight = slot.insert(flight(u64::from(*uses) << 32 | u64::from(place)));
        self.slow += usize::from(flight.message.is_slow());
        place
    }

    fn at(&self, place: u32) -> &Flight {
        self.places[place as usize].1.as_ref().expect("it is in flight")
    }

    fn at_mut(&mut self, place: u32) -> &mut Flight {
        self.places[place as usize].1.as_mut().expect("it is in flight")
    }

    fn remove_at(&mut self, place: u32) -> Flight {
        let flight = self.places[place as usize].1.take().expect("it is in flight");
        self.slow -= usize::from(flight.message.is_slow());
        self.free.push(place);
        flight
    }

    /// That of a cookie which the parser has found here.
    fn remove(&mut self, cookie: u64) -> Flight {
        self.remove_at(cookie as u32)
    }

    /// The same, of a read.
    fn request_mut(&mut self, cookie: u64) -> &mut Request {
        match &mut self.at_mut(cookie as u32).job.work {
            Work::Request(request) => request,
            Work::FlushPart(_) | Work::LastFlush => unreachable!("only reads get bytes"),
        }
    }
}

impl Awaited for Flights {
    fn expected(&mut self, cookie: u64) -> Option<&mut ExpectedReply> {
        let (uses, flight) = self.places.get_mut(cookie as u32 as usize)?;
        let flight = flight.as_mut().filter(|flight| flight.is_sent)?;
        (*uses == (cookie >> 32) as u32).then_some(&mut flight.expected)
    }
}

impl Flight {
    /// The number of bytes to send.
    fn bytes(&self) -> usize {
        let payload = match self.message.payload {
            MessagePayload::None => 0,
            MessagePayload::Memory | MessagePayload::Zeros => self.message.length as usize,
        };
        size_of::<transmission::Request>() + payload
    }

    /// Appends the bytes to send after the first `skip`, as far as there is room.
    fn gather<'f>(&'f self, skip: usize, pieces: &mut Vec<IoSlice<'f>>) {
        let head = self.head.as_bytes();
        if let Some(rest) = head.get(skip..).filter(|rest| !rest.is_empty()) {
            pieces.push(IoSlice::new(rest));
        }
        let mut skip = skip.saturating_sub(head.len());
        let mut left = self.message.length as usize;
        let mut add = |bytes: &'f [u8]| {
            let bytes = &bytes[..bytes.len().min(left)];
            left -= bytes.len();
            let rest = &bytes[skip.min(bytes.len())..];
            skip -= bytes.len() - rest.len();
            if !rest.is_empty() && pieces.len() < MAX_PIECES {
                pieces.push(IoSlice::new(rest));
            }
            left > 0
        };
        match (self.message.payload, &self.job.work) {
            (MessagePayload::Memory, Work::Request(request)) => {
                request.segments().all(&mut add);
            }
            (MessagePayload::Zeros, _) => while add(&ZEROS) {},
            (MessagePayload::None | MessagePayload::Memory, _) => {}
        }
    }
}

/// Appends the memory for `length` bytes of a read from `begin` on, as far as there is room. Returns its length.
fn window<'r>(
    request: &'r mut Request,
    begin: u32,
    length: u32,
    pieces: &mut Vec<IoSliceMut<'r>>,
) -> usize {
    let (mut skip, mut left) = (begin as usize, length as usize);
    for segment in request.segments_mut() {
        if left == 0 || pieces.len() == MAX_PIECES {
            break;
        }
        let start = skip.min(segment.len());
        skip -= start;
        let taken = (segment.len() - start).min(left);
        if taken > 0 {
            pieces.push(IoSliceMut::new(&mut segment[start..start + taken]));
            left -= taken;
        }
    }
    length as usize - left
}

/// Copies what is received of a read into its memory. Returns the number of bytes.
fn copy(request: &mut Request, piece: Piece, received: &mut Received) -> u32 {
    let length = (piece.length as usize).min(received.unparsed().len());
    let mut pieces = Vec::new();
    let moved = window(request, piece.begin, length as u32, &mut pieces);
    for target in &mut pieces {
        let length = target.len();
        target.copy_from_slice(&received.unparsed()[..length]);
        received.consume(length);
    }
    moved as u32
}

/// Fills a part of a read with zeros.
fn clear(request: &mut Request, piece: Piece) {
    let Piece { mut begin, mut length, .. } = piece;
    while length > 0 {
        let mut pieces = Vec::new();
        let moved = window(request, begin, length, &mut pieces) as u32;
        pieces.iter_mut().for_each(|target| target.fill(0));
        (begin, length) = (begin + moved, length - moved);
    }
}

#[cfg(test)]
pub(super) mod tests;
