//! The operations of a file: awaited, or started by token on a reactor.
//!
//! Both build the same [`Ask`]. A small read or write takes the fast path; everything else becomes an operation
//! of the reactor.

use std::marker::PhantomData;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use rustix::io::Errno;
use uringfs_buffer::Buffer;
use uringfs_device::{Durability, Op, Payload, Tag};
use uringfs_reactor::{
    Admitted, Asker, Counter, Fate, Inner, Outcome, OutcomeCell, OutcomeSender, Reactor, Refused,
    Remote, Token, Unpushed, current, service,
};

use crate::buffered::{read as buffered, write as buffered_write};
use crate::direct::fallocate::{self, FallocateMode, Size};
use crate::direct::fast_path;
use crate::direct::{append, atomic_write, read as direct_read, write as direct};
use crate::map::mapping::Durable;
use crate::state::cache_handle::Advice;
use crate::state::file::{File, FileHandle};
use crate::state::lock::WriteLock;
use crate::writeback::runs;
use crate::writeback::sync;

/// The kind of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OpKind {
    Read,
    /// A buffered read on this reactor, whatever `buffered.wait` says.
    ReadOnReactor,
    Write(Durability),
    WriteAtomic,
    Append(Durability),
    Sync(Durable),
    /// Makes a range durable.
    SyncRange,
    /// Writes dirty folios back.
    WriteBack,
    Discard,
    WriteZeroes,
    SetSize,
    Fallocate(FallocateMode),
    Advise(Advice),
}

/// An operation of a file that has not started: await it, or pass it to [`Tokens::start`]. `R` is its output.
///
/// If the reactor ends before the operation, or its own code panics, the result is EIO with an empty buffer. In
/// the child of a fork, an operation that the parent started ends so with ECHILD.
#[must_use = "nothing happens until it is awaited or started"]
pub struct Ask<R> {
    file: File,
    kind: OpKind,
    payload: Option<Payload>,
    offset: u64,
    deadline: Option<Instant>,
    started: Option<(OutcomeCell, Option<Remote>)>,
    output: PhantomData<fn() -> R>,
}

impl File {
    /// Reads into `buffer` at `offset`: fewer bytes at the end of the file.
    pub fn read(&self, buffer: Buffer, offset: u64) -> Ask<(Buffer, Result<usize, Errno>)> {
        self.op(OpKind::Read, Payload::Buffer(buffer), offset)
    }

    /// Reads into several buffers, one after the other.
    pub fn read_vectored(
        &self,
        buffers: Vec<Buffer>,
        offset: u64,
    ) -> Ask<(Vec<Buffer>, Result<usize, Errno>)> {
        self.op(OpKind::Read, Payload::Buffers(buffers.into()), offset)
    }

    /// Writes `buffer` at `offset`. An image or a device has a fixed size: at its end the write is short,
    /// beyond it the error is ENOSPC.
    pub fn write(&self, buffer: Buffer, offset: u64) -> Ask<(Buffer, Result<usize, Errno>)> {
        self.op(OpKind::Write(Durability::Volatile), Payload::Buffer(buffer), offset)
    }

    /// Writes several buffers, one after the other.
    pub fn write_vectored(
        &self,
        buffers: Vec<Buffer>,
        offset: u64,
    ) -> Ask<(Vec<Buffer>, Result<usize, Errno>)> {
        self.op(OpKind::Write(Durability::Volatile), Payload::Buffers(buffers.into()), offset)
    }

    /// Writes `buffer`, durable on completion (O_DSYNC): by FUA where the device has it, else by a flush after
    /// the write.
    pub fn write_durably(
        &self,
        buffer: Buffer,
        offset: u64,
    ) -> Ask<(Buffer, Result<usize, Errno>)> {
        self.op(OpKind::Write(Durability::Durable), Payload::Buffer(buffer), offset)
    }

    /// Appends `buffer` to a volume's file (`O_APPEND`). The result is its offset. Concurrent appends never
    /// overlap and leave no gap. Durable with the next [`Self::datasync`].
    ///
    /// Errors: EOPNOTSUPP for an image or a device; ENOSPC; EFBIG.
    pub fn append(&self, buffer: Buffer) -> Ask<(Buffer, Result<u64, Errno>)> {
        self.op(OpKind::Append(Durability::Volatile), Payload::Buffer(buffer), 0)
    }

