//! The operations of a file as futures. [`Tokens`](crate::Tokens) starts the same ones by token.

use std::fmt;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};
use std::time::Instant;

use uringfs_buffer::{Buffer, IoBuf, IoBufMut, OpMemory, TooLong};
use uringfs_device::{Durability, Errno, Payload};
use uringfs_reactor::{
    Counter, Effect, OpResult, ReactorHandle, ResultReceiver, SubmitError, background_reactor,
    current,
};
use uringfs_sync::park_on;

use crate::api::request::{FileRequest, OpKind};
use crate::buffered::read as buffered;
use crate::direct::called;
use crate::direct::fallocate::{FallocateMode, FallocateSize};
use crate::map::mapping::SyncScope;
use crate::state::buffered_handle::Advice;
use crate::state::file::File;
use crate::state::file_state::FileState;

/// An operation of a file that has not started: await it, or pass it to [`Tokens::start`](crate::Tokens::start). `R` is its output.
///
/// If the reactor has to give the operation up (the kernel takes no requests at all), or the operation's own code
/// panics, the result is ENOTRECOVERABLE, with an empty value ([`IoBuf::lost`]) in place of the memory. In the child of a fork, an
/// operation that the parent started ends in the same way, with ECHILD.
///
/// # Errors
/// Each method names its own. Any operation may also fail with an error of the device (EIO or another one), with ENODEV after
/// the device was removed, and with ECANCELED or ETIMEDOUT: see Cancellation.
///
/// # Cancellation
/// Dropping it before its first poll does nothing to the file. Dropping it later gives up the result, not the operation,
/// which runs to its end: a write is still done, and may reach the device after later writes of the same range; the
/// memory is freed, or returns to its pool, when the kernel is done with it. To stop it and know what it did, keep it:
/// [`Self::cancel`] or [`Self::deadline`], then await it. In a `select!` or a timeout use `&mut op`. A sync that is dropped
/// later also takes the report of a failed write-back with it; one that is cancelled, or meets its deadline, leaves the
/// report to the next sync.
///
/// # Panics
/// If it is polled or waited for after its end.
///
/// # Memory
/// The memory is a [`Buffer`] or any other [`IoBuf`]; it comes back with each result, also of an operation that is
/// refused. The error is EINVAL for memory over [`MAX_LENGTH`](uringfs_buffer::MAX_LENGTH).
#[must_use = "nothing happens until it is awaited, waited for with `.wait()`, or started by token"]
pub struct FileOp<R> {
    /// `None` once it has started, or was answered from the cache.
    request: Option<FileRequest>,
    /// `None` before it starts, and after its end.
    started: Option<(ResultReceiver, Option<ReactorHandle>)>,
    output: PhantomData<fn() -> R>,
}

/// The result of an operation, and the memory that it had.
pub type BufResult<T, B = Buffer> = (Result<T, Errno>, B);

impl File {
    /// Reads into `buffer` at `offset`: fewer bytes at the end of the file. A `Vec` is filled up to its capacity, and
    /// then has the length that was read, 0 after an error.
    ///
    /// Errors: EBADF if the handle may not read: open it with `.read(true)`.
    pub fn read_at<B: IoBufMut>(&self, buffer: B, offset: u64) -> FileOp<BufResult<usize, B>> {
        self.op_with(OpKind::Read, buffer.lend_for_read(), offset)
    }

    /// Reads into several buffers, one after the other.
    pub fn read_vectored_at<B: IoBufMut>(
        &self,
        buffers: Vec<B>,
        offset: u64,
    ) -> FileOp<BufResult<usize, Vec<B>>> {
        self.vectored_op_with(OpKind::Read, buffers.into_iter().map(B::lend_for_read), offset)
    }

    /// Writes `buffer` at `offset`. An image or a device has a fixed size: at its end the write is short,
    /// beyond it the error is ENOSPC.
    ///
    /// Through the page cache, errors of writing to the device come with the next sync.
    ///
    /// Errors: EBADF if the handle may not write: open it with `.write(true)`; ENOSPC when the volume is full
    /// (`Volume::shortage` says why), or beyond the end of an image or a device; EROFS; EFBIG from 2^63 on.
    pub fn write_at<B: IoBuf>(&self, buffer: B, offset: u64) -> FileOp<BufResult<usize, B>> {
        self.op_with(OpKind::Write(Durability::Volatile), buffer.lend_for_write(), offset)
    }

