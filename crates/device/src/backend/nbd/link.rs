//! A way to the server: one connection after another, and the jobs that wait for the next one.
//!
//! A device has one main link, which reconnects for as long as the peer's timeout, and sends again what was not
//! acknowledged. Every request can be repeated: reads, and writes, discards and zeroings with the same content. A flush
//! only if nothing was lost that it should have made durable. Queues may also have links of their own, which return what
//! they cannot do to the main link.
//!
//! When a connection ends with acknowledged writes that no flush covered, the server may have lost them. Only
//! the device's user can write them again, so all later changes and flushes fail: see [`Peer::set_lost_writes`].
//!
//! The protocol cannot tell a server that a request is repeated. So a server that still executes a write of a
//! connection that broke, after it has acknowledged the repetition, can overwrite what was written since then.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use uringfs_errno::Errno;

use super::connection::{Connection, EndedJob, Loss};
use super::export::Export;
use super::inbox::Inbox;
use super::job::{Job, Work};
use super::peer::Peer;
use crate::request::Tag;

/// The shortest and longest pauses between attempts to connect, except that the first attempt is immediate.
const MIN_PAUSE: Duration = Duration::from_millis(10);
const MAX_PAUSE: Duration = Duration::from_secs(1);

/// The time in which a server accepts another connection. If it does not, it may never.
const EXTRA_TIMEOUT: Duration = Duration::from_secs(2);

/// A link, which several threads may use.
pub(super) struct Link {
    state: Mutex<LinkState>,
}

/// The purpose of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// For all queues.
    Main,
    /// For one queue.
    Extra,
}

/// The state of a link, while it is locked.
pub(super) struct LinkState {
    role: Role,
    connection: Option<Connection>,
    /// The number of connections so far.
    generation: u64,
    /// Jobs for the next connection, oldest first. None on an extra link.
    waiting: VecDeque<Job>,
    /// A queue whose job needed bytes that the connection lacks, on an extra link: another connection replaces it.
    outgrown_by: Option<Arc<Inbox>>,
    /// The queues that have jobs here, and how many.
    holders: Vec<(Arc<Inbox>, usize)>,
    /// Since the last reply there was no connection, or it said nothing.
    outage: Option<Outage>,
    begun: Instant,
    /// Calls of connections that have ended.
    system_calls: u64,
}

#[derive(Clone, Copy)]
struct Outage {
    /// Requests fail from then on.
    give_up_at: Instant,
    retry_at: Instant,
    pause: Duration,
    error: Errno,
}

/// The outcome of a link's work, which a queue handles when the link is not locked any more.
#[derive(Default)]
pub(super) struct Outcome {
    pub(super) ended: Vec<EndedJob>,
    /// Jobs for the main link.
    pub(super) returned: Vec<Job>,
    /// Queues that wait for the wrong socket.
    pub(super) to_wake: Vec<Arc<Inbox>>,
    /// Calls of this thread.
    pub(super) system_calls: u64,
}

/// The interest of a queue in the socket of a connection, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Interest {
    pub(super) generation: u64,
    pub(super) to_send: bool,
}

impl Link {
    /// The main link, over its first connection.
    pub(super) fn main(connection: Connection, now: Instant) -> Link {
        let state = LinkState { connection: Some(connection), ..LinkState::new(Role::Main, now) };
        Link { state: Mutex::new(state) }
    }

    /// A link that is not connected yet.
    pub(super) fn extra(now: Instant) -> Link {
        Link { state: Mutex::new(LinkState::new(Role::Extra, now)) }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, LinkState> {
        self.state.lock()
    }
}

impl LinkState {
    fn new(role: Role, now: Instant) -> LinkState {
        LinkState {
            role,
            connection: None,
            generation: 0,
            waiting: VecDeque::new(),
            outgrown_by: None,
            holders: Vec::new(),
            outage: None,
            begun: now,
            system_calls: 0,
        }
    }

    /// Whether jobs can be sent now.
    pub(super) fn is_live(&self) -> bool {
        self.outgrown_by.is_none() && self.export().is_some()
    }

    fn export(&self) -> Option<Export> {
        self.connection.as_ref()?.export()
    }