    /// As [`Self::append`], durable on completion. Concurrent appends of many files and threads share a commit.
    pub fn append_durably(&self, buffer: Buffer) -> Ask<(Buffer, Result<u64, Errno>)> {
        self.op(OpKind::Append(Durability::Durable), Payload::Buffer(buffer), 0)
    }

    /// Writes `buffer` atomically: whole blocks of a volume's file, at most
    /// [`LONGEST_ATOMIC`](crate::LONGEST_ATOMIC) bytes. After a crash the file has all of it or none; after
    /// completion it is durable. The bytes go to free blocks, of which it needs as many. A concurrent overwrite
    /// of the range comes before or after.
    ///
    /// Errors: EINVAL for partial blocks and for more bytes; ENOSPC, with nothing changed; EOPNOTSUPP for an
    /// image or a device.
    pub fn write_atomic(&self, buffer: Buffer, offset: u64) -> Ask<(Buffer, Result<usize, Errno>)> {
        self.op(OpKind::WriteAtomic, Payload::Buffer(buffer), offset)
    }

    /// Makes all completed writes durable, with the file's size, times and attributes (`fsync`). For an image
    /// or a device this is [`Self::datasync`].
    pub fn sync(&self) -> Ask<Result<(), Errno>> {
        self.op(OpKind::Sync(Durable::Everything), Payload::Length(0), 0)
    }

    /// Makes all completed writes durable, with the file's size (`fdatasync`). Times that overwrites in place
    /// have changed follow with the next commit.
    pub fn datasync(&self) -> Ask<Result<(), Errno>> {
        self.op(OpKind::Sync(Durable::Data), Payload::Length(0), 0)
    }

    /// Makes completed writes to a range durable, with the file's size. Dirty folios outside the range need not
    /// be written back. Offset and length in bytes.
    pub fn sync_range(&self, offset: u64, length: u64) -> Ask<Result<(), Errno>> {
        self.op(OpKind::SyncRange, Payload::Length(length), offset)
    }

    /// Writes all dirty folios back.
    pub(crate) fn write_back(&self) -> Ask<Result<(), Errno>> {
        self.op(OpKind::WriteBack, Payload::Length(0), 0)
    }

    /// Discards the content of a range. In a volume's file its whole blocks become free and read as zeros. In
    /// an image or a device later reads of the range are undefined; blocks that it covers in part stay, and
    /// without discard the error is EOPNOTSUPP.
    pub fn discard(&self, offset: u64, length: u64) -> Ask<Result<(), Errno>> {
        self.op(OpKind::Discard, Payload::Length(length), offset)
    }

    /// Makes the part of a range inside the file read as zeros, and keeps its blocks.
    pub fn write_zeroes(&self, offset: u64, length: u64) -> Ask<Result<(), Errno>> {
        self.op(OpKind::WriteZeroes, Payload::Length(length), offset)
    }

    /// Truncates the file to `bytes`, or extends it to that size by a hole (`ftruncate`). Durable with the next
    /// [`Self::datasync`]; after a power cut before that the file has one size or the other.
    ///
    /// Errors: EOPNOTSUPP for an image or a device; EFBIG from 2^63 on.
    pub fn set_size(&self, bytes: u64) -> Ask<Result<(), Errno>> {
        self.op(OpKind::SetSize, Payload::Length(0), bytes)
    }

    /// Allocates blocks for the holes of a range (`fallocate`), so that writes to it need no more space.
    /// Existing bytes stay; new blocks read as zeros.
    ///
    /// Errors: ENOSPC, with nothing allocated; EINVAL for an empty range; else as [`Self::set_size`].
    pub fn allocate(&self, offset: u64, length: u64, size: Size) -> Ask<Result<(), Errno>> {
        self.op(OpKind::Fallocate(FallocateMode::Allocate(size)), Payload::Length(length), offset)
    }

    /// Makes a range read as zeros and frees its whole blocks (`FALLOC_FL_PUNCH_HOLE`). The size stays. Zeros
    /// for part of a block are written in place, like any overwrite.
    ///
    /// Errors: as [`Self::allocate`], without ENOSPC.
    pub fn punch_hole(&self, offset: u64, length: u64) -> Ask<Result<(), Errno>> {
        self.op(OpKind::Fallocate(FallocateMode::PunchHole), Payload::Length(length), offset)
    }

