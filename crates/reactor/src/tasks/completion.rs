//! Tokens, and what a caller that reaps tokens gets: a [`Completion`], or a [`SubmitError`] at once.

use std::fmt;
use std::io;
use std::mem;

use uringfs_buffer::Buffer;
use uringfs_device::{Errno, Payload, Request, Tag};

/// The caller's name for an operation, by which it recognizes the completion. Below 2^63: larger values are the
/// reactor's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token(u64);

impl Token {
    /// Makes a token of `value`.
    ///
    /// # Panics
    /// When `value` is 2^63 or more.
    #[inline]
    pub const fn new(value: u64) -> Token {
        assert!(value >> 63 == 0, "tokens are below 2^63");
        Token(value)
    }

    /// The token in the tag of a request.
    pub(crate) fn from_tag(tag: Tag) -> Token {
        Token(tag.0)
    }

    /// The value that the caller gave.
    #[inline]
    pub const fn get(self) -> u64 {
        self.0
    }
}

/// The effect of an operation on the device. Matters after a cancel, a deadline or an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing of it has reached the device.
    NotStarted,
    /// It was carried out in full, and its result is `Ok`.
    Done,
    /// Some of it may have reached the device. The range may hold old bytes, new bytes, or a mixture of whole blocks of
    /// both.
    Unknown,
}

impl Effect {
    /// From a result, and whether a queue has had any of the operation's requests.
    pub(crate) fn from_result(result: Result<u64, Errno>, issued: bool) -> Effect {
        match result {
            Ok(_) => Effect::Done,
            Err(_) if issued => Effect::Unknown,
            Err(_) => Effect::NotStarted,
        }
    }
}

/// The completion of an operation that was started by token: its result, its effect and its memory.
pub struct Completion {
    token: Token,
    outcome: Outcome,
    payload: Payload,
}

/// A result and whether a queue has had any of the operation's requests, in one word without padding, so that the
/// compiler keeps a completion in registers: the bytes, or the errno with the highest bit set.
#[derive(Clone, Copy)]
struct Outcome(u64);

impl Outcome {
    const FAILED: u64 = 1 << 63;
    /// Of a failed operation: a queue has had some of its requests.
    const ISSUED: u64 = 1 << 62;

    fn from_request(request: &Request) -> Outcome {
        let issued = if request.is_issued() { Outcome::ISSUED } else { 0 };
        Outcome(match request.result() {
            Ok(bytes) => bytes,
            Err(errno) => Outcome::FAILED | issued | errno.raw_os_error() as u64,
        })
    }

    #[inline(always)]
    fn result(self) -> Result<u64, Errno> {
        if self.0 & Outcome::FAILED == 0 {
            Ok(self.0)
        } else {
            Err(Errno::from_raw_os_error(self.0 as i32))
        }
    }

    fn effect(self) -> Effect {
        Effect::from_result(self.result(), self.0 & Outcome::ISSUED != 0)
    }
}

impl Completion {
    /// From a request that has ended.
    pub(crate) fn from_request(request: Request) -> Completion {
        let outcome = Outcome::from_request(&request);
        Completion { token: Token::from_tag(request.tag), outcome, payload: request.payload }
    }

    /// From a request that moved all bytes of its one buffer in its first step. Field by field, so that the compiler copies
    /// only what the caller uses.
    ///
    /// # Panics
    /// When it has none, or several.
    #[inline(always)]
    pub(crate) fn from_whole_step(request: Request) -> Completion {
        let Request { payload, tag, .. } = request;
        let Payload::Buffer(buffer) = payload else {
            // Not dropped, so that its address is never needed.
            mem::forget(payload);
            unreachable!("the caller has compared the length of the buffer")
        };
        Completion {
            token: Token::from_tag(tag),
            outcome: Outcome(buffer.len() as u64),
            payload: Payload::Buffer(buffer),
        }
    }

    /// The token that the caller gave the operation.
    #[inline]
    pub fn token(&self) -> Token {
        self.token
    }

    /// The bytes moved (of an append: its offset), or the error. After ECANCELED (a cancel) and ETIMEDOUT (a deadline)
    /// [`Self::effect`] says what the operation has done.
    #[inline]
    pub fn result(&self) -> Result<u64, Errno> {
        self.outcome.result()
    }

    /// The effect of the operation on the device.
    pub fn effect(&self) -> Effect {
        self.outcome.effect()
    }

    /// The operation's memory.
    pub fn payload(&self) -> &Payload {
        &self.payload
    }

    /// The operation's memory, which the caller owns again.
    pub fn into_payload(self) -> Payload {
        self.payload
    }

    /// The buffer of an operation that has one.
    ///
    /// # Panics
    /// When it has none, or several.
    #[inline]
    pub fn into_buffer(self) -> Buffer {
        match self.payload {
            Payload::Buffer(buffer) => buffer,
            other => no_buffer(other),
        }
    }
}

impl fmt::Debug for Completion {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Completion")
            .field("token", &self.token())
            .field("result", &self.result())
            .field("effect", &self.effect())
            .field("payload", self.payload())
            .finish()
    }
}

/// Out of line, so that the payload of an operation with one buffer stays in registers.
#[cold]
#[inline(never)]
fn no_buffer(payload: Payload) -> ! {
    panic!("the operation has no single buffer: {payload:?}")
}

/// An operation that could not start. Nothing was done. Returns its memory.
#[derive(Debug)]
#[non_exhaustive]
pub struct SubmitError {
    /// EAGAIN: the queue is full, reap first. ENODEV: the device was removed.
    pub error: Errno,
    /// The operation's memory, which the caller owns again.
    pub payload: Payload,
}

impl SubmitError {
    /// The refusal of an operation with this memory.
    pub fn new(error: Errno, payload: Payload) -> SubmitError {
        SubmitError { error, payload }
    }

    /// The buffer of an operation that has one, as [`Completion::into_buffer`].
    ///
    /// # Panics
    /// When it has none, or several.
    pub fn into_buffer(self) -> Buffer {
        match self.payload {
            Payload::Buffer(buffer) => buffer,
            other => no_buffer(other),
        }
    }
}

impl fmt::Display for SubmitError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.error {
            Errno::AGAIN => out.write_str("the queue is full: reap completions first"),
            Errno::NODEV => out.write_str("the device has been removed"),
            error => write!(out, "the operation cannot start: {error}"),
        }
    }
}

impl std::error::Error for SubmitError {}

/// Keeps kind, message and memory: the [`SubmitError`] is what [`io::Error::get_ref`] returns.
impl From<SubmitError> for io::Error {
    fn from(refused: SubmitError) -> io::Error {
        io::Error::new(io::Error::from(refused.error).kind(), refused)
    }
}
