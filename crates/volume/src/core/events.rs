//! Errors of a volume's I/O and metadata, as events for every subscriber. Each error is one event, whichever
//! operation met it, and even if no caller waits for that operation.

use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::sync::{Arc, Weak};
use std::task::{Poll, Waker};

use parking_lot::Mutex;
use uringfs_device::{Device, Errno, Failure, FailureListener, Op};

use crate::records::inode::InodeNumber;

/// Events that one subscriber's queue holds; then the oldest are dropped.
const MAX_QUEUED_EVENTS: usize = 1024;
/// Events that are kept for [`Publisher::recent`].
const MAX_RECENT_EVENTS: usize = 64;

/// Added to ENOSPC where the device is full, not the volume.
pub(crate) const DEVICE_FULL: &str =
    "the device or file system below the volume is full, not the volume; free space there";

/// An error of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorEvent {
    /// The device failed a request.
    #[non_exhaustive]
    Request {
        /// The owner of the bytes that the request read or wrote.
        owner: BlockOwner,
        /// The operation.
        op: Op,
        /// The device address where the request began, in bytes.
        address: u64,
        /// Bytes, including any that were moved before the failure; 0 for a flush.
        length: u64,
        /// The error that the device returned.
        errno: Errno,
    },
    /// Damaged metadata: one line that says where.
    Damage(String),
    /// The device has become too small for the volume, which is read-only from now on: one line that says what to do.
    DeviceShrunk(String),
    /// The volume was closed and lost everything since its last successful commit: ENOSPC if the catalog was full,
    /// else EIO.
    Lost(Errno),
}

/// The owner of a device address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BlockOwner {
    /// The whole device: the request was a flush.
    Device,
    /// The superblock.
    Superblock,
    /// The catalog: names, inodes, extents, free space.
    Catalog,
    /// A file that is open or has uncommitted changes.
    File {
        /// The file.
        inode: InodeNumber,
        /// The offset in the file, in bytes.
        offset: u64,
    },
    /// Unknown by now: the file was closed or truncated.
    Unknown,
}

impl fmt::Display for ErrorEvent {
    /// One line.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (owner, op, address, length, errno) = match self {
            ErrorEvent::Damage(line) | ErrorEvent::DeviceShrunk(line) => {
                return out.write_str(line);
            }
            ErrorEvent::Lost(errno) => {
                return write!(out, "closing the volume: the last changes are lost: {errno}");
            }
            ErrorEvent::Request { owner, op, address, length, errno } => {
                (owner, op, address, length, errno)
            }
        };
        let op = match op {
            Op::Read => "reading",
            Op::Write => "writing",
            Op::Flush => "flushing",
            Op::Discard => "discarding",
            Op::WriteZeroes => "zeroing",
        };
        match owner {
            BlockOwner::Device => write!(out, "{op} the device")?,
            BlockOwner::Superblock => write!(out, "{op} the superblock")?,
            BlockOwner::Catalog => write!(out, "{op} {length} bytes of the catalog")?,
            BlockOwner::File { inode, offset } => {
                write!(out, "{op} {length} bytes of inode {} from {offset} on", inode.0)?;
            }
            BlockOwner::Unknown => write!(out, "{op} {length} bytes")?,
        }
        if *owner != BlockOwner::Device {
            write!(out, ", at {address} on the device")?;
        }
        write!(out, ": {errno}")?;
        if self.is_device_full() { write!(out, ": {DEVICE_FULL}") } else { Ok(()) }
    }
}

impl ErrorEvent {
    /// True if the device had no space, for example a sparse image on a full file system. Then ENOSPC of a file is
    /// not the volume's, and removing files does not help.
    pub fn is_device_full(&self) -> bool {
        matches!(self, ErrorEvent::Request { errno: Errno::NOSPC | Errno::DQUOT, .. })
    }
}

/// A volume that knows the owners of its blocks.
pub(crate) trait OwnerLookup: Send + Sync {
    /// The owner of a device address. Searches every open file.
    fn owner_of(&self, address: u64) -> BlockOwner;
}

