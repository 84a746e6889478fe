//! [`RequestCounters`]: counts of the requests that clients of a served disk make. One thread writes them, without a locked
//! instruction and on cache lines of its own; others read.

use std::ops::{Add, AddAssign};
use std::sync::atomic::{AtomicU64, Ordering};

/// A kind of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestKind {
    /// Bytes of the disk to the client.
    Read,
    /// Bytes of the client to the disk.
    Write,
    /// Bytes that were written become durable.
    Flush,
    /// All others, such as discards.
    Other,
}

/// Counts that one thread writes.
///
/// ```
/// # mod uringfs { pub use uringfs_reactor as reactor; }
/// use uringfs::reactor::{RequestCounters, RequestKind};
///
/// let counters = RequestCounters::default();
/// counters.count(RequestKind::Read, Some(4096));
/// counters.count(RequestKind::Flush, None);
/// let counts = counters.get();
/// assert_eq!((counts.reads, counts.read_bytes, counts.flushes, counts.errors), (1, 4096, 1, 1));
/// ```
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct RequestCounters {
    requests: [AtomicU64; 4],
    read_bytes: AtomicU64,
    written_bytes: AtomicU64,
    errors: AtomicU64,
}

/// The values of [`RequestCounters`]. Failed requests are among those of their kind; their bytes do not count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RequestCounts {
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// Flushes.
    pub flushes: u64,
    /// Other requests.
    pub others: u64,
    /// Bytes that were read.
    pub read_bytes: u64,
    /// Bytes that were written.
    pub written_bytes: u64,
    /// Requests that failed.
    pub errors: u64,
}

impl RequestCounters {
    /// Counts a request that has ended, with the bytes that it has moved; `None` if it failed. Only for the thread that writes.
    pub fn count(&self, kind: RequestKind, bytes: Option<u64>) {
        add(&self.requests[kind as usize], 1);
        match (kind, bytes) {
            (_, None) => add(&self.errors, 1),
            (RequestKind::Read, Some(bytes)) => add(&self.read_bytes, bytes),
            (RequestKind::Write, Some(bytes)) => add(&self.written_bytes, bytes),
            (RequestKind::Flush | RequestKind::Other, Some(_)) => {}
        }
    }

    /// The values of now.
    pub fn get(&self) -> RequestCounts {
        let [reads, writes, flushes, others] =
            [0, 1, 2, 3].map(|kind| self.requests[kind].load(Ordering::Relaxed));
        RequestCounts {
            reads,
            writes,
            flushes,
            others,
            read_bytes: self.read_bytes.load(Ordering::Relaxed),
            written_bytes: self.written_bytes.load(Ordering::Relaxed),
            errors: self.errors.load(Ordering::Relaxed),
        }
    }
}

/// There is no other writer.
fn add(counter: &AtomicU64, number: u64) {
    counter.store(counter.load(Ordering::Relaxed) + number, Ordering::Relaxed);
}

impl Add for RequestCounts {
    type Output = RequestCounts;

    fn add(self, other: RequestCounts) -> RequestCounts {
        RequestCounts {
            reads: self.reads + other.reads,
            writes: self.writes + other.writes,
            flushes: self.flushes + other.flushes,
            others: self.others + other.others,
            read_bytes: self.read_bytes + other.read_bytes,
            written_bytes: self.written_bytes + other.written_bytes,
            errors: self.errors + other.errors,
        }
    }
}

impl AddAssign for RequestCounts {
    fn add_assign(&mut self, other: RequestCounts) {
        *self = *self + other;
    }
}

impl std::iter::Sum for RequestCounts {
    fn sum<I: Iterator<Item = RequestCounts>>(counts: I) -> RequestCounts {
        counts.fold(RequestCounts::default(), Add::add)
    }
}
