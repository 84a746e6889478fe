//! What fails of a volume's I/O and metadata, told to everyone who listens: each once, whoever asked for
//! it and whether that waited for the answer or not.

use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::sync::{Arc, Weak};
use std::task::{Poll, Waker};

use parking_lot::Mutex;
use rustix::io::Errno;
use uringfs_device::{Device, Failure, Listener, Op};

use crate::records::inode::InodeNumber;

/// Failures that one listener is kept; then the oldest go.
const MAX_QUEUED_EVENTS: usize = 1024;
/// Failures that everyone is told of who asks afterwards.
const MAX_RECENT_EVENTS: usize = 64;

/// What is said where it is not the volume that has no room.
pub(crate) const DEVICE_FULL: &str =
    "what the volume lies in is full, not the volume; make room there";

/// Something of a volume that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ErrorEvent {
    /// The device answered a request with an error.
    Request {
        /// What the request was of.
        of: Subject,
        /// What it was to do.
        op: Op,
        /// Where on the device it began, in bytes.
        address: u64,
        /// Bytes, those that were done before it failed included; 0 for a flush.
        length: u64,
        /// The device's answer.
        errno: Errno,
    },
    /// Metadata are damaged: a line that says where.
    Damage(String),
    /// The volume was closed, and what was changed since its last good commit is lost: ENOSPC where the catalog had
    /// no room for it, else EIO.
    Lost(Errno),
}

/// What of a volume lies at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// All of it: the request was a flush.
    Device,
    /// The superblock.
    Superblock,
    /// The catalog: names, inodes, extents, free space.
    Catalog,
    /// Bytes of a file that is open or has changes to commit.
    File {
        /// Which.
        inode: InodeNumber,
        /// Where in the file the request began, in bytes.
        offset: u64,
    },
    /// None of these by now: the file was closed, or cut off.
    Unknown,
}

impl fmt::Display for ErrorEvent {
    /// One line.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (of, op, address, length, errno) = match self {
            ErrorEvent::Damage(line) => return out.write_str(line),
            ErrorEvent::Lost(errno) => {
                return write!(out, "closing the volume: what was changed last is lost: {errno}");
            }
            ErrorEvent::Request { of, op, address, length, errno } => {
                (of, op, address, length, errno)
            }
        };
        let op = match op {
            Op::Read => "reading",
            Op::Write => "writing",
            Op::Flush => "flushing",
            Op::Discard => "discarding",
            Op::WriteZeroes => "zeroing",
        };
        match of {
            Subject::Device => write!(out, "{op} the device")?,
            Subject::Superblock => write!(out, "{op} the superblock")?,
            Subject::Catalog => write!(out, "{op} {length} bytes of the catalog")?,
            Subject::File { inode, offset } => {
                write!(out, "{op} {length} bytes of inode {} from {offset} on", inode.0)?;
            }
            Subject::Unknown => write!(out, "{op} {length} bytes")?,
        }
        if *of != Subject::Device {
            write!(out, ", at {address} on the device")?;
        }
        write!(out, ": {errno}")?;
        if self.is_device_full() { write!(out, ": {DEVICE_FULL}") } else { Ok(()) }
    }
}

impl ErrorEvent {
    /// Whether the device had no room, as an image of holes on a file system that is full. Then a file's
    /// ENOSPC is not the volume's, in which nothing need be removed.
    pub fn is_device_full(&self) -> bool {
        matches!(self, ErrorEvent::Request { errno: Errno::NOSPC | Errno::DQUOT, .. })
    }
}

/// A volume that knows what lies in its blocks.
pub(crate) trait OwnerLookup: Send + Sync {
    /// The owner of an address of the device. Looks at every file that is open.
    fn owner_of(&self, address: u64) -> Subject;
}

/// The failures of a volume since this was asked for: see [`Volume::errors`](crate::Volume::errors).
pub struct Errors {
    volume: Weak<dyn OwnerLookup>,
    queue: Arc<EventQueue>,
}

#[derive(Default)]
struct EventQueue {
    state: Mutex<EventQueueState>,
}

#[derive(Default)]
struct EventQueueState {
    events: VecDeque<UnresolvedEvent>,
    missed: u64,
    waker: Option<Waker>,
}

/// A failure of which it is not known yet what lies there: that takes the volume's lock.
#[derive(Clone)]
enum UnresolvedEvent {
    Request(Failure),
    Damage(String),
    Lost(Errno),
}

impl Errors {
    /// The next, if there was one.
    pub fn try_next(&self) -> Option<ErrorEvent> {
        let event = self.queue.state.lock().events.pop_front()?;
        Some(self.resolve(event))
    }