    /// Writes several buffers, one after the other.
    ///
    /// Errors: as [`Self::write_at`].
    pub fn write_vectored_at<B: IoBuf>(
        &self,
        buffers: Vec<B>,
        offset: u64,
    ) -> FileOp<BufResult<usize, Vec<B>>> {
        let buffers = buffers.into_iter().map(B::lend_for_write);
        self.vectored_op_with(OpKind::Write(Durability::Volatile), buffers, offset)
    }

    /// Writes `buffer`, durable on completion (O_DSYNC): by FUA where the device has it, else by a flush after
    /// the write, which no other call shares (in the same system call, if the write is one request to a file or a block
    /// device). The first write to allocated blocks or to a hole waits for a commit, which
    /// it shares with others, as [`Self::append_durably`].
    ///
    /// Errors: as [`Self::write_at`]; EIO and ENOSPC of a flush or a commit as in [`Self::sync_all`].
    pub fn write_durably<B: IoBuf>(&self, buffer: B, offset: u64) -> FileOp<BufResult<usize, B>> {
        self.op_with(OpKind::Write(Durability::Durable), buffer.lend_for_write(), offset)
    }

    /// Appends `buffer` to a volume's file (`O_APPEND`). The result is its offset. Concurrent appends never
    /// overlap and leave no gap. Durable with the next [`Self::sync_data`].
    ///
    /// Errors: EOPNOTSUPP for an image or a device; else as [`Self::write_at`].
    pub fn append<B: IoBuf>(&self, buffer: B) -> FileOp<BufResult<u64, B>> {
        self.op_with(OpKind::Append(Durability::Volatile), buffer.lend_for_write(), 0)
    }

    /// As [`Self::append`], durable on completion. Concurrent appends of many files and threads share a commit, with its
    /// flushes of the device.
    ///
    /// Errors: as [`Self::append`]; EIO and ENOSPC of a flush or a commit as in [`Self::sync_all`].
    pub fn append_durably<B: IoBuf>(&self, buffer: B) -> FileOp<BufResult<u64, B>> {
        self.op_with(OpKind::Append(Durability::Durable), buffer.lend_for_write(), 0)
    }

    /// Writes `buffer` atomically: whole blocks of a volume's file, so offset and length are multiples of 4096, and at most
    /// [`MAX_ATOMIC_WRITE_BYTES`](crate::MAX_ATOMIC_WRITE_BYTES) (1 MiB). After a crash the file has all of it or none; after
    /// completion it is durable. The bytes go to free blocks, so it needs as many free blocks as it writes. A
    /// concurrent overwrite of the range comes before or after.
    ///
    /// Errors: EINVAL for an offset or a length that is no multiple of 4096, and for more than 1 MiB; ENOSPC, with nothing
    /// changed; EOPNOTSUPP for an image or a device; EBADF, EROFS and EFBIG as [`Self::write_at`].
    pub fn write_atomic<B: IoBuf>(&self, buffer: B, offset: u64) -> FileOp<BufResult<usize, B>> {
        self.op_with(OpKind::WriteAtomic, buffer.lend_for_write(), offset)
    }

    /// Makes all completed writes durable, with the file's size, times and attributes (`fsync`), and all names and attributes
    /// of the volume that were changed before: no fsync of the directory is needed. For an image or a device this is
    /// [`Self::sync_data`].
    ///
    /// Errors: EIO after a failed flush or commit; in a volume also at every later sync until the volume is opened again, and
    /// changes return EROFS until then. The error of a write-back that fails now; EIO, once for each handle, for one that
    /// failed earlier, even if a later one has succeeded. ENOSPC when the catalog of the volume has no room for the commit.
    pub fn sync_all(&self) -> FileOp<Result<(), Errno>> {
        self.op(OpKind::Sync(SyncScope::Everything), Payload::Length(0), 0)
    }

