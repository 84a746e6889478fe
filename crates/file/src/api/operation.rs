//! A file's operations as futures. A [`Tokens`](crate::Tokens) reactor starts the same ones by token.

use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use rustix::io::Errno;
use uringfs_buffer::Buffer;
use uringfs_device::{Durability, Payload};
use uringfs_reactor::{Counter, Fate, Outcome, OutcomeCell, Remote, current, service};

use crate::api::request::{FileRequest, OpKind};
use crate::buffered::read as buffered;
use crate::direct::fallocate::{Change, Size};
use crate::map::mapping::Durable;
use crate::state::cache_handle::Advice;
use crate::state::file::File;
use crate::state::lock::WriteLock;

/// Something asked of a file, not started: await it, or give it to
/// [`Tokens::start`]. `R` is what awaiting it answers.
///
/// Where the reactor that it was started on comes to an end before it, or its own code panics, that is EIO without
/// the memory: an empty buffer. The same with ECHILD in the child of a fork, for what its parent has started.
#[must_use = "nothing happens until it is awaited or started"]
pub struct Ask<R> {
    /// None once it has started, or was answered from the cache.
    request: Option<FileRequest>,
    started: Option<(OutcomeCell, Option<Remote>)>,
    answer: PhantomData<fn() -> R>,
}

impl File {
    /// Reads into `buffer` from `offset` on: fewer bytes at the end of the file.
    pub fn read(&self, buffer: Buffer, offset: u64) -> Ask<(Buffer, Result<usize, Errno>)> {
        self.ask(OpKind::Read, Payload::Buffer(buffer), offset)
    }

    /// Reads into several buffers, one after the other.
    pub fn read_vectored(
        &self,
        buffers: Vec<Buffer>,
        offset: u64,
    ) -> Ask<(Vec<Buffer>, Result<usize, Errno>)> {
        self.ask(OpKind::Read, Payload::Buffers(buffers.into()), offset)
    }

    /// Writes `buffer` from `offset` on. The size of an image or a device does
    /// not change: at its end the write is short, behind it ENOSPC.
    pub fn write(&self, buffer: Buffer, offset: u64) -> Ask<(Buffer, Result<usize, Errno>)> {
        self.ask(OpKind::Write(Durability::Volatile), Payload::Buffer(buffer), offset)
    }

    /// Writes several buffers, one after the other.
    pub fn write_vectored(
        &self,
        buffers: Vec<Buffer>,
        offset: u64,
    ) -> Ask<(Vec<Buffer>, Result<usize, Errno>)> {
        self.ask(OpKind::Write(Durability::Volatile), Payload::Buffers(buffers.into()), offset)
    }

    /// Writes `buffer`, durable on completion (O_DSYNC): by FUA where the device
    /// has it, else by a flush after the write.
    pub fn write_durably(
        &self,
        buffer: Buffer,
        offset: u64,
    ) -> Ask<(Buffer, Result<usize, Errno>)> {
        self.ask(OpKind::Write(Durability::Durable), Payload::Buffer(buffer), offset)
    }

    /// Writes `buffer` behind the end of a volume's file (`O_APPEND`), and answers the offset at which that was.
    /// Of appends from any threads none meets another, and none leaves a gap. Durable with the next
    /// [`Self::datasync`].
    ///
    /// Answers EOPNOTSUPP for an image or a device; ENOSPC; EFBIG.
    pub fn append(&self, buffer: Buffer) -> Ask<(Buffer, Result<u64, Errno>)> {
        self.ask(OpKind::Append(Durability::Volatile), Payload::Buffer(buffer), 0)
    }

    /// The same, durable on completion: appends of many files and threads share a commit.
    pub fn append_durably(&self, buffer: Buffer) -> Ask<(Buffer, Result<u64, Errno>)> {
        self.ask(OpKind::Append(Durability::Durable), Payload::Buffer(buffer), 0)
    }

    /// Writes `buffer`, whole blocks of a volume's file and at most [`LONGEST_ATOMIC`](crate::LONGEST_ATOMIC)
    /// bytes, as one: after a crash all of it is there or nothing, and when it has ended all of it. It goes to
    /// free blocks, and needs as many; an overwrite of the range that runs beside it comes before or after.
    ///
    /// Answers EINVAL for parts of blocks and for more; ENOSPC, with nothing changed; EOPNOTSUPP for an image
    /// or a device.
    pub fn write_atomic(&self, buffer: Buffer, offset: u64) -> Ask<(Buffer, Result<usize, Errno>)> {
        self.ask(OpKind::WriteAtomic, Payload::Buffer(buffer), offset)
    }

    /// Makes every write that has completed durable, and the file's size, times and
    /// attributes. An image or a device has none of its own, so that this is
    /// [`Self::datasync`].
    pub fn sync(&self) -> Ask<Result<(), Errno>> {
        self.ask(OpKind::Flush(Durable::Everything), Payload::Length(0), 0)
    }

