//! Operations by token, for servers, benchmarks and foreign event loops.
//!
//! A transfer that is one device request is pushed at once; cached bytes are returned at once; everything
//! else starts as a task.

use std::rc::Rc;

use uringfs_buffer::Buffer;
use uringfs_device::{Durability, Errno, Op, Payload, Tag};
use uringfs_reactor::{
    Counter, Locate, PushError, Reactor, ReactorCore, Requester, SubmitError, Token,
};

use crate::api::operation::{BufferOutput, FileOp};
use crate::api::request::{FileRequest, OpKind, ensure_attached};
use crate::buffered::read as buffered;
use crate::direct::fast_path;
use crate::state::file::{File, FileHandle};

/// Operations by token, for servers, benchmarks and foreign event loops. [`Reactor::reap`] returns the
/// completions.
pub trait Tokens {
    /// Reads into `buffer` at `offset`.
    ///
    /// # Errors
    /// EAGAIN when as much is in flight as the reactor's depth allows, or when
    /// the kernel takes no more before something is reaped; ENODEV when the
    /// device is gone. Each gives the buffer back.
    fn read_at(
        &self,
        file: &File,
        buffer: Buffer,
        offset: u64,
        token: Token,
    ) -> Result<(), SubmitError>;

    /// Writes `buffer` at `offset`.
    ///
    /// # Errors
    /// As [`Self::read_at`].
    fn write_at(
        &self,
        file: &File,
        buffer: Buffer,
        offset: u64,
        token: Token,
    ) -> Result<(), SubmitError>;

    /// [`Self::read_at`] for several reads of one file, each with its buffer, its offset and its token. Stops at the
    /// first that is refused, and returns the refusal with the number of those before it.
    ///
    /// For callers in other languages, which pay for each call: in a loop of Rust it gains little over single reads.
    #[doc(hidden)]
    fn read_each(
        &self,
        file: &File,
        reads: &mut impl Iterator<Item = (Buffer, u64, Token)>,
    ) -> (usize, Option<SubmitError>);

    /// The same for writes.
    #[doc(hidden)]
    fn write_each(
        &self,
        file: &File,
        writes: &mut impl Iterator<Item = (Buffer, u64, Token)>,
    ) -> (usize, Option<SubmitError>);

    /// Starts any operation of a file: `reactor.start(file.sync_all(), token)`.
    ///
    /// # Errors
    /// As [`Self::read_at`]. ECANCELED for an operation that was cancelled before; EINVAL for memory that is too long.
    ///
    /// # Panics
    /// If the operation has been polled before.
    fn start<R: BufferOutput>(&self, op: FileOp<R>, token: Token) -> Result<(), SubmitError>;
}

impl Tokens for Reactor {
    #[inline(always)]
    fn read_at(
        &self,
        file: &File,
        buffer: Buffer,
        offset: u64,
        token: Token,
    ) -> Result<(), SubmitError> {
        read(self.inner(), file, buffer, offset, token)
    }

    #[inline(always)]
    fn write_at(
        &self,
        file: &File,
        buffer: Buffer,
        offset: u64,
        token: Token,
    ) -> Result<(), SubmitError> {
        write(self.inner(), file, Durability::Volatile, buffer, offset, token)
    }