    /// Whether writes were acknowledged that no flush has made durable.
    pub(super) fn is_dirty(&self) -> bool {
        self.connection.as_ref().is_some_and(Connection::is_dirty)
    }

    /// Whether jobs of this queue are here.
    pub(super) fn is_held_by(&self, owner: &Arc<Inbox>) -> bool {
        self.holders.iter().any(|(holder, _)| Arc::ptr_eq(holder, owner))
    }

    fn system_calls(&self) -> u64 {
        self.system_calls + self.connection.as_ref().map_or(0, Connection::system_calls)
    }

    /// Takes a job, which [`Self::drive`] sends.
    pub(super) fn push(&mut self, job: Job, peer: &Peer, now: Instant, outcome: &mut Outcome) {
        if job.is_change() && peer.has_lost_writes() {
            return outcome.ended.push((job, Err(Errno::IO)));
        }
        let can_send = self.can_send(&job, peer);
        if self.role == Role::Extra && !can_send {
            if self.is_live() {
                self.outgrown_by = Some(job.owner.clone());
            }
            return outcome.returned.push(job);
        }
        self.hold(&job.owner);
        match &mut self.connection {
            Some(connection) if can_send => connection.push(job, peer, now),
            _ => self.waiting.push_back(job),
        }
    }

    /// Whether the connection can take this job: it is there, and has the job's bytes. When a connection with more bytes
    /// is to replace it, only flushes are let through.
    fn can_send(&self, job: &Job, peer: &Peer) -> bool {
        let Some(export) = self.export() else { return false };
        let is_flush = !matches!(job.work, Work::Request(_));
        is_flush || self.outgrown_for().is_none() && !job.reaches_beyond(&export, peer)
    }

    /// A queue that waits for a connection with more bytes.
    fn outgrown_for(&self) -> Option<&Arc<Inbox>> {
        self.outgrown_by.as_ref().or_else(|| Some(&self.waiting.front()?.owner))
    }

    fn hold(&mut self, owner: &Arc<Inbox>) {
        match self.holders.iter_mut().find(|(holder, _)| Arc::ptr_eq(holder, owner)) {
            Some((_, jobs)) => *jobs += 1,
            None => self.holders.push((owner.clone(), 1)),
        }
    }

    /// Does what can be done now: connects, sends, receives, gives up.
    pub(super) fn drive(&mut self, peer: &Peer, now: Instant, outcome: &mut Outcome) {
        let calls = self.system_calls();
        self.connect_if_due(peer, now, outcome);
        let mut ended = Vec::new();
        if let Some(connection) = &mut self.connection {
            let (was_live, was_blocked) = (connection.export().is_some(), connection.is_blocked());
            let mut driven = connection.drive(Some(peer), now, &mut ended);
            if driven.is_ok() && !was_live && connection.export().is_some() {
                driven = self.begin_to_serve(peer, now);
            }
            if !ended.is_empty() {
                self.outage = None;
            }
            if !was_blocked && self.connection.as_ref().is_some_and(Connection::is_blocked) {
                self.wake_holders(outcome);
            }
            let is_silent =
                || self.connection_deadline(peer).is_some_and(|deadline| now >= deadline);
            match driven {
                Err(loss) => self.lose(loss, peer, now, &mut ended, outcome),
                Ok(()) if ended.is_empty() && is_silent() => {
                    self.lose(Loss::Error(Errno::TIMEDOUT), peer, now, &mut ended, outcome);
                }
                Ok(()) => self.replace_if_too_small(peer, now, &mut ended, outcome),
            }
        }
        self.fail_if_hopeless(now, &mut ended);
        for (job, result) in ended {
            self.release(&job);
            outcome.ended.push((job, result));
        }
        outcome.system_calls += self.system_calls() - calls;
    }

    /// Ends the jobs of this queue with this tag that no server has, or that wait for a connection.
    pub(super) fn cancel(&mut self, owner: &Arc<Inbox>, tag: Tag, outcome: &mut Outcome) {
        let mut ended = Vec::new();
        if let Some(connection) = &mut self.connection {
            connection.cancel(owner, tag, &mut ended);
        }
        for job in std::mem::take(&mut self.waiting) {
            match job.has_tag(owner, tag) {
                true => ended.push((job, Err(Errno::CANCELED))),
                false => self.waiting.push_back(job),
            }
        }
        for (job, result) in ended {
            self.release(&job);
            outcome.ended.push((job, result));
        }
    }

