//! Operations by token, for servers, benchmarks and foreign event loops.
//!
//! A transfer that is one device request is pushed at once; cached bytes are returned at once; everything
//! else starts as a task.

use uringfs_buffer::Buffer;
use uringfs_device::{Durability, Op, Payload, Tag};
use uringfs_reactor::{Asker, Counter, Reactor, Refused, Token, Unpushed};

use rustix::io::Errno;

use crate::api::operation::Ask;
use crate::api::request::{FileRequest, OpKind, attach_first};
use crate::buffered::read as buffered;
use crate::direct::fast_path;
use crate::map::refusal::Refusal;
use crate::state::file::File;

/// Operations by token, for servers, benchmarks and foreign event loops. [`Reactor::reap`] returns the
/// completions.
pub trait Tokens {
    /// Reads into `buffer` at `offset`.
    ///
    /// # Errors
    /// EAGAIN when as much is in flight as the reactor's depth allows, or when
    /// the kernel takes no more before something is reaped; ENODEV when the
    /// device is gone. Each gives the buffer back.
    fn read(&self, file: &File, buffer: Buffer, offset: u64, token: Token) -> Result<(), Refused>;

    /// Writes `buffer` at `offset`.
    ///
    /// # Errors
    /// As [`Self::read`].
    fn write(&self, file: &File, buffer: Buffer, offset: u64, token: Token) -> Result<(), Refused>;

    /// Starts any operation of a file.
    ///
    /// # Errors
    /// As [`Self::read`].
    fn start<R>(&self, op: Ask<R>, token: Token) -> Result<(), Refused>;
}

impl Tokens for Reactor {
    #[inline(always)]
    fn read(&self, file: &File, buffer: Buffer, offset: u64, token: Token) -> Result<(), Refused> {
        let handle = &*file.handle;
        let inner = self.inner();
        let place = |buffer: &Buffer| fast_path::read(handle, buffer, offset);
        let tag = Tag(token.get());
        match inner.push_simple(handle.index, Op::Read, buffer, tag, place) {
            Ok(()) => {
                inner.count(Counter::SimpleTaken);
                Ok(())
            }
            Err(unpushed) => match read_unpushed(self, file, unpushed, offset, token) {
                Ok(()) => Ok(()),
                Err(refused) => Err(refused),
            },
        }
    }

    #[inline(always)]
    fn write(&self, file: &File, buffer: Buffer, offset: u64, token: Token) -> Result<(), Refused> {
        let handle = &*file.handle;
        let inner = self.inner();
        let place = |buffer: &Buffer| fast_path::write(handle, buffer, offset);
        let tag = Tag(token.get());
        match inner.push_simple(handle.index, Op::Write, buffer, tag, place) {
            Ok(()) => {
                inner.count(Counter::WriteShared);
                Ok(())
            }
            Err(unpushed) => match write_unpushed(self, file, unpushed, offset, token) {
                Ok(()) => Ok(()),
                Err(refused) => Err(refused),
            },
        }
    }

    fn start<R>(&self, op: Ask<R>, token: Token) -> Result<(), Refused> {
        let FileRequest { file, kind, payload, offset, deadline } = op.into_request();
        match (kind, payload, deadline) {
            (OpKind::Read, Payload::Buffer(buffer), None) => {
                self.read(&file, buffer, offset, token)
            }
            (OpKind::Write(Durability::Volatile), Payload::Buffer(buffer), None) => {
                self.write(&file, buffer, offset, token)
            }
            (kind, payload, deadline) => {
                let request = FileRequest { file, kind, payload, offset, deadline };
                request.count_refusal(self.inner());
                request.start(self.inner(), Asker::Token(token))
            }
        }
    }
}

#[inline(never)]
fn read_unpushed(
    reactor: &Reactor,
    file: &File,
    unpushed: Unpushed<Refusal>,
    offset: u64,
    token: Token,
) -> Result<(), Refused> {
    let (mut buffer, refusal) = match unpushed {
        Unpushed::NoPlace(buffer, refusal) => (buffer, refusal),
        Unpushed::NoRoom(buffer) => {
            return retry_attached(reactor, file, buffer, |buffer| {
                reactor.read(file, buffer, offset, token)
            });
        }
    };
    let (inner, handle) = (reactor.inner(), &*file.handle);
    if let Some(read) = buffered::read_now(handle, &mut buffer, offset) {
        inner.count(Counter::CacheHit);
        inner.answer(handle.index, token, buffer, read as u64);
        return Ok(());
    }
    fast_path::count_refusal(inner, handle, refusal);
    start_task(reactor, file, OpKind::Read, buffer, offset, token)
}

#[inline(never)]
fn write_unpushed(
    reactor: &Reactor,
    file: &File,
    unpushed: Unpushed<Refusal>,
    offset: u64,
    token: Token,
) -> Result<(), Refused> {
    match unpushed {
        Unpushed::NoPlace(buffer, _) => {
            let kind = OpKind::Write(Durability::Volatile);
            start_task(reactor, file, kind, buffer, offset, token)
        }
        Unpushed::NoRoom(buffer) => retry_attached(reactor, file, buffer, |buffer| {
            reactor.write(file, buffer, offset, token)
        }),
    }
}

/// Tries again where the first use of the device on this reactor has attached it just now. EAGAIN where the
/// queue is full.
fn retry_attached(
    reactor: &Reactor,
    file: &File,
    buffer: Buffer,
    again: impl FnOnce(Buffer) -> Result<(), Refused>,
) -> Result<(), Refused> {
    match attach_first(reactor.inner(), &file.handle) {
        Ok(true) => again(buffer),
        Ok(false) => Err(Refused { error: Errno::AGAIN, payload: Payload::Buffer(buffer) }),
        Err(error) => Err(Refused { error, payload: Payload::Buffer(buffer) }),
    }
}

/// The slow path of a transfer. Inlined where the kind is known, so that it is not asked twice; clones the
/// file only for a request that is admitted.
#[inline(always)]
fn start_task(
    reactor: &Reactor,
    file: &File,
    kind: OpKind,
    buffer: Buffer,
    offset: u64,
    token: Token,
) -> Result<(), Refused> {
    let (inner, payload) = (reactor.inner(), Payload::Buffer(buffer));
    match inner.admit(&file.handle.core) {
        Ok(admitted) => {
            let file = file.clone();
            let request = FileRequest { file, kind, payload, offset, deadline: None };
            request.start_admitted(inner, admitted, Asker::Token(token));
            Ok(())
        }
        Err(error) => Err(Refused { error, payload }),
    }
}