    #[inline(always)]
    fn read_each(
        &self,
        file: &File,
        reads: &mut impl Iterator<Item = (Buffer, u64, Token)>,
    ) -> (usize, Option<SubmitError>) {
        let (reactor, handle) = (self.inner(), &*file.handle);
        let mut requests = reads.map(|(buffer, offset, token)| {
            (buffer, Tag(token.get()), fast_path::LocateReadOfSeveral { handle, offset })
        });
        let alone = |buffer, locate: fast_path::LocateReadOfSeveral<'_>, tag| {
            read_alone(reactor, file, buffer, locate.offset, tag)
        };
        push_each(reactor, handle, (Op::Read, Counter::FastPathTaken), &mut requests, alone)
    }

    #[inline(always)]
    fn write_each(
        &self,
        file: &File,
        writes: &mut impl Iterator<Item = (Buffer, u64, Token)>,
    ) -> (usize, Option<SubmitError>) {
        let (reactor, handle) = (self.inner(), &*file.handle);
        let mut requests = writes.map(|(buffer, offset, token)| {
            (buffer, Tag(token.get()), fast_path::LocateWrite { handle, offset })
        });
        let alone = |buffer, locate: fast_path::LocateWrite<'_>, tag| {
            write_alone(reactor, file, buffer, locate.offset, tag)
        };
        push_each(reactor, handle, (Op::Write, Counter::WriteUnlocked), &mut requests, alone)
    }

    fn start<R: BufferOutput>(&self, op: FileOp<R>, token: Token) -> Result<(), SubmitError> {
        let FileRequest { file, kind, payload, offset, deadline } = op.into_request()?;
        match (kind, payload, deadline) {
            (OpKind::Read, Payload::Buffer(buffer), None) => {
                self.read_at(&file, buffer, offset, token)
            }
            (OpKind::Write(durability), Payload::Buffer(buffer), None) => {
                write(self.inner(), &file, durability, buffer, offset, token)
            }
            (kind, payload, deadline) => {
                let request = FileRequest { file, kind, payload, offset, deadline };
                request.count_refusal(self.inner());
                request.start(self.inner(), Requester::Token(token))
            }
        }
    }
}

/// Pushes requests to the file's device, and counts them. `alone` starts the one that cannot be pushed with others. Returns
/// how many have begun, and the first that was refused.
#[inline(always)]
fn push_each<L: Locate + Copy>(
    reactor: &ReactorCore,
    handle: &FileHandle,
    (op, counter): (Op, Counter),
    requests: &mut impl Iterator<Item = (Buffer, Tag, L)>,
    alone: impl Fn(Buffer, L, Tag) -> Result<(), SubmitError>,
) -> (usize, Option<SubmitError>) {
    let mut begun = 0;
    loop {
        let (pushed, next) = reactor.push_fast_each(handle.index, op, requests);
        reactor.count_many(counter, pushed as u64);
        begun += pushed;
        let Some((buffer, tag, locate)) = next else { return (begun, None) };
        match alone(buffer, locate, tag) {
            Ok(()) => begun += 1,
            Err(refusal) => return (begun, Some(refusal)),
        }
    }
}

/// [`Tokens::read_at`] on this reactor.
#[inline(always)]
pub(crate) fn read(
    reactor: &Rc<ReactorCore>,
    file: &File,
    buffer: Buffer,
    offset: u64,
    token: Token,
) -> Result<(), SubmitError> {
    let handle = &*file.handle;
    let locate = fast_path::LocateRead { reactor, handle, offset };
    let tag = Tag(token.get());
    let read = (Op::Read, Durability::Volatile);
    match reactor.push_fast(handle.index, read, buffer, tag, locate) {
        Ok(()) => {
            reactor.count(Counter::FastPathTaken);
            Ok(())
        }
        Err(unpushed) => match read_unpushed(reactor, file, unpushed, offset, token) {
            Ok(()) => Ok(()),
            Err(refused) => Err(refused),
        },
    }
}

/// [`Tokens::write_at`] on this reactor, or a durable write.
#[inline(always)]
pub(crate) fn write(
    reactor: &Rc<ReactorCore>,
    file: &File,
    durability: Durability,
    buffer: Buffer,
    offset: u64,
    token: Token,
) -> Result<(), SubmitError> {
    let handle = &*file.handle;
    let (write, tag) = ((Op::Write, durability), Tag(token.get()));
    let pushed = match durability {
        Durability::Volatile => {
            let locate = fast_path::LocateWrite { handle, offset };
            reactor.push_fast(handle.index, write, buffer, tag, locate)
        }
        Durability::Durable => {
            let locate = fast_path::LocateDurableWrite { handle, offset };
            reactor.push_fast(handle.index, write, buffer, tag, locate)
        }
    };
    match pushed {
        Ok(()) => {
            reactor.count(Counter::WriteUnlocked);
            Ok(())
        }
        Err(unpushed) => match write_unpushed(reactor, file, durability, unpushed, offset, token) {
            Ok(()) => Ok(()),
            Err(refused) => Err(refused),
        },
    }
}

