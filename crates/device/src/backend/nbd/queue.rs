//! The queue of a reactor, or of a thread that performs requests one by one. Its thread does all of its I/O.
//!
//! A queue uses the device's main link. Where the server lets flushes of one connection cover writes of others
//! (`CAN_MULTI_CONN`), a reactor's queue opens a link of its own as well, and uses that one once it is connected. Several
//! queues may drive the main link: each passes on what it receives for others.
//!
//! A flush goes over every connection that has acknowledged writes since its last flush. The protocol would allow to send
//! only one, but a success on another connection does not say that the server was not restarted in between.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::fcntl_dupfd_cloexec;
use uringfs_errno::Errno;

use super::inbox::Inbox;
use super::job::{Flush, Job, Work};
use super::link::{Interest, Link, LinkState, Outcome};
use super::links::Links;
use crate::interface::queue::{Queue, Ready};
use crate::request::{Op, Request, StepCompletion, Tag};

/// The pause before another look at a socket that epoll does not take.
const RECHECK_INTERVAL: Duration = Duration::from_millis(1);

/// A queue.
pub(super) struct NbdQueue {
    links: Arc<Links>,
    inbox: Arc<Inbox>,
    depth: usize,
    pushed: Vec<Request>,
    ended: VecDeque<StepCompletion>,
    /// Requests that links have.
    outstanding: usize,
    uses: Vec<LinkUse>,
    may_have_own_link: bool,
    /// The sockets that this queue waits for, and the inbox.
    epoll: OwnedFd,
    system_calls: Cell<u64>,
}

/// A link that the queue uses.
struct LinkUse {
    link: Arc<Link>,
    kind: UseKind,
    watched: RefCell<Option<Watched>>,
}

/// A duplicate of a connection's socket, which `epoll` watches. It can be taken out of the set after another thread has
/// ended the connection. A closed socket could not, and stays in the set while the child of a fork has it open.
struct Watched {
    socket: OwnedFd,
    generation: u64,
    /// The interest that `epoll` knows.
    interest: Option<Interest>,
}

/// The user of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QueueUser {
    /// A reactor, whose queue may have a link of its own.
    Reactor,
    /// A thread that waits for its requests.
    Thread,
}

/// Why the queue uses a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum UseKind {
    Main,
    Own,
    /// For a flush.
    Foreign,
}