    /// Makes all completed writes durable, with the file's size (`fdatasync`). Times that overwrites in place
    /// have changed follow with the next commit. After overwrites in place it flushes the device, once for each call;
    /// otherwise it waits for a commit, which concurrent calls share.
    ///
    /// Errors: as [`Self::sync_all`].
    pub fn sync_data(&self) -> FileOp<Result<(), Errno>> {
        self.op(OpKind::Sync(SyncScope::Data), Payload::Length(0), 0)
    }

    /// Makes completed writes to a range durable, with the file's size as far as it is written back. Dirty folios outside
    /// the range need not be written back. Offset and length in bytes.
    ///
    /// Errors: as [`Self::sync_all`].
    pub fn sync_range(&self, offset: u64, length: u64) -> FileOp<Result<(), Errno>> {
        self.op(OpKind::SyncRange, Payload::Length(length), offset)
    }

    /// Writes all dirty folios back.
    pub(crate) fn write_back(&self) -> FileOp<Result<(), Errno>> {
        self.op(OpKind::WriteBack, Payload::Length(0), 0)
    }

    /// Discards the content of a range. In a volume's file its whole blocks become free and read as zeros. In
    /// an image or a device later reads of the range are undefined. Blocks that the range covers in part
    /// stay.
    ///
    /// Errors: EOPNOTSUPP if it is an image or a device without discard; EBADF and EROFS as [`Self::write_at`].
    pub fn discard(&self, offset: u64, length: u64) -> FileOp<Result<(), Errno>> {
        self.op(OpKind::Discard, Payload::Length(length), offset)
    }

    /// Makes the part of a range inside the file read as zeros, and keeps its blocks.
    ///
    /// Errors: EBADF, ENOSPC and EROFS as [`Self::write_at`].
    pub fn write_zeroes(&self, offset: u64, length: u64) -> FileOp<Result<(), Errno>> {
        self.op(OpKind::WriteZeroes, Payload::Length(length), offset)
    }

    /// Truncates the file to `bytes`, or extends it to that size by a hole (`ftruncate`). Durable with the next
    /// [`Self::sync_data`]; after a power cut before that the file has one size or the other.
    ///
    /// Errors: EOPNOTSUPP for an image or a device; EBADF, EROFS and EFBIG as [`Self::write_at`].
    pub fn set_len(&self, bytes: u64) -> FileOp<Result<(), Errno>> {
        self.op(OpKind::SetLen, Payload::Length(0), bytes)
    }

    /// Allocates blocks for the holes of a range (`fallocate`), so that writes to it need no more space.
    /// Existing bytes stay; new blocks read as zeros. `size` (`uringfs::file::FallocateSize`) says whether the file grows
    /// if the range ends beyond it.
    ///
    /// Errors: ENOSPC, with nothing allocated; EINVAL for an empty range; else as [`Self::set_len`].
    pub fn allocate(
        &self,
        offset: u64,
        length: u64,
        size: FallocateSize,
    ) -> FileOp<Result<(), Errno>> {
        self.op(OpKind::Fallocate(FallocateMode::Allocate(size)), Payload::Length(length), offset)
    }

    /// Makes a range read as zeros and frees its whole blocks (`FALLOC_FL_PUNCH_HOLE`). The size stays. Zeros
    /// for part of a block are written in place, like any overwrite.
    ///
    /// Errors: as [`Self::allocate`], without ENOSPC.
    pub fn punch_hole(&self, offset: u64, length: u64) -> FileOp<Result<(), Errno>> {
        self.op(OpKind::Fallocate(FallocateMode::PunchHole), Payload::Length(length), offset)
    }

    /// Makes a range read as zeros, with all of it allocated (`FALLOC_FL_ZERO_RANGE`): whole blocks become
    /// unwritten in place. Zeros for part of a block are written in place.
    ///
    /// Errors: as [`Self::allocate`]; after ENOSPC the range may read as zeros already.
    pub fn zero_range(
        &self,
        offset: u64,
        length: u64,
        size: FallocateSize,
    ) -> FileOp<Result<(), Errno>> {
        self.op(OpKind::Fallocate(FallocateMode::Zero(size)), Payload::Length(length), offset)
    }