    /// Makes a range read as zeros, with all of it allocated (`FALLOC_FL_ZERO_RANGE`): whole blocks become
    /// unwritten in place. Zeros for part of a block are written in place.
    ///
    /// Errors: as [`Self::allocate`]; after ENOSPC the range may read as zeros already.
    pub fn zero_range(&self, offset: u64, length: u64, size: Size) -> Ask<Result<(), Errno>> {
        self.op(OpKind::Fallocate(FallocateMode::Zero(size)), Payload::Length(length), offset)
    }

    /// Advises how this handle, or this range, will be read. No effect on a direct handle.
    pub fn advise(&self, advice: Advice, offset: u64, length: u64) -> Ask<Result<(), Errno>> {
        self.op(OpKind::Advise(advice), Payload::Length(length), offset)
    }

    fn op<R>(&self, kind: OpKind, payload: Payload, offset: u64) -> Ask<R> {
        Ask {
            file: self.clone(),
            kind,
            payload: Some(payload),
            offset,
            deadline: None,
            started: None,
            output: PhantomData,
        }
    }
}

impl WriteLock {
    /// Writes all dirty folios of the file back, on the process's background reactor. `None` when there are
    /// none.
    pub fn save(&self) -> Option<Ask<Result<(), Errno>>> {
        self.dirty().file().map(|file| File::from_dirty(file).write_back().in_background())
    }
}

/// A buffered read on this thread's reactor.
async fn read_on_reactor(file: File, payload: Payload, offset: u64) -> Outcome {
    let op: Ask<Result<(), Errno>> = file.op(OpKind::ReadOnReactor, payload, offset);
    op.outcome().await
}

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
        let Ask { file, kind, payload, offset, deadline, started, .. } = op;
        let payload = payload.filter(|_| started.is_none()).expect("it has not been started");
        match (kind, payload, deadline) {
            (OpKind::Read, Payload::Buffer(buffer), None) => {
                self.read(&file, buffer, offset, token)
            }
            (OpKind::Write(Durability::Volatile), Payload::Buffer(buffer), None) => {
                self.write(&file, buffer, offset, token)
            }
            (kind, payload, deadline) => {
                count_refusal(self.inner(), kind, &payload, deadline);
                start(self.inner(), file, kind, payload, offset, deadline, Asker::Token(token))
            }
        }
    }
}

/// Counts the reason of a read that is not eligible for the fast path by its kind.
fn count_refusal(inner: &Inner, kind: OpKind, payload: &Payload, deadline: Option<Instant>) {
    match (kind, payload) {
        (OpKind::Read, Payload::Buffers(_)) => inner.count(Counter::SimplePieces),
        (OpKind::Read, _) if deadline.is_some() => inner.count(Counter::SimpleDeadline),
        _ => {}
    }
}

#[inline(never)]
fn read_unpushed(
    reactor: &Reactor,
    file: &File,
    unpushed: Unpushed,
    offset: u64,
    token: Token,
) -> Result<(), Refused> {
    start_unpushed(reactor, file, OpKind::Read, unpushed, offset, token)
}

#[inline(never)]
fn write_unpushed(
    reactor: &Reactor,
    file: &File,
    unpushed: Unpushed,
    offset: u64,
    token: Token,
) -> Result<(), Refused> {
    let kind = OpKind::Write(Durability::Volatile);
    start_unpushed(reactor, file, kind, unpushed, offset, token)
}

