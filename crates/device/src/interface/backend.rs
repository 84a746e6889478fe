//! The interface of every back end.

use std::os::fd::BorrowedFd;

use rustix::io::Errno;

use crate::geometry::Geometry;
use crate::interface::queue::Queue;
use crate::request::Request;

/// The access that a device is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reads only.
    Read,
    /// Reads and writes.
    ReadWrite,
}

/// The kernel's way to a back end's bytes.
#[derive(Clone, Copy, Debug)]
pub enum Reach<'a> {
    /// By reading and writing this descriptor.
    Descriptor(BorrowedFd<'a>),
    /// There are no bytes: a request is the kernel's NOP.
    Nothing,
    /// Not at all: the bytes are this process's.
    Call,
}

/// A place for bytes. The queues call it from any thread.
pub trait Backend: Send + Sync + 'static {
    /// Its geometry; the same at every call.
    fn geometry(&self) -> &Geometry;

    /// Its description, for people: `file /a/b`, `memory 1 GiB`.
    fn description(&self) -> String;

    /// The kernel's way to it.
    fn reach(&self) -> Reach<'_>;

    /// Does the next step of `request`, from its `done` on, in the calling
    /// thread, and answers the bytes moved; fewer than asked is allowed.
    fn perform(&self, request: &mut Request) -> Result<u32, Errno>;

    /// A queue of its own, for a back end that decides itself when requests
    /// complete. The other queues then do not serve it.
    fn own_queue(&self, _depth: usize) -> Option<Box<dyn Queue>> {
        None
    }
}