    /// The next, when there is one. One at a time may wait.
    pub async fn next(&self) -> ErrorEvent {
        let event = poll_fn(|context| {
            let mut state = self.queue.state.lock();
            match state.events.pop_front() {
                Some(event) => Poll::Ready(event),
                None => {
                    state.waker = Some(context.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await;
        self.resolve(event)
    }

    /// How many went since they were too many and nobody took them.
    pub fn missed(&self) -> u64 {
        self.queue.state.lock().missed
    }

    fn resolve(&self, event: UnresolvedEvent) -> ErrorEvent {
        resolve(event, self.volume.upgrade().as_deref())
    }
}

fn resolve(event: UnresolvedEvent, volume: Option<&dyn OwnerLookup>) -> ErrorEvent {
    match event {
        UnresolvedEvent::Damage(line) => ErrorEvent::Damage(line),
        UnresolvedEvent::Lost(errno) => ErrorEvent::Lost(errno),
        UnresolvedEvent::Request(Failure { op, address, length, errno }) => {
            let of = match op {
                Op::Flush => Subject::Device,
                _ => volume.map_or(Subject::Unknown, |volume| volume.owner_of(address)),
            };
            ErrorEvent::Request { of, op, address, length, errno }
        }
    }
}

impl fmt::Debug for Errors {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.queue.state.lock();
        write!(out, "Errors: {} to take, {} missed", state.events.len(), state.missed)
    }
}

/// Where failures are put in, for everyone who listens.
#[derive(Default)]
pub(crate) struct Publisher {
    queues: Mutex<Vec<Weak<EventQueue>>>,
    recent: Mutex<VecDeque<UnresolvedEvent>>,
}

impl Publisher {
    /// One that hears of a device's failures.
    pub(crate) fn new(device: &Device) -> Arc<Publisher> {
        let publisher = Arc::<Publisher>::default();
        let listener: Weak<Publisher> = Arc::downgrade(&publisher);
        device.core().listen(listener);
        publisher
    }

    pub(crate) fn publish_damage(&self, line: &str) {
        self.publish(&UnresolvedEvent::Damage(line.to_owned()));
    }

    pub(crate) fn publish_lost(&self, errno: Errno) {
        self.publish(&UnresolvedEvent::Lost(errno));
    }

    fn publish(&self, event: &UnresolvedEvent) {
        match event {
            UnresolvedEvent::Damage(line) => tracing::error!(target: "uringfs", "{line}"),
            UnresolvedEvent::Lost(errno) => tracing::error!(
                target: "uringfs", errno = errno.raw_os_error(), "what was changed last is lost"
            ),
            UnresolvedEvent::Request(Failure { op, address, length, errno }) => tracing::error!(
                target: "uringfs",
                ?op, address, length, errno = errno.raw_os_error(), "the device answered an error"
            ),
        }
        {
            let mut recent = self.recent.lock();
            if recent.len() == MAX_RECENT_EVENTS {
                recent.pop_front();
            }
            recent.push_back(event.clone());
        }
        let queues: Vec<Arc<EventQueue>> =
            self.queues.lock().iter().filter_map(Weak::upgrade).collect();
        for queue in queues {
            let mut state = queue.state.lock();
            if state.events.len() == MAX_QUEUED_EVENTS {
                state.events.pop_front();
                state.missed += 1;
            }
            state.events.push_back(event.clone());
            let waker = state.waker.take();
            drop(state);
            waker.into_iter().for_each(Waker::wake);
        }
    }

    pub(crate) fn subscribe(&self, volume: Weak<dyn OwnerLookup>) -> Errors {
        let queue = Arc::<EventQueue>::default();
        let mut queues = self.queues.lock();
        queues.retain(|queue| queue.strong_count() > 0);
        queues.push(Arc::downgrade(&queue));
        Errors { volume, queue }
    }
}

impl Publisher {
    /// The last failures, since the volume was opened.
    pub(crate) fn recent(&self, volume: &dyn OwnerLookup) -> Vec<ErrorEvent> {
        let recent = self.recent.lock().clone();
        recent.into_iter().map(|event| resolve(event, Some(volume))).collect()
    }
}

impl Listener for Publisher {
    fn failed(&self, failure: Failure) {
        self.publish(&UnresolvedEvent::Request(failure));
    }
}

/// What was found damaged though the volume goes on, a line each.
pub(crate) struct Warnings {
    lines: Vec<String>,
    publisher: Arc<Publisher>,
}

impl Warnings {
    /// Those that were found by opening, of which nobody can have listened.
    pub(crate) fn from_open(lines: Vec<String>, publisher: Arc<Publisher>) -> Warnings {
        Warnings { lines, publisher }
    }

    pub(crate) fn push(&mut self, line: String) {
        self.publisher.publish_damage(&line);
        self.lines.push(line);
    }

    pub(crate) fn lines(&self) -> &[String] {
        &self.lines
    }
}