impl NbdQueue {
    /// A queue with at most `depth` requests in flight.
    pub(super) fn new(links: Arc<Links>, depth: usize, user: QueueUser) -> Result<NbdQueue, Errno> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let inbox = Arc::new(Inbox::new()?);
        epoll::add(&epoll, inbox.event(), EventData::new_u64(0), EventFlags::IN)?;
        let main = LinkUse::new(links.main().clone(), UseKind::Main);
        Ok(NbdQueue {
            may_have_own_link: user == QueueUser::Reactor
                && links.peer().allows_several_connections(),
            links,
            inbox,
            depth,
            pushed: Vec::with_capacity(depth),
            ended: VecDeque::new(),
            outstanding: 0,
            uses: vec![main],
            epoll,
            system_calls: Cell::new(0),
        })
    }

    fn submit_pushed(&mut self) {
        if self.pushed.is_empty() {
            return;
        }
        let now = Instant::now();
        self.open_own_link();
        let (mut jobs, mut flushes) = (Vec::with_capacity(self.pushed.len()), Vec::new());
        for request in std::mem::take(&mut self.pushed) {
            match self.links.peer().check(&request) {
                Some(result) => self.ended.push_back(StepCompletion { request, result }),
                None if request.op == Op::Flush => flushes.push(request),
                None => jobs.push(Job::new(Work::Request(request), self.inbox.clone())),
            }
        }
        self.outstanding += jobs.len() + flushes.len();
        let route = self.route();
        self.push_jobs(&route, jobs, now);
        flushes.into_iter().for_each(|request| self.push_flush(request, &route, now));
    }

    /// The link for new requests.
    fn route(&self) -> Arc<Link> {
        let own = self.uses.iter().find(|link_use| link_use.kind == UseKind::Own);
        let live = own.filter(|own| own.link.lock().is_live());
        live.map_or_else(|| self.links.main().clone(), |own| own.link.clone())
    }

    fn open_own_link(&mut self) {
        if std::mem::take(&mut self.may_have_own_link)
            && let Some(link) = self.links.take_extra()
        {
            self.uses.push(LinkUse::new(link, UseKind::Own));
        }
    }

    fn push_jobs(&mut self, link: &Link, jobs: Vec<Job>, now: Instant) {
        let mut outcome = Outcome::default();
        let peer = self.links.peer();
        let mut state = link.lock();
        for job in jobs {
            state.push(job, peer, now, &mut outcome);
        }
        state.drive(peer, now, &mut outcome);
        drop(state);
        self.take(outcome, now);
    }

    fn push_flush(&mut self, request: Request, route: &Arc<Link>, now: Instant) {
        let mut covered = self.links.all();
        covered.retain(|link| link.lock().is_dirty());
        if covered.is_empty() {
            // Writes of other programs are not known.
            covered.push(route.clone());
        }
        let flush = Flush::new(request, covered.len());
        for link in covered {
            if !self.uses.iter().any(|link_use| Arc::ptr_eq(&link_use.link, &link)) {
                self.uses.push(LinkUse::new(link.clone(), UseKind::Foreign));
            }
            let part = Job::new(Work::FlushPart(flush.clone()), self.inbox.clone());
            self.push_jobs(&link, vec![part], now);
        }
    }

    /// Distributes what a link has done.
    fn take(&mut self, outcome: Outcome, now: Instant) {
        let Outcome { ended, returned, to_wake, system_calls } = outcome;
        self.count_calls(system_calls);
        for (job, result) in ended {
            let Some((owner, completion)) = job.end(result) else { continue };
            if Arc::ptr_eq(&owner, &self.inbox) {
                self.outstanding -= 1;
                self.ended.push_back(completion);
            } else {
                owner.post(completion);
            }
        }
        self.wake_others(&to_wake);
        if !returned.is_empty() {
            let owners: Vec<_> = returned.iter().map(|job| job.owner.clone()).collect();
            // The main link returns nothing, so this ends.
            self.push_jobs(&self.links.main().clone(), returned, now);
            self.wake_others(&owners);
        }
    }

    /// Makes other queues look at their links again.
    fn wake_others(&self, owners: &[Arc<Inbox>]) {
        let others = owners.iter().filter(|owner| !Arc::ptr_eq(owner, &self.inbox));
        others.for_each(|owner| owner.wake());
    }

    /// Drives the links that have something for this queue.
    fn drive_links(&mut self) {
        let now = Instant::now();
        for index in 0..self.uses.len() {
            let link = self.uses[index].link.clone();
            let mut outcome = Outcome::default();
            let mut state = link.lock();
            if state.is_held_by(&self.inbox) || self.uses[index].is_connecting(&state) {
                state.drive(self.links.peer(), now, &mut outcome);
            }
            drop(state);
            self.take(outcome, now);
        }
        self.forget_foreign_links();
    }

    /// Flushes of other queues' links have ended.
    fn forget_foreign_links(&mut self) {
        let NbdQueue { uses, epoll, inbox, .. } = self;
        uses.retain(|link_use| {
            if link_use.kind != UseKind::Foreign {
                return true;
            }
            let state = link_use.link.lock();
            let is_used = state.is_held_by(inbox);
            if !is_used {
                let _ = link_use.register(epoll.as_fd(), None, &state);
            }
            is_used
        });
    }

    fn count_calls(&self, calls: u64) {
        self.system_calls.set(self.system_calls.get() + calls);
    }

    /// Takes what other threads have received.
    fn take_inbox(&mut self) {
        if self.inbox.is_signalled() {
            self.outstanding -= self.inbox.take(&mut self.ended);
        }
    }
}

impl LinkUse {
    fn new(link: Arc<Link>, kind: UseKind) -> LinkUse {
        LinkUse { link, kind, watched: RefCell::new(None) }
    }

    /// Whether it is a link of the queue's own that is to be connected.
    fn is_connecting(&self, state: &LinkState) -> bool {
        self.kind == UseKind::Own && !state.is_live()
    }

    /// Makes `epoll` report `wanted`, or nothing.
    fn register(
        &self,
        epoll: BorrowedFd<'_>,
        wanted: Option<(BorrowedFd<'_>, Interest)>,
        state: &LinkState,
    ) -> Result<(), Errno> {
        let generation = state.interest().map(|(_, interest)| interest.generation);
        let mut watched = self.watched.borrow_mut();
        if let Some(mut ended) = watched.take_if(|watched| Some(watched.generation) != generation) {
            ended.watch(epoll, None)?;
        }
        match (&mut *watched, wanted) {
            (Some(watched), wanted) => watched.watch(epoll, wanted.map(|(_, interest)| interest)),
            (None, Some((socket, interest))) => {
                let socket = fcntl_dupfd_cloexec(socket, 0)?;
                let new = Watched { socket, generation: interest.generation, interest: None };
                watched.insert(new).watch(epoll, Some(interest))
            }
            (None, None) => Ok(()),
        }
    }
}

impl Watched {
    fn watch(&mut self, epoll: BorrowedFd<'_>, wanted: Option<Interest>) -> Result<(), Errno> {
        let data = EventData::new_u64(0);
        let flags = |interest: Interest| match interest.to_send {
            true => EventFlags::IN | EventFlags::OUT,
            false => EventFlags::IN,
        };
        match (self.interest, wanted) {
            (old, new) if old == new => {}
            (Some(_), Some(new)) => epoll::modify(epoll, &self.socket, data, flags(new))?,
            (Some(_), None) => epoll::delete(epoll, &self.socket)?,
            (None, Some(new)) => epoll::add(epoll, &self.socket, data, flags(new))?,
            (None, None) => {}
        }
        self.interest = wanted;
        Ok(())
    }
}

impl Queue for NbdQueue {
    fn push(&mut self, request: Request) -> Result<(), Request> {
        if self.in_flight() >= self.depth {
            return Err(request);
        }
        self.pushed.push(request);
        Ok(())
    }