/// A read that could not be pushed with others.
#[cold]
#[inline(never)]
fn read_alone(
    reactor: &Rc<ReactorCore>,
    file: &File,
    buffer: Buffer,
    offset: u64,
    tag: Tag,
) -> Result<(), SubmitError> {
    read(reactor, file, buffer, offset, Token::new(tag.0))
}

/// A write that could not be pushed with others.
#[cold]
#[inline(never)]
fn write_alone(
    reactor: &Rc<ReactorCore>,
    file: &File,
    buffer: Buffer,
    offset: u64,
    tag: Tag,
) -> Result<(), SubmitError> {
    write(reactor, file, Durability::Volatile, buffer, offset, Token::new(tag.0))
}

#[inline(never)]
fn read_unpushed(
    reactor: &Rc<ReactorCore>,
    file: &File,
    unpushed: PushError,
    offset: u64,
    token: Token,
) -> Result<(), SubmitError> {
    let mut buffer = match unpushed {
        PushError::NotEligible(buffer) => buffer,
        PushError::QueueFull(buffer) => {
            return attach_and_retry(reactor, file, buffer, |buffer| {
                read(reactor, file, buffer, offset, token)
            });
        }
    };
    let handle = &*file.handle;
    let lookup = buffered::LookupKind::Lockless;
    if let Some(read) = buffered::read_now(handle, &mut buffer, offset, lookup) {
        reactor.count(Counter::CacheHit);
        reactor.complete_now(handle.index, token, buffer, read as u64);
        return Ok(());
    }
    start_task(reactor, file, OpKind::Read, buffer, offset, token)
}

#[inline(never)]
fn write_unpushed(
    reactor: &Rc<ReactorCore>,
    file: &File,
    durability: Durability,
    unpushed: PushError,
    offset: u64,
    token: Token,
) -> Result<(), SubmitError> {
    match unpushed {
        PushError::NotEligible(buffer) => {
            start_task(reactor, file, OpKind::Write(durability), buffer, offset, token)
        }
        PushError::QueueFull(buffer) => attach_and_retry(reactor, file, buffer, |buffer| {
            write(reactor, file, durability, buffer, offset, token)
        }),
    }
}

/// Attaches the device if this reactor has not, and tries again. If it was attached the queue is full: EAGAIN.
fn attach_and_retry(
    reactor: &ReactorCore,
    file: &File,
    buffer: Buffer,
    again: impl FnOnce(Buffer) -> Result<(), SubmitError>,
) -> Result<(), SubmitError> {
    match ensure_attached(reactor, &file.handle) {
        Ok(true) => again(buffer),
        Ok(false) => Err(SubmitError::new(Errno::AGAIN, Payload::Buffer(buffer))),
        Err(error) => Err(SubmitError::new(error, Payload::Buffer(buffer))),
    }
}

/// The slow path of a transfer. Inlined where the kind is known, so that it is matched once. Clones the file only
/// for a request that is admitted.
#[inline(always)]
fn start_task(
    reactor: &Rc<ReactorCore>,
    file: &File,
    kind: OpKind,
    buffer: Buffer,
    offset: u64,
    token: Token,
) -> Result<(), SubmitError> {
    let payload = Payload::Buffer(buffer);
    match reactor.admit_operation(&file.handle.device_inner) {
        Ok(permit) => {
            let file = file.clone();
            let request = FileRequest { file, kind, payload, offset, deadline: None };
            request.start_admitted(reactor, permit, Requester::Token(token));
            Ok(())
        }
        Err(error) => Err(SubmitError::new(error, payload)),
    }
}