/// An operation that did not take the fast path. If the ring was full but the device has only now been
/// attached, it is tried again; otherwise it is refused. If it is not eligible, it becomes an operation.
#[inline(always)]
fn start_unpushed(
    reactor: &Reactor,
    file: &File,
    kind: OpKind,
    unpushed: Unpushed,
    offset: u64,
    token: Token,
) -> Result<(), Refused> {
    let (inner, handle) = (reactor.inner(), &*file.handle);
    match unpushed {
        Unpushed::NoPlace(mut buffer) => {
            if kind == OpKind::Read {
                if let Some(read) = buffered::read_now(handle, &mut buffer, offset) {
                    inner.count(Counter::CacheHit);
                    inner.answer(handle.index, token, buffer, read as u64);
                    return Ok(());
                }
                fast_path::count_refusal(inner, handle, &buffer, offset);
            }
            let payload = Payload::Buffer(buffer);
            let asker = Asker::Token(token);
            match inner.admit(&handle.core) {
                Ok(admitted) => {
                    start_admitted(
                        inner,
                        admitted,
                        file.clone(),
                        kind,
                        payload,
                        offset,
                        None,
                        asker,
                    );
                    Ok(())
                }
                Err(error) => Err(Refused { error, payload }),
            }
        }
        Unpushed::NoRoom(buffer) => match (ensure_attached(inner, handle), kind) {
            // This was the first use of the device on this reactor; it is attached now.
            (Ok(true), OpKind::Read) => reactor.read(file, buffer, offset, token),
            (Ok(true), _) => reactor.write(file, buffer, offset, token),
            (Ok(false), _) => {
                let payload = Payload::Buffer(buffer);
                Err(Refused { error: Errno::AGAIN, payload })
            }
            (Err(error), _) => Err(Refused { error, payload: Payload::Buffer(buffer) }),
        },
    }
}

/// Attaches the device to this reactor if it is not attached. Returns whether it was attached only now.
fn ensure_attached(inner: &Rc<Inner>, handle: &FileHandle) -> Result<bool, Errno> {
    if inner.is_forked() {
        return Err(Errno::CHILD);
    }
    if handle.core.is_closed() {
        return Err(Errno::NODEV);
    }
    if inner.is_attached(handle.index) {
        return Ok(false);
    }
    inner
        .attach(&handle.core)
        .map(|()| true)
        .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
}

/// Starts an operation on this reactor.
fn start(
    inner: &Rc<Inner>,
    file: File,
    kind: OpKind,
    payload: Payload,
    offset: u64,
    deadline: Option<Instant>,
    asker: Asker,
) -> Result<(), Refused> {
    match inner.admit(&file.handle.core) {
        Ok(admitted) => {
            start_admitted(inner, admitted, file, kind, payload, offset, deadline, asker);
            Ok(())
        }
        Err(error) => Err(Refused { error, payload }),
    }
}

/// Starts an admitted operation. Inlined where the kind is known, so that it is matched once.
#[inline(always)]
#[allow(clippy::too_many_arguments)] // all fields of an operation, and its requester
fn start_admitted(
    inner: &Rc<Inner>,
    admitted: Admitted,
    file: File,
    kind: OpKind,
    payload: Payload,
    offset: u64,
    deadline: Option<Instant>,
    asker: Asker,
) {
    let length = payload.length();
    match kind {
        OpKind::Read if file.handle.waits_in_threads() => {
            inner.start_operation(admitted, asker, deadline, |operation| {
                buffered::read_in_thread(operation, payload, move |reactor, payload| {
                    reactor.block_on(read_on_reactor(file, payload, offset))
                })
            });
        }
        OpKind::Read | OpKind::ReadOnReactor if file.handle.cache.is_some() => {
            inner.start_operation(admitted, asker, deadline, |operation| {
                buffered::read(operation, file, payload, offset)
            });
        }
        OpKind::Read | OpKind::ReadOnReactor => {
            inner.start_operation(admitted, asker, deadline, |operation| {
                direct_read::read(operation, file, payload, offset)
            })
        }
        OpKind::Write(Durability::Volatile) if file.handle.cache.is_some() => {
            inner.start_operation(admitted, asker, deadline, |operation| {
                buffered_write::write(operation, file, payload, offset)
            });
        }
        OpKind::Write(durability) => {
            inner.start_operation(admitted, asker, deadline, |operation| {
                direct::write(operation, file, payload, offset, durability)
            })
        }
        OpKind::Append(durability) => {
            inner.start_operation(admitted, asker, deadline, |operation| {
                append::append(operation, file, payload, durability)
            })
        }
        OpKind::WriteAtomic => inner.start_operation(admitted, asker, deadline, |operation| {
            atomic_write::write(operation, file, payload, offset)
        }),
        OpKind::Sync(kind) => inner.start_operation(admitted, asker, deadline, |operation| {
            sync::sync(operation, file, kind, 0..u64::MAX)
        }),
        OpKind::SyncRange => inner.start_operation(admitted, asker, deadline, |operation| {
            let range = offset..offset.saturating_add(length);
            sync::sync(operation, file, Durable::Data, range)
        }),
        OpKind::WriteBack => inner.start_operation(admitted, asker, deadline, |operation| {
            runs::write_back_all(operation, file)
        }),
        OpKind::Discard => inner.start_operation(admitted, asker, deadline, |operation| {
            fallocate::discard(operation, file, offset, length)
        }),
        OpKind::WriteZeroes => inner.start_operation(admitted, asker, deadline, |operation| {
            fallocate::write_zeroes(operation, file, offset, length)
        }),
        OpKind::Advise(advice) => inner.start_operation(admitted, asker, deadline, |operation| {
            buffered::advise(operation, file, advice, offset, length)
        }),
        OpKind::SetSize => inner.start_operation(admitted, asker, deadline, |operation| {
            fallocate::set_size(operation, file, offset)
        }),
        OpKind::Fallocate(mode) => inner.start_operation(admitted, asker, deadline, |operation| {
            fallocate::fallocate(operation, file, mode, offset, length)
        }),
    }
}