    /// The socket to wait for, with its interest.
    pub(super) fn interest(&self) -> Option<(BorrowedFd<'_>, Interest)> {
        let connection = self.connection.as_ref()?;
        let to_send = connection.waits_to_send();
        Some((connection.socket(), Interest { generation: self.generation, to_send }))
    }

    /// When [`Self::drive`] has something to do, whatever the server does.
    pub(super) fn deadline(&self, peer: &Peer) -> Option<Instant> {
        let next_attempt = match (&self.connection, &self.outage) {
            (None, Some(outage)) if !self.waiting.is_empty() => {
                Some(outage.retry_at.min(outage.give_up_at))
            }
            _ => None,
        };
        next_attempt.or_else(|| self.connection_deadline(peer))
    }

    /// When the connection has been silent for too long.
    fn connection_deadline(&self, peer: &Peer) -> Option<Instant> {
        let connection = self.connection.as_ref().filter(|connection| connection.is_waiting())?;
        if connection.export().is_some() {
            return Some(connection.silent_at(peer.timeout));
        }
        Some(match (self.role, &self.outage) {
            (Role::Extra, _) => self.begun + EXTRA_TIMEOUT,
            (Role::Main, outage) => {
                let end = self.begun + peer.attempt_timeout();
                // An outage that has lasted for too long has one attempt after another.
                let give_up_at = outage.map(|outage| outage.give_up_at);
                give_up_at.filter(|at| *at > self.begun).map_or(end, |at| end.min(at))
            }
        })
    }

    fn connect_if_due(&mut self, peer: &Peer, now: Instant, outcome: &mut Outcome) {
        let is_due = match (self.role, &self.outage) {
            _ if self.connection.is_some() => false,
            (Role::Main, outage) => {
                !self.waiting.is_empty() && outage.is_none_or(|outage| now >= outage.retry_at)
            }
            (Role::Extra, None) => true,
            // It had a connection once, or else the server has no other for it.
            (Role::Extra, Some(outage)) => outage.pause == MAX_PAUSE && now >= outage.retry_at,
        };
        if !is_due {
            return;
        }
        self.generation += 1;
        self.begun = now;
        match Connection::begin(peer.address(), &peer.name, peer.timeout, now) {
            Ok(connection) => {
                self.connection = Some(connection);
                self.wake_holders(outcome);
            }
            Err(error) => self.pause(Loss::Error(error), peer, now),
        }
    }

    /// The handshake is done: sends what waits for it, if the export is the same as before, or has grown.
    fn begin_to_serve(&mut self, peer: &Peer, now: Instant) -> Result<(), Loss> {
        let connection = self.connection.as_mut().expect("its handshake is done");
        let export = connection.export().expect("the handshake is done");
        peer.note_offer(&export).map_err(Loss::Error)?;
        self.waiting.drain(..).for_each(|job| connection.push(job, peer, now));
        connection.send(now)
    }

    /// Replaces a connection from before the export grew, if jobs need the bytes that it lacks: after the last reply, and
    /// after a flush, since writes that it has acknowledged may be lost with it.
    fn replace_if_too_small(
        &mut self,
        peer: &Peer,
        now: Instant,
        ended: &mut Vec<EndedJob>,
        outcome: &mut Outcome,
    ) {
        let is_last_flush = |ended: &EndedJob| matches!(ended.0.work, Work::LastFlush);
        if ended.iter().any(|ended| is_last_flush(ended) && ended.1.is_err()) {
            // No other flush reports it.
            peer.set_lost_writes();
            self.fail_waiting_changes(ended);
        }
        let Some(owner) = self.outgrown_for().cloned() else { return };
        let Some(connection) =
            self.connection.as_mut().filter(|connection| !connection.is_waiting())
        else {
            return;
        };
        if connection.is_dirty() && !peer.has_lost_writes() {
            connection.push(Job::new(Work::LastFlush, owner.clone()), peer, now);
            self.hold(&owner);
            let sent = self.connection.as_mut().map_or(Ok(()), |connection| connection.send(now));
            if let Err(loss) = sent {
                self.lose(loss, peer, now, ended, outcome);
            }
            return;
        }
        self.system_calls += connection.system_calls();
        (self.connection, self.outgrown_by) = (None, None);
        self.wake_holders(outcome);
        self.connect_if_due(peer, now, outcome);
    }