    /// Makes every write that has completed durable, and the file's size. The times that
    /// overwrites in place have moved follow with the next commit.
    pub fn datasync(&self) -> Ask<Result<(), Errno>> {
        self.ask(OpKind::Flush(Durable::Data), Payload::Length(0), 0)
    }

    /// Makes what was written to a range durable, and the file's size: of what was written through the page cache
    /// elsewhere nothing needs to go to the device for that. In bytes.
    pub fn sync_range(&self, offset: u64, length: u64) -> Ask<Result<(), Errno>> {
        self.ask(OpKind::FlushRange, Payload::Length(length), offset)
    }

    /// Has what was written through the page cache go to the device.
    pub(crate) fn save(&self) -> Ask<Result<(), Errno>> {
        self.ask(OpKind::WriteBack, Payload::Length(0), 0)
    }

    /// Gives up the content of a range: of a volume's file its whole blocks, which are free then and
    /// read as zeros. Of an image or a device what reads of it return is undefined; blocks that are
    /// covered in part are kept, and without discard it answers EOPNOTSUPP.
    pub fn discard(&self, offset: u64, length: u64) -> Ask<Result<(), Errno>> {
        self.ask(OpKind::Discard, Payload::Length(length), offset)
    }

    /// Has what of a range is inside the file read as zeros, and keeps its blocks.
    pub fn write_zeroes(&self, offset: u64, length: u64) -> Ask<Result<(), Errno>> {
        self.ask(OpKind::WriteZeroes, Payload::Length(length), offset)
    }

    /// Cuts the file off at `bytes`, or makes it as long by a hole (`ftruncate`). Durable with the
    /// next [`Self::datasync`]; after a power cut before it the file has one length or the other.
    ///
    /// Answers EOPNOTSUPP for an image or a device, EFBIG from 2^63 on.
    pub fn set_size(&self, bytes: u64) -> Ask<Result<(), Errno>> {
        self.ask(OpKind::SetSize, Payload::Length(0), bytes)
    }

    /// Allocates blocks for what of a range has none (`fallocate`): to write there needs no more
    /// room then. What is there stays, and what was not there reads as zeros.
    ///
    /// Answers ENOSPC, with nothing allocated; EINVAL for no bytes; else as [`Self::set_size`].
    pub fn allocate(&self, offset: u64, length: u64, size: Size) -> Ask<Result<(), Errno>> {
        self.ask(OpKind::Change(Change::Allocate(size)), Payload::Length(length), offset)
    }

    /// Has a range read as zeros, and frees its whole blocks (`FALLOC_FL_PUNCH_HOLE`). The size
    /// stays. Zeros for part of a block are written in place, like any overwrite.
    ///
    /// Answers as [`Self::allocate`], without ENOSPC.
    pub fn punch_hole(&self, offset: u64, length: u64) -> Ask<Result<(), Errno>> {
        self.ask(OpKind::Change(Change::PunchHole), Payload::Length(length), offset)
    }

    /// Has a range read as zeros and all of it allocated (`FALLOC_FL_ZERO_RANGE`): whole blocks
    /// become unwritten where they are. Zeros for part of a block are written in place.
    ///
    /// Answers as [`Self::allocate`]; after ENOSPC it may read as zeros already.
    pub fn zero_range(&self, offset: u64, length: u64, size: Size) -> Ask<Result<(), Errno>> {
        self.ask(OpKind::Change(Change::Zero(size)), Payload::Length(length), offset)
    }

    /// Says how the file is going to be read through the page cache: by this opening, or of a range. Of a file that
    /// is asked directly it says nothing.
    pub fn advise(&self, advice: Advice, offset: u64, length: u64) -> Ask<Result<(), Errno>> {
        self.ask(OpKind::Advise(advice), Payload::Length(length), offset)
    }

    fn ask<R>(&self, kind: OpKind, payload: Payload, offset: u64) -> Ask<R> {
        let request = FileRequest { file: self.clone(), kind, payload, offset, deadline: None };
        Ask { request: Some(request), started: None, answer: PhantomData }
    }
}

impl WriteLock {
    /// Saves what was written to the file through a page cache and is not on its device, on the reactor that serves
    /// the process; none when there is nothing.
    pub fn save(&self) -> Option<Ask<Result<(), Errno>>> {
        self.unsaved().file().map(|file| File::kept(file).save().on_service())
    }
}

impl<R> Ask<R> {
    /// Stops the operation at its next safe step at this time. Its result is then ETIMEDOUT. No effect once it
    /// has started.
    pub fn deadline(mut self, deadline: Instant) -> Ask<R> {
        if let Some(request) = &mut self.request {
            request.deadline = Some(deadline);
        }
        self
    }