/// Starts an operation for a caller that awaits it, on the fast path if it is eligible.
fn start_awaited(
    inner: &Rc<Inner>,
    file: File,
    kind: OpKind,
    payload: Payload,
    offset: u64,
    deadline: Option<Instant>,
    sender: OutcomeSender,
) {
    let (mut payload, mut sender) = (payload, sender);
    let simple = matches!(kind, OpKind::Read | OpKind::Write(Durability::Volatile));
    if simple
        && deadline.is_none()
        && let Payload::Buffer(buffer) = payload
    {
        let handle = &*file.handle;
        if let Err(error) = ensure_attached(inner, handle) {
            return sender.refuse(error, Payload::Buffer(buffer));
        }
        let (op, taken) = match kind {
            OpKind::Read => (Op::Read, Counter::SimpleTaken),
            _ => (Op::Write, Counter::WriteShared),
        };
        let place = |buffer: &Buffer| match op {
            Op::Read => fast_path::read(handle, buffer, offset),
            _ => fast_path::write(handle, buffer, offset),
        };
        let (unpushed, unused) = match inner.push_awaited(handle.index, op, buffer, sender, place) {
            Ok(()) => return inner.count(taken),
            Err(refused) => refused,
        };
        sender = unused;
        payload = match unpushed {
            Unpushed::NoPlace(buffer) => {
                if op == Op::Read {
                    fast_path::count_refusal(inner, handle, &buffer, offset);
                }
                Payload::Buffer(buffer)
            }
            Unpushed::NoRoom(buffer) => {
                if op == Op::Read {
                    inner.count(Counter::SimpleFull);
                }
                Payload::Buffer(buffer)
            }
        };
    } else {
        count_refusal(inner, kind, &payload, deadline);
    }
    match inner.admit(&file.handle.core) {
        Ok(admitted) => {
            let asker = Asker::Cell(sender);
            start_admitted(inner, admitted, file, kind, payload, offset, deadline, asker);
        }
        Err(error) => sender.refuse(error, payload),
    }
}

impl<R> Ask<R> {
    /// Sets a deadline: from then on the operation stops at its next safe step. Its result is then ETIMEDOUT.
    pub fn deadline(mut self, deadline: Instant) -> Ask<R> {
        self.deadline = Some(deadline);
        self
    }

    /// Cancels the operation: it stops at its next safe step. It still ends, and awaiting it returns the
    /// outcome.
    pub fn cancel(&mut self) {
        match &self.started {
            None => {
                let cell = OutcomeCell::default();
                let payload = self.payload.take().unwrap_or(Payload::Length(0));
                cell.sender().refuse(Errno::CANCELED, payload);
                self.started = Some((cell, None));
            }
            Some((cell, remote)) => {
                let cell = cell.clone();
                if let Some(remote) = remote {
                    remote.run(move |inner| inner.cancel_by_cell(&cell));
                }
            }
        }
    }

    /// Starts the operation if necessary, and polls its outcome.
    fn poll_outcome(&mut self, context: &mut Context<'_>) -> Poll<Outcome> {
        if self.started.is_none() {
            if let Some(outcome) = self.complete_from_cache() {
                return Poll::Ready(outcome);
            }
            self.start();
        }
        let (cell, remote) = self.started.as_ref().expect("it was just started");
        let outcome = cell.poll(context);
        if outcome.is_pending() && remote.as_ref().is_some_and(Remote::is_forked) {
            // The operation and its reactor belong to the parent process.
            let payload = Payload::Length(0);
            return Poll::Ready(Outcome {
                result: Err(Errno::CHILD),
                fate: Fate::Unknown,
                payload,
            });
        }
        outcome
    }