    /// Advises how this handle, or this range, will be read. No effect on a direct handle.
    ///
    /// ```
    /// # mod uringfs {
    /// #     pub use uringfs_file::*;
    /// #     pub use uringfs_cache as cache;
    /// #     pub use uringfs_device as device;
    /// #     pub use uringfs_file as file;
    /// # }
    /// use uringfs::cache::Cache;
    /// use uringfs::device::backend::memory::Memory;
    /// use uringfs::device::Device;
    /// use uringfs::file::{Advice, FileOptions};
    /// use uringfs::File;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let file = File::from_device(Device::new(Memory::new(1 << 20)?)?, FileOptions::new());
    /// let file = file.buffered(&Cache::of_process());
    /// file.advise(Advice::Random, 0, file.len()).wait()?;
    /// file.advise(Advice::WillNeed, 0, 65536).wait()?;
    /// // This read finds the bytes in the cache, or waits for the fill that has begun.
    /// let (read, bytes) = file.read_at(vec![0; 65536], 0).wait();
    /// assert_eq!((read?, bytes.len()), (65536, 65536));
    /// file.advise(Advice::DoNotNeed, 0, 65536).wait()?;
    /// assert!(file.cached(0..65536).is_empty());
    /// # Ok(())
    /// # }
    /// ```
    pub fn advise(&self, advice: Advice, offset: u64, length: u64) -> FileOp<Result<(), Errno>> {
        self.op(OpKind::Advise(advice), Payload::Length(length), offset)
    }

    /// An operation with the memory of a value. Refused if it is too long for a request.
    #[inline]
    fn op_with<R>(&self, kind: OpKind, lent: Result<Buffer, TooLong>, offset: u64) -> FileOp<R> {
        match lent {
            Ok(buffer) => self.op(kind, Payload::Buffer(buffer), offset),
            Err(TooLong(buffer)) => FileOp::refused(Errno::INVAL, Payload::Buffer(buffer)),
        }
    }

    /// The same for several values.
    fn vectored_op_with<R>(
        &self,
        kind: OpKind,
        lent: impl Iterator<Item = Result<Buffer, TooLong>>,
        offset: u64,
    ) -> FileOp<R> {
        let mut is_too_long = false;
        let mut keep_too_long = |TooLong(buffer)| {
            is_too_long = true;
            buffer
        };
        let buffers = lent.map(|lent| lent.unwrap_or_else(&mut keep_too_long)).collect();
        let payload = Payload::Buffers(buffers);
        if is_too_long {
            return FileOp::refused(Errno::INVAL, payload);
        }
        self.op(kind, payload, offset)
    }

    fn op<R>(&self, kind: OpKind, payload: Payload, offset: u64) -> FileOp<R> {
        let request = FileRequest { file: self.clone(), kind, payload, offset, deadline: None };
        FileOp { request: Some(request), started: None, output: PhantomData }
    }
}

impl FileState {
    /// Writes all dirty folios of the file back, on a background reactor. `None` when there are
    /// none.
    pub fn write_back(&self) -> Option<FileOp<Result<(), Errno>>> {
        self.dirty().file().map(|file| File::from_dirty(file).write_back().in_background())
    }
}

impl<R> FileOp<R> {
    /// Sets a deadline. Once it has passed, the operation stops at its next safe step, with ETIMEDOUT.
    pub fn deadline(mut self, deadline: Instant) -> FileOp<R> {
        if let Some(request) = &mut self.request {
            request.deadline = Some(deadline);
        }
        self
    }

    /// Cancels the operation: it stops at its next safe step. It still ends, and awaiting it returns the
    /// outcome.
    pub fn cancel(&mut self) {
        if let Some(request) = self.request.take() {
            *self = FileOp::refused(Errno::CANCELED, request.payload);
        } else if let Some((receiver, Some(reactor))) = &self.started {
            let receiver = receiver.clone();
            reactor.run(move |reactor| reactor.cancel_awaited(&receiver));
        }
    }

