//! What whoever asked gets back.

use std::fmt;

use rustix::io::Errno;
use uringfs_buffer::Buffer;
use uringfs_device::{Payload, Request};

/// A name that the caller gives an operation, to know it by when it completes.
/// Values from 2^63 on are the reactor's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token(u64);

impl Token {
    /// A token.
    ///
    /// # Panics
    /// From 2^63 on.
    #[inline]
    pub const fn new(value: u64) -> Token {
        assert!(value >> 63 == 0, "tokens are below 2^63");
        Token(value)
    }

    /// Its value.
    #[inline]
    pub const fn get(self) -> u64 {
        self.0
    }
}

/// What became of an operation, which matters when it was cancelled or late.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Nothing of it has reached the device.
    NotStarted,
    /// It was carried out in full; `result` is its own.
    Done,
    /// Some of it has reached the device, and it is not known which: the range
    /// may hold old bytes, new bytes, or a mixture of whole blocks of both.
    Unknown,
}

impl Fate {
    /// Of what ended so, some of it `issued` to a queue or not.
    pub(crate) fn from_result(result: Result<u64, Errno>, issued: bool) -> Fate {
        match result {
            Ok(_) => Fate::Done,
            Err(_) if issued => Fate::Unknown,
            Err(_) => Fate::NotStarted,
        }
    }
}

/// The end of an operation: the cache line that its request lived in, handed on
/// as it is.
pub struct Completed {
    request: Request,
}

impl Completed {
    /// A request that has ended.
    #[inline(always)]
    pub(crate) fn from_request(request: Request) -> Completed {
        Completed { request }
    }

    /// The caller's name for the operation.
    #[inline]
    pub fn token(&self) -> Token {
        Token(self.request.tag.0)
    }

    /// Bytes moved, or the error. ECANCELED and ETIMEDOUT are answers to a
    /// cancel and a deadline; [`Self::fate`] then says what became of it.
    #[inline]
    pub fn result(&self) -> Result<u64, Errno> {
        self.request.result()
    }

    /// What became of it.
    pub fn fate(&self) -> Fate {
        Fate::from_result(self.request.result(), self.request.is_issued())
    }

    /// The memory.
    pub fn payload(&self) -> &Payload {
        &self.request.payload
    }

    /// The memory, back in the caller's hands.
    pub fn into_payload(self) -> Payload {
        self.request.payload
    }

    /// The buffer of an operation that had one.
    ///
    /// # Panics
    /// When it had none, or several.
    #[inline]
    pub fn into_buffer(self) -> Buffer {
        match self.request.payload {
            Payload::Buffer(buffer) => buffer,
            other => no_buffer(other),
        }
    }
}

impl fmt::Debug for Completed {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Completed")
            .field("token", &self.token())
            .field("result", &self.result())
            .field("fate", &self.fate())
            .field("payload", self.payload())
            .finish()
    }
}

/// Apart, so that the payload of an operation that has one stays in registers.
#[cold]
#[inline(never)]
fn no_buffer(payload: Payload) -> ! {
    panic!("the operation had no single buffer: {payload:?}")
}

/// An operation that was refused before anything was done, with its memory.
#[derive(Debug)]
pub struct Refused {
    /// EAGAIN: the queue is full, reap first. ENODEV: the device is gone.
    pub error: Errno,
    /// The memory, back in the caller's hands.
    pub payload: Payload,
}

impl fmt::Display for Refused {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.error {
            Errno::AGAIN => out.write_str("the queue is full: reap completions first"),
            Errno::NODEV => out.write_str("the device has been removed"),
            error => write!(out, "refused: {error}"),
        }
    }
}

impl std::error::Error for Refused {}