    /// The connection has ended.
    fn lose(
        &mut self,
        loss: Loss,
        peer: &Peer,
        now: Instant,
        ended: &mut Vec<EndedJob>,
        outcome: &mut Outcome,
    ) {
        let Some(connection) = self.connection.take() else { return };
        self.outgrown_by = None;
        if connection.is_dirty() {
            peer.set_lost_writes();
        }
        let was_live = connection.export().is_some();
        self.wake_holders(outcome);
        self.system_calls += connection.system_calls();
        let jobs = connection.into_jobs();
        match (&loss, self.role) {
            // Another connection would make it worse: the next answer may look right.
            (Loss::Violation(_), _) => {
                ended.extend(jobs.into_iter().map(|job| (job, Err(Errno::PROTO))));
            }
            (_, Role::Extra) => {
                jobs.iter().for_each(|job| self.release(job));
                outcome.returned.extend(jobs);
            }
            (_, Role::Main) => jobs.into_iter().rev().for_each(|job| self.waiting.push_front(job)),
        }
        if peer.has_lost_writes() {
            self.fail_waiting_changes(ended);
        }
        self.pause(loss, peer, now);
        if let (Role::Extra, true, Some(outage)) = (self.role, was_live, &mut self.outage) {
            (outage.pause, outage.retry_at) = (MAX_PAUSE, now + MAX_PAUSE);
        }
    }

    /// Writes were lost: no change is done.
    fn fail_waiting_changes(&mut self, ended: &mut Vec<EndedJob>) {
        for job in std::mem::take(&mut self.waiting) {
            match job.is_change() {
                true => ended.push((job, Err(Errno::IO))),
                false => self.waiting.push_back(job),
            }
        }
    }

    /// Plans the next attempt to connect.
    fn pause(&mut self, loss: Loss, peer: &Peer, now: Instant) {
        let error = match loss {
            Loss::Violation(_) | Loss::Refused(_) | Loss::Error(Errno::STALE) => Errno::IO,
            Loss::Closed | Loss::Error(_) => Errno::TIMEDOUT,
        };
        self.outage = Some(match self.outage {
            None => Outage {
                give_up_at: now + peer.timeout,
                retry_at: now,
                pause: Duration::ZERO,
                error,
            },
            Some(Outage { give_up_at, pause, .. }) => {
                // The first attempt went to the address that had worked.
                if self.role == Role::Main {
                    peer.use_next_address();
                }
                let pause = (2 * pause).clamp(MIN_PAUSE, MAX_PAUSE);
                Outage { give_up_at, retry_at: now + pause, pause, error }
            }
        });
    }

    /// After too long an outage jobs fail, unless an attempt to connect is under way.
    fn fail_if_hopeless(&mut self, now: Instant, ended: &mut Vec<EndedJob>) {
        if let (None, Some(outage)) = (&self.connection, &self.outage)
            && now >= outage.give_up_at
        {
            let error = outage.error;
            ended.extend(self.waiting.drain(..).map(|job| (job, Err(error))));
        }
    }

    /// Wakes the queues that have jobs here. They may wait for another socket, or not until it takes bytes, and this
    /// thread may stop driving the link.
    fn wake_holders(&self, outcome: &mut Outcome) {
        outcome.to_wake.extend(self.holders.iter().map(|(holder, _)| holder.clone()));
    }