    /// An operation that has ended without a start.
    fn refused(error: Errno, payload: Payload) -> FileOp<R> {
        let receiver = ResultReceiver::default();
        receiver.sender().refuse(error, payload);
        FileOp { request: None, started: Some((receiver, None)), output: PhantomData }
    }

    /// The request, to be started by token.
    ///
    /// # Errors
    /// The reason why the operation was refused or cancelled before its start.
    #[inline(always)]
    pub(crate) fn into_request(mut self) -> Result<FileRequest, SubmitError> {
        match self.request.take() {
            Some(request) => Ok(request),
            None => Err(self.into_refusal()),
        }
    }

    /// Why the operation ended without a start.
    #[cold]
    #[inline(never)]
    fn into_refusal(self) -> SubmitError {
        let (receiver, _) = self.started.expect("it has not ended");
        match receiver.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(OpResult { result: Err(error), payload, .. }) => {
                SubmitError::new(error, payload)
            }
            _ => panic!("it has been started already"),
        }
    }

    /// Starts the operation if necessary, and polls its outcome.
    fn poll_outcome(&mut self, context: &mut Context<'_>) -> Poll<OpResult> {
        if self.started.is_none() {
            if let Some(outcome) = self.answer_from_cache() {
                return Poll::Ready(outcome);
            }
            self.start();
        }
        let (receiver, reactor) = self.started.as_ref().expect("it was just started");
        let outcome = receiver.poll(context);
        if outcome.is_pending() && reactor.as_ref().is_some_and(ReactorHandle::is_forked) {
            // The operation and its reactor belong to the parent process.
            let payload = Payload::Length(0);
            return Poll::Ready(OpResult {
                result: Err(Errno::CHILD),
                effect: Effect::Unknown,
                payload,
            });
        }
        if outcome.is_ready() {
            self.started = None;
        }
        outcome
    }

    /// Answers a read of cached bytes, which needs no reactor.
    fn answer_from_cache(&mut self) -> Option<OpResult> {
        let request = self.request.as_mut()?;
        let (OpKind::Read, Payload::Buffer(buffer)) = (request.kind, &mut request.payload) else {
            return None;
        };
        let lookup = buffered::LookupKind::Lockless;
        let read = buffered::read_now(&request.file.handle, buffer, request.offset, lookup)?;
        if let Some(reactor) = current() {
            reactor.count(Counter::CacheHit);
        }
        let FileRequest { payload, .. } = self.request.take()?;
        Some(OpResult { result: Ok(read as u64), effect: Effect::Done, payload })
    }

    /// Makes a direct transfer by one call of this thread, if one does it.
    fn call(&mut self) -> Option<OpResult> {
        let request = self.request.as_mut()?;
        let (Some(call), Payload::Buffer(_)) = (request.fast_op(), &request.payload) else {
            return None;
        };
        let FileRequest { file, kind, payload, offset, deadline } = self.request.take()?;
        let Payload::Buffer(buffer) = payload else { unreachable!("it has one buffer") };
        match called::transfer(&file.handle, call, buffer, offset) {
            Ok(buffer) => {
                let (result, payload) = (Ok(buffer.len() as u64), Payload::Buffer(buffer));
                Some(OpResult { result, effect: Effect::Done, payload })
            }
            Err(buffer) => {
                let payload = Payload::Buffer(buffer);
                self.request = Some(FileRequest { file, kind, payload, offset, deadline });
                None
            }
        }
    }

    /// Starts the operation on this thread's current reactor, else on its background reactor.
    fn start(&mut self) {
        let Some(reactor) = current() else { return self.start_in_background() };
        let receiver = ResultReceiver::default();
        let request = self.request.take().expect("it was polled after its end");
        request.start_awaited(&reactor, receiver.sender());
        reactor.request_turn();
        self.started = Some((receiver, Some(reactor.handle())));
    }

    fn start_in_background(&mut self) {
        let receiver = ResultReceiver::default();
        let request = self.request.take().expect("it was polled after its end");
        let reactor = match background_reactor() {
            Err(error) => {
                let why = Errno::from_io_error(&error).unwrap_or(Errno::NOSYS);
                receiver.sender().refuse(why, request.payload);
                None
            }
            Ok(reactor) => {
                let sender = receiver.sender();
                reactor.run(move |reactor| {
                    reactor.count(Counter::Remote);
                    request.start_awaited(reactor, sender);
                });
                Some(reactor)
            }
        };
        self.started = Some((receiver, reactor));
    }

    /// Starts the operation on the background reactor of this thread. It then ends even if the caller blocks this
    /// thread, and with it this thread's reactor.
    fn in_background(mut self) -> FileOp<R> {
        self.start_in_background();
        self
    }

    /// Blocks the thread until the operation has ended, and returns its output. A direct read or overwrite of at most 1 MiB
    /// that lies in one extent of an image or a block device, with aligned memory, is one call of this thread, as `pread`
    /// is; so is a durable overwrite, unless a commit is due. A call that fails, or does not move all, is made once more by
    /// a reactor, whose result counts.
    ///
    /// A background reactor runs everything else, whether or not this thread has a reactor of its own. If that one has
    /// operations in flight, they go on meanwhile, so that the wait ends even if it is for a lock that they hold;
    /// completions of tokens stay to be reaped, and spawned futures do not run. In a task of a reactor, await the operation
    /// instead: there the reactor cannot go on, and the wait does not end if one of the reactor's operations holds such a
    /// lock.
    pub fn wait(mut self) -> R
    where
        R: OpOutput,
    {
        if let Some(outcome) = self.answer_from_cache().or_else(|| self.call()) {
            return R::from_outcome(outcome);
        }
        if self.started.is_none() {
            self.start_in_background();
        }
        park_on(self)
    }

    /// The full outcome: the result, the effect and the memory.
    pub async fn outcome(mut self) -> OpResult
    where
        R: BufferOutput,
    {
        std::future::poll_fn(move |context| self.poll_outcome(context)).await
    }
}

