//! The interface of every queue.

use std::os::fd::BorrowedFd;
use std::time::Instant;

use rustix::io::Errno;

use crate::request::{Completion, Request, Tag};

/// When a queue that has nothing to reap now will have something.
#[derive(Clone, Copy, Debug)]
pub enum Ready<'a> {
    /// Nothing is in flight.
    Never,
    /// There is something to reap now.
    Now,
    /// When this descriptor becomes readable (level-triggered).
    Readable(BorrowedFd<'a>),
    /// At this time, by the clock the queue was made with.
    At(Instant),
}

/// One reactor's way to one device, or to several.
pub trait Queue {
    /// Takes a request; a full queue gives it back.
    fn push(&mut self, request: Request) -> Result<(), Request>;

    /// Starts everything that was pushed.
    ///
    /// # Errors
    /// The kernel's error when it takes no requests at all; a request that
    /// is refused by itself completes with its error instead.
    fn submit(&mut self) -> Result<(), Errno>;

    /// One finished step, if there is one; never waits.
    fn reap(&mut self) -> Option<Completion>;

    /// Requests pushed and not reaped.
    fn in_flight(&self) -> usize;

    /// Asks for the requests carrying `tag` to end soon. Each still completes,
    /// as done or with ECANCELED, and exactly once.
    fn cancel(&mut self, tag: Tag);

    /// When there will be something to reap.
    fn ready(&self) -> Ready<'_>;

    /// System calls that its requests have taken so far: to start, carry out, take and stop them, in
    /// whichever thread. What a thread takes to sleep and be woken by another is not counted, and a
    /// discard or zeroing that a file's back end carries out counts as one call.
    fn system_calls(&self) -> u64;
}