    /// A job of this queue leaves.
    fn release(&mut self, job: &Job) {
        let is_owner = |(holder, _): &(Arc<Inbox>, usize)| Arc::ptr_eq(holder, &job.owner);
        if let Some(index) = self.holders.iter().position(is_owner) {
            self.holders[index].1 -= 1;
            if self.holders[index].1 == 0 {
                self.holders.swap_remove(index);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use uringfs_buffer::Buffer;
    use uringfs_nbd_protocol::handshake::export_flags;
    use uringfs_nbd_protocol::transmission::{self, Command, SimpleReply};
    use zerocopy::{FromBytes, IntoBytes};

    use super::super::connection::tests::{connected, listen};
    use super::super::job::Flush;
    use super::*;
    use crate::index::DeviceIndex;
    use crate::request::{Op, Payload, Request};

    const TIMEOUT: Duration = Duration::from_secs(30);

    fn job(op: Op) -> Job {
        let payload = match op {
            Op::Flush => Payload::Length(0),
            _ => Payload::Buffer(Buffer::zeroed(4096)),
        };
        let request = Request::new(DeviceIndex::for_tests(0), op, 0, payload, Tag(0));
        let work = match op {
            Op::Flush => Work::FlushPart(Flush::new(request, 1)),
            _ => Work::Request(request),
        };
        Job::new(work, Arc::new(Inbox::new().unwrap()))
    }

    /// Takes a request, and says that it is done.
    fn serve(server: &mut UnixStream) {
        let mut head = [0; size_of::<transmission::Request>()];
        server.read_exact(&mut head).unwrap();
        let request = transmission::Request::read_from_bytes(&head).unwrap();
        if request.command.get() == Command::WRITE.0 {
            server.read_exact(&mut vec![0; request.length.get() as usize]).unwrap();
        }
        server.write_all(SimpleReply::new(0, request.cookie.get()).as_bytes()).unwrap();
    }

    #[test]
    fn a_flush_may_take_longer_than_the_timeout() {
        let folder = tempfile::tempdir().unwrap();
        let (listener, address) = listen(folder.path(), "socket");
        let flags = export_flags::HAS_FLAGS | export_flags::SEND_FLUSH;
        let mut now = Instant::now();
        let (connection, mut server, peer) =
            connected(&listener, vec![address], flags, TIMEOUT, now);
        let link = Link::main(connection, now);
        let mut state = link.lock();
        let mut run = |op, silence| {
            let mut outcome = Outcome::default();
            state.push(job(op), &peer, now, &mut outcome);
            state.drive(&peer, now, &mut outcome);
            now += silence;
            state.drive(&peer, now, &mut outcome);
            assert!(outcome.ended.is_empty() && state.is_live(), "{op:?}");
            serve(&mut server);
            state.drive(&peer, now, &mut outcome);
            outcome.ended.pop().expect("it has a reply").1
        };
        assert_eq!(run(Op::Write, TIMEOUT / 2), Ok(4096));
        assert_eq!(run(Op::Flush, 10 * TIMEOUT), Ok(0));
        assert_eq!(run(Op::Write, TIMEOUT / 2), Ok(4096));
        // But not for ever.
        let mut outcome = Outcome::default();
        state.push(job(Op::Flush), &peer, now, &mut outcome);
        state.drive(&peer, now, &mut outcome);
        let end = state.deadline(&peer).expect("a reply is due");
        assert_eq!(end - now, 20 * TIMEOUT);
        state.drive(&peer, end, &mut outcome);
        assert!(!state.is_live() && peer.has_lost_writes());
        assert_eq!(outcome.ended.pop().expect("it has failed").1, Err(Errno::IO));
    }

    #[test]
    fn a_lost_connection_is_replaced_at_any_address_within_the_timeout() {
        let folder = tempfile::tempdir().unwrap();
        let (silent, first) = listen(folder.path(), "silent");
        let (good, second) = listen(folder.path(), "good");
        good.set_nonblocking(true).unwrap();
        let begin = Instant::now();
        let (connection, server, peer) = connected(&silent, vec![first, second], 1, TIMEOUT, begin);
        let link = Link::main(connection, begin);
        let mut state = link.lock();
        drop(server);
        let (mut now, mut outcome) = (begin, Outcome::default());
        state.push(job(Op::Read), &peer, now, &mut outcome);
        loop {
            state.drive(&peer, now, &mut outcome);
            assert!(outcome.ended.is_empty() && now < begin + TIMEOUT);
            if good.accept().is_ok() {
                break;
            }
            now = state.deadline(&peer).expect("there are attempts to connect");
        }
        silent.set_nonblocking(true).unwrap();
        silent.accept().expect("the address that had worked came first");
    }
}
