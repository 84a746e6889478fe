//! The interface of every queue.

use std::os::fd::BorrowedFd;
use std::time::Instant;

use uringfs_errno::Errno;

use crate::request::{Request, StepCompletion, Tag};

/// The time at which a queue will have something to reap.
#[derive(Clone, Copy, Debug)]
pub enum Ready<'a> {
    /// Never: nothing is submitted and unreaped. Requests that are only pushed do not count.
    Never,
    /// Now.
    Now,
    /// As soon as this descriptor is readable (level-triggered).
    Readable(BorrowedFd<'a>),
    /// At this time, by the clock with which the queue was created.
    At(Instant),
    /// As soon as this descriptor is readable, at the latest at this time, by the system's clock.
    ReadableOrAt(BorrowedFd<'a>, Instant),
}

/// Carries the requests of one reactor to one device, or to several.
pub trait Queue {
    /// Takes a request, and may already start it. A full queue returns it as the error.
    fn push(&mut self, request: Request) -> Result<(), Request>;

    /// Starts all pushed requests.
    ///
    /// # Errors
    /// The kernel's error when it accepts no requests at all. Requests that it has not taken stay pushed, for the
    /// next call. A single refused request completes with its own error instead.
    fn submit(&mut self) -> Result<(), Errno>;

    /// A completed step, if there is one. Never waits.
    fn reap(&mut self) -> Option<StepCompletion>;

    /// Requests pushed and not reaped.
    fn in_flight(&self) -> usize;

    /// Asks the kernel or the thread to cancel the requests with this tag, and marks them by [`Request::cancel`],
    /// except for those that a thread has begun to execute. Each still completes exactly once: as done, or with
    /// ECANCELED, EINTR or EAGAIN.
    fn cancel(&mut self, tag: Tag);

    /// When there will be something to reap.
    fn ready(&self) -> Ready<'_>;

    /// The descriptor that [`Self::ready`] returns later, if the queue keeps one for its whole life.
    fn notifier(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// The number of system calls so far to start, execute, reap and cancel requests, in all threads. Those by which the
    /// queue's own threads sleep and are woken count, and so do writes and reads of a notifier; those by which the
    /// caller sleeps do not. A discard or zeroing that the back end of a file executes counts as one call.
    fn system_calls(&self) -> u64;

    /// True when requests take so much longer than calibration measured, and for so long, that the choice of this queue
    /// is due again.
    fn is_slower_than_measured(&self) -> bool {
        false
    }
}