    fn submit(&mut self) -> Result<(), Errno> {
        self.submit_pushed();
        Ok(())
    }

    fn reap(&mut self) -> Option<StepCompletion> {
        if self.ended.is_empty() && self.outstanding > 0 {
            self.take_inbox();
            if self.ended.is_empty() {
                self.drive_links();
            }
        }
        self.ended.pop_front()
    }

    fn in_flight(&self) -> usize {
        self.pushed.len() + self.outstanding + self.ended.len()
    }

    /// A server cannot cancel. So this is for requests that it does not have.
    fn cancel(&mut self, tag: Tag) {
        for request in &mut self.pushed {
            request.cancel_if_tagged(tag);
        }
        let mut outcome = Outcome::default();
        for link_use in &self.uses {
            link_use.link.lock().cancel(&self.inbox, tag, &mut outcome);
        }
        for (job, _) in &mut outcome.ended {
            job.set_cancelled();
        }
        self.take(outcome, Instant::now());
    }

    fn ready(&self) -> Ready<'_> {
        // Without requests, a signal is one that came too late: the next reap takes it.
        if !self.ended.is_empty() || self.outstanding > 0 && self.inbox.is_signalled() {
            return Ready::Now;
        }
        let mut deadline: Option<Instant> = None;
        let mut note = |at: Instant| deadline = Some(deadline.map_or(at, |other| other.min(at)));
        for link_use in &self.uses {
            let state = link_use.link.lock();
            let is_awaited = self.outstanding > 0
                && (state.is_held_by(&self.inbox) || link_use.is_connecting(&state));
            let wanted = state.interest().filter(|_| is_awaited);
            if link_use.register(self.epoll.as_fd(), wanted, &state).is_err() {
                note(Instant::now() + RECHECK_INTERVAL);
            }
            if is_awaited && let Some(at) = state.deadline(self.links.peer()) {
                note(at);
            }
        }
        match deadline {
            _ if self.outstanding == 0 => Ready::Never,
            Some(at) => Ready::ReadableOrAt(self.epoll.as_fd(), at),
            None => Ready::Readable(self.epoll.as_fd()),
        }
    }

    fn system_calls(&self) -> u64 {
        self.system_calls.get()
    }
}

impl Drop for NbdQueue {
    fn drop(&mut self) {
        for link_use in self.uses.drain(..).filter(|link_use| link_use.kind == UseKind::Own) {
            self.links.put_extra(link_use.link);
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use uringfs_buffer::Buffer;

    use super::super::connection::tests::{connected, listen};
    use super::*;
    use crate::index::DeviceIndex;
    use crate::request::Payload;

    const TIMEOUT: Duration = Duration::from_secs(30);

    /// Another thread wakes the holders of a link, and may do so when this queue's last request has ended.
    #[test]
    fn a_signal_after_the_last_request_keeps_no_thread_awake() {
        let folder = tempfile::tempdir().unwrap();
        let (listener, address) = listen(folder.path(), "socket");
        let (connection, _server, peer) =
            connected(&listener, vec![address], 1, TIMEOUT, Instant::now());
        let links = Arc::new(Links::new(peer, connection));
        let queue = NbdQueue::new(links, 1, QueueUser::Reactor).unwrap();
        queue.inbox.wake();
        assert!(matches!(queue.ready(), Ready::Never));
    }

    /// Whether the thread of the queue would wake now.
    fn is_awake(queue: &NbdQueue) -> bool {
        let (Ready::Readable(set) | Ready::ReadableOrAt(set, _)) = queue.ready() else {
            panic!("a request is in flight");
        };
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(&set, PollFlags::IN)], Some(&zero)).unwrap() > 0
    }

    #[test]
    fn a_lost_connection_wakes_nothing_though_a_child_has_its_socket() {
        let folder = tempfile::tempdir().unwrap();
        let (listener, address) = listen(folder.path(), "socket");
        let (connection, server, peer) =
            connected(&listener, vec![address], 1, TIMEOUT, Instant::now());
        let _of_child = connection.socket().try_clone_to_owned().unwrap();
        let links = Arc::new(Links::new(peer, connection));
        let mut queue = NbdQueue::new(links, 1, QueueUser::Reactor).unwrap();
        let payload = Payload::Buffer(Buffer::zeroed(4096));
        let read = Request::new(DeviceIndex::for_tests(0), Op::Read, 0, payload, Tag(0));
        queue.push(read).unwrap();
        queue.submit().unwrap();
        assert!(!is_awake(&queue));
        drop(server);
        assert!(is_awake(&queue));
        listener.set_nonblocking(true).unwrap();
        let _server = loop {
            assert!(queue.reap().is_none());
            if let Ok(server) = listener.accept() {
                break server;
            }
        };
        assert!(!is_awake(&queue), "the new connection is silent");
    }
}