    /// A read of cached bytes needs no reactor.
    fn complete_from_cache(&mut self) -> Option<Outcome> {
        let Some(Payload::Buffer(buffer)) = &mut self.payload else { return None };
        if self.kind != OpKind::Read {
            return None;
        }
        let read = buffered::read_now(&self.file.handle, buffer, self.offset)?;
        if let Some(inner) = current() {
            inner.count(Counter::CacheHit);
        }
        let payload = self.payload.take().expect("it is a buffer");
        Some(Outcome { result: Ok(read as u64), fate: Fate::Done, payload })
    }

    /// Starts the operation on this thread's reactor, else on the process's background reactor.
    fn start(&mut self) {
        let Some(inner) = current() else { return self.start_in_background() };
        let cell = OutcomeCell::default();
        let payload = self.payload.take().expect("it has not been started");
        let (file, kind, offset, deadline) =
            (self.file.clone(), self.kind, self.offset, self.deadline);
        start_awaited(&inner, file, kind, payload, offset, deadline, cell.sender());
        inner.ask_for_turn();
        self.started = Some((cell, Some(inner.remote())));
    }

    fn start_in_background(&mut self) {
        let cell = OutcomeCell::default();
        let payload = self.payload.take().expect("it has not been started");
        let (file, kind, offset, deadline) =
            (self.file.clone(), self.kind, self.offset, self.deadline);
        let remote = match service() {
            Err(error) => {
                let why = Errno::from_io_error(&error).unwrap_or(Errno::NOSYS);
                cell.sender().refuse(why, payload);
                None
            }
            Ok(remote) => {
                let sender = cell.sender();
                remote.run(move |inner| {
                    inner.count(Counter::Remote);
                    start_awaited(inner, file, kind, payload, offset, deadline, sender);
                });
                Some(remote)
            }
        };
        self.started = Some((cell, remote));
    }

    /// Starts the operation on the process's background reactor: the thread that awaits it may block this
    /// thread's reactor.
    fn in_background(mut self) -> Ask<R> {
        self.start_in_background();
        self
    }

    /// The full outcome: the result, the fate and the memory.
    pub async fn outcome(mut self) -> Outcome {
        std::future::poll_fn(move |context| self.poll_outcome(context)).await
    }
}

/// The output of an awaited [`Ask`].
pub trait Answer {
    /// Converts an outcome.
    fn from_outcome(outcome: Outcome) -> Self;
}

impl Answer for (Buffer, Result<usize, Errno>) {
    fn from_outcome(outcome: Outcome) -> Self {
        match outcome.payload {
            Payload::Buffer(buffer) => (buffer, outcome.result.map(|bytes| bytes as usize)),
            Payload::Length(_) => (Buffer::zeroed(0), outcome.result.map(|bytes| bytes as usize)),
            other => unreachable!("one buffer went in, {other:?} came out"),
        }
    }
}

impl Answer for (Buffer, Result<u64, Errno>) {
    fn from_outcome(outcome: Outcome) -> Self {
        match outcome.payload {
            Payload::Buffer(buffer) => (buffer, outcome.result),
            Payload::Length(_) => (Buffer::zeroed(0), outcome.result),
            other => unreachable!("one buffer went in, {other:?} came out"),
        }
    }
}

impl Answer for (Vec<Buffer>, Result<usize, Errno>) {
    fn from_outcome(outcome: Outcome) -> Self {
        match outcome.payload {
            Payload::Buffers(buffers) => {
                (buffers.into_vec(), outcome.result.map(|bytes| bytes as usize))
            }
            Payload::Length(_) => (Vec::new(), outcome.result.map(|bytes| bytes as usize)),
            other => unreachable!("several buffers went in, {other:?} came out"),
        }
    }
}

impl Answer for Result<(), Errno> {
    fn from_outcome(outcome: Outcome) -> Self {
        outcome.result.map(drop)
    }
}

impl<R: Answer> Future for Ask<R> {
    type Output = R;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<R> {
        let outcome = ready!(self.poll_outcome(context));
        Poll::Ready(R::from_outcome(outcome))
    }
}