/// A stream of a volume's errors, from its creation on: see [`Volume::errors`](crate::Volume::errors).
pub struct EventStream {
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

/// An event without its owner: finding that takes the volume's lock.
#[derive(Clone)]
enum UnresolvedEvent {
    Request(Failure),
    Damage(String),
    DeviceShrunk(String),
    Lost(Errno),
}

impl EventStream {
    /// The next event, if there is one.
    pub fn try_next(&self) -> Option<ErrorEvent> {
        let event = self.queue.state.lock().events.pop_front()?;
        Some(self.resolve(event))
    }

    /// Waits for the next event. One task at a time may wait.
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

    /// Events that were dropped because the queue was full.
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
        UnresolvedEvent::DeviceShrunk(line) => ErrorEvent::DeviceShrunk(line),
        UnresolvedEvent::Lost(errno) => ErrorEvent::Lost(errno),
        UnresolvedEvent::Request(Failure { op, address, length, errno }) => {
            let owner = match op {
                Op::Flush => BlockOwner::Device,
                _ => volume.map_or(BlockOwner::Unknown, |volume| volume.owner_of(address)),
            };
            ErrorEvent::Request { owner, op, address, length, errno }
        }
    }
}

impl fmt::Debug for EventStream {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.queue.state.lock();
        write!(out, "EventStream: {} queued, {} missed", state.events.len(), state.missed)
    }
}

/// Distributes events to all subscribers.
#[derive(Default)]
pub(crate) struct Publisher {
    queues: Mutex<Vec<Weak<EventQueue>>>,
    recent: Mutex<VecDeque<UnresolvedEvent>>,
}

impl Publisher {
    /// A publisher of a device's failures.
    pub(crate) fn new(device: &Device) -> Arc<Publisher> {
        let publisher = Arc::<Publisher>::default();
        let listener: Weak<Publisher> = Arc::downgrade(&publisher);
        device.core().add_listener(listener);
        publisher
    }

    pub(crate) fn publish_damage(&self, line: &str) {
        self.publish(&UnresolvedEvent::Damage(line.to_owned()));
    }

    pub(crate) fn publish_shrunk(&self, line: &str) {
        self.publish(&UnresolvedEvent::DeviceShrunk(line.to_owned()));
    }

    pub(crate) fn publish_lost(&self, errno: Errno) {
        self.publish(&UnresolvedEvent::Lost(errno));
    }

    fn publish(&self, event: &UnresolvedEvent) {
        match event {
            UnresolvedEvent::Damage(line) => {
                tracing::error!(target: "uringfs", event = "volume_damaged", "{line}");
            }
            UnresolvedEvent::DeviceShrunk(line) => {
                tracing::error!(target: "uringfs", event = "device_shrunk", "{line}");
            }
            UnresolvedEvent::Lost(errno) => tracing::error!(
                target: "uringfs",
                event = "changes_lost", errno = errno.raw_os_error(), "the last changes are lost"
            ),
            UnresolvedEvent::Request(Failure { op, address, length, errno }) => tracing::error!(
                target: "uringfs",
                event = "device_failed",
                ?op, address, length, errno = errno.raw_os_error(), "the device failed a request"
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

    pub(crate) fn subscribe(&self, volume: Weak<dyn OwnerLookup>) -> EventStream {
        let queue = Arc::<EventQueue>::default();
        let mut queues = self.queues.lock();
        queues.retain(|queue| queue.strong_count() > 0);
        queues.push(Arc::downgrade(&queue));
        EventStream { volume, queue }
    }
}

impl Publisher {
    /// The last events since the volume was opened.
    pub(crate) fn recent(&self, volume: &dyn OwnerLookup) -> Vec<ErrorEvent> {
        let recent = self.recent.lock().clone();
        recent.into_iter().map(|event| resolve(event, Some(volume))).collect()
    }
}

impl FailureListener for Publisher {
    fn on_failure(&self, failure: Failure) {
        self.publish(&UnresolvedEvent::Request(failure));
    }
}

/// Damage that the volume was able to continue after, one line each.
pub(crate) struct Warnings {
    lines: Vec<String>,
    publisher: Arc<Publisher>,
}

impl Warnings {
    /// Warnings of opening a volume. They are not published, since there are no subscribers yet.
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