impl<R> fmt::Debug for FileOp<R> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.request {
            Some(request) => write!(out, "{:?} of {:?}", request.kind, request.file),
            None => out.write_str("an operation that has started"),
        }
    }
}

/// The output of an awaited [`FileOp`].
pub trait OpOutput {
    /// Converts an outcome.
    fn from_outcome(outcome: OpResult) -> Self;
}

impl<M: OpMemory> OpOutput for BufResult<usize, M> {
    fn from_outcome(outcome: OpResult) -> Self {
        let result = outcome.result.map(|bytes| bytes as usize);
        (result, memory(outcome.payload, result.unwrap_or(0)))
    }
}

impl<M: OpMemory> OpOutput for BufResult<u64, M> {
    fn from_outcome(outcome: OpResult) -> Self {
        (outcome.result, memory(outcome.payload, 0))
    }
}

/// The caller's memory, after a read of so many bytes.
fn memory<M: OpMemory>(payload: Payload, read: usize) -> M {
    match payload {
        Payload::Buffer(buffer) => M::from_buffer(buffer, read),
        Payload::Buffers(buffers) => M::from_buffers(buffers.into_vec(), read),
        Payload::Length(_) => M::lost(),
    }
}

impl OpOutput for Result<(), Errno> {
    fn from_outcome(outcome: OpResult) -> Self {
        outcome.result.map(drop)
    }
}

/// The output of an operation whose memory, if it has any, is [`Buffer`]s. Only such an operation can start by token
/// or give its full outcome, which have no place for values of other types.
pub trait BufferOutput: OpOutput {}

impl BufferOutput for BufResult<usize> {}
impl BufferOutput for BufResult<u64> {}
impl BufferOutput for BufResult<usize, Vec<Buffer>> {}
impl BufferOutput for Result<(), Errno> {}

impl<R: OpOutput> Future for FileOp<R> {
    type Output = R;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<R> {
        let outcome = ready!(self.poll_outcome(context));
        Poll::Ready(R::from_outcome(outcome))
    }
}