    /// Requests that the operation stops at its next safe step. It still ends, and
    /// awaiting it returns how.
    pub fn cancel(&mut self) {
        if let Some(request) = self.request.take() {
            let cell = OutcomeCell::default();
            cell.sender().refuse(Errno::CANCELED, request.payload);
            self.started = Some((cell, None));
        } else if let Some((cell, Some(remote))) = &self.started {
            let cell = cell.clone();
            remote.run(move |inner| inner.cancel_by_cell(&cell));
        }
    }

    /// What was requested, to be started by token.
    pub(crate) fn into_request(self) -> FileRequest {
        self.request.expect("it has not been started")
    }

    /// Starts it if it was not, and returns how it ended.
    fn poll_outcome(&mut self, context: &mut Context<'_>) -> Poll<Outcome> {
        if self.started.is_none() {
            if let Some(outcome) = self.answer_from_cache() {
                return Poll::Ready(outcome);
            }
            self.start();
        }
        let (cell, remote) = self.started.as_ref().expect("it was just started");
        let outcome = cell.poll(context);
        if outcome.is_pending() && remote.as_ref().is_some_and(Remote::is_forked) {
            // It is the parent's, and so is the reactor that answers.
            let payload = Payload::Length(0);
            return Poll::Ready(Outcome {
                result: Err(Errno::CHILD),
                fate: Fate::Unknown,
                payload,
            });
        }
        outcome
    }

    /// Answers a read of cached bytes, which needs no reactor.
    fn answer_from_cache(&mut self) -> Option<Outcome> {
        let request = self.request.as_mut()?;
        let (OpKind::Read, Payload::Buffer(buffer)) = (request.kind, &mut request.payload) else {
            return None;
        };
        let read = buffered::read_now(&request.file.shared, buffer, request.offset)?;
        if let Some(inner) = current() {
            inner.count(Counter::CacheHit);
        }
        let FileRequest { payload, .. } = self.request.take()?;
        Some(Outcome { result: Ok(read as u64), fate: Fate::Done, payload })
    }

    /// Starts it on this thread's reactor, else on the process's own.
    fn start(&mut self) {
        let Some(inner) = current() else { return self.start_on_service() };
        let cell = OutcomeCell::default();
        let request = self.request.take().expect("it has not been started");
        request.start_awaited(&inner, cell.sender());
        inner.ask_for_turn();
        self.started = Some((cell, Some(inner.remote())));
    }

    fn start_on_service(&mut self) {
        let cell = OutcomeCell::default();
        let request = self.request.take().expect("it has not been started");
        let remote = match service() {
            Err(error) => {
                let why = Errno::from_io_error(&error).unwrap_or(Errno::NOSYS);
                cell.sender().refuse(why, request.payload);
                None
            }
            Ok(remote) => {
                let sender = cell.sender();
                remote.run(move |inner| {
                    inner.count(Counter::Remote);
                    request.start_awaited(inner, sender);
                });
                Some(remote)
            }
        };
        self.started = Some((cell, remote));
    }

    /// Starts it on the process's own reactor: awaiting it may block this thread's.
    fn on_service(mut self) -> Ask<R> {
        self.start_on_service();
        self
    }

    /// Awaits the full outcome: the result, what became of the request, and the memory.
    pub async fn outcome(mut self) -> Outcome {
        std::future::poll_fn(move |context| self.poll_outcome(context)).await
    }
}

/// What awaiting an [`Ask`] answers.
pub trait Answer {
    /// From the outcome.
    fn of(outcome: Outcome) -> Self;
}

impl Answer for (Buffer, Result<usize, Errno>) {
    fn of(outcome: Outcome) -> Self {
        match outcome.payload {
            Payload::Buffer(buffer) => (buffer, outcome.result.map(|bytes| bytes as usize)),
            Payload::Length(_) => (Buffer::zeroed(0), outcome.result.map(|bytes| bytes as usize)),
            other => unreachable!("one buffer went in, {other:?} came out"),
        }
    }
}

impl Answer for (Buffer, Result<u64, Errno>) {
    fn of(outcome: Outcome) -> Self {
        match outcome.payload {
            Payload::Buffer(buffer) => (buffer, outcome.result),
            Payload::Length(_) => (Buffer::zeroed(0), outcome.result),
            other => unreachable!("one buffer went in, {other:?} came out"),
        }
    }
}

impl Answer for (Vec<Buffer>, Result<usize, Errno>) {
    fn of(outcome: Outcome) -> Self {
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
    fn of(outcome: Outcome) -> Self {
        outcome.result.map(drop)
    }
}

impl<R: Answer> Future for Ask<R> {
    type Output = R;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<R> {
        let outcome = ready!(self.poll_outcome(context));
        Poll::Ready(R::of(outcome))
    }
}
