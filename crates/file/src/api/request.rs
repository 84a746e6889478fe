//! A request to a file before it starts: what to do, with which memory, where, and until when.
//!
//! - [`FileRequest::start`]: as a task of a reactor.
//! - [`FileRequest::start_awaited`]: on the fast path where one device request does it, else as a task.
//! - [`FileRequest::run_here`]: the same, and waits for the outcome.

use std::future::poll_fn;
use std::rc::Rc;
use std::time::Instant;

use rustix::io::Errno;
use uringfs_buffer::Buffer;
use uringfs_device::{Durability, Op, Payload};
use uringfs_reactor::{
    AdmissionPermit, Counter, OpResult, Operation, PushError, ReactorCore, Requester,
    ResultReceiver, ResultSender, SubmitError,
};

use crate::buffered::{read as buffered, write as buffered_write};
use crate::direct::fallocate::{self, FallocateMode};
use crate::direct::fast_path;
use crate::direct::{append, atomic_write, read as direct_read, write as direct};
use crate::map::mapping::SyncScope;
use crate::state::cache_handle::Advice;
use crate::state::file::{File, FileHandle};
use crate::writeback::runs;
use crate::writeback::sync;

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpKind {
    Read,
    /// Through the cache, waiting in this thread's reactor whatever `buffered.wait` says.
    ReadOnReactor,
    Write(Durability),
    WriteAtomic,
    Append(Durability),
    Sync(SyncScope),
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

/// A request to a file that has not started.
pub(crate) struct FileRequest {
    pub(crate) file: File,
    pub(crate) kind: OpKind,
    pub(crate) payload: Payload,
    /// Bytes; the new size for [`OpKind::SetSize`].
    pub(crate) offset: u64,
    pub(crate) deadline: Option<Instant>,
}

impl FileRequest {
    /// Starts it as a task of this reactor.
    ///
    /// # Errors
    /// As [`ReactorCore::admit_operation`], with the memory.
    pub(crate) fn start(
        self,
        inner: &Rc<ReactorCore>,
        requester: Requester,
    ) -> Result<(), SubmitError> {
        match inner.admit_operation(&self.file.handle.core) {
            Ok(permit) => {
                self.start_admitted(inner, permit, requester);
                Ok(())
            }
            Err(error) => Err(SubmitError { error, payload: self.payload }),
        }
    }

    /// Starts it for a caller that awaits: on the fast path where one device request does it.
    pub(crate) fn start_awaited(self, inner: &Rc<ReactorCore>, sender: ResultSender) {
        let (request, sender) = match (self.fast_op(), self.payload) {
            (Some(op), Payload::Buffer(buffer)) => {
                let handle = &*self.file.handle;
                if let Err(error) = ensure_attached(inner, handle) {
                    return sender.refuse(error, Payload::Buffer(buffer));
                }
                match push_fast_awaited(inner, handle, op, buffer, self.offset, sender) {
                    Ok(()) => return,
                    Err((sender, buffer)) => {
                        (FileRequest { payload: Payload::Buffer(buffer), ..self }, sender)
                    }
                }
            }
            (_, payload) => {
                let request = FileRequest { payload, ..self };
                request.count_refusal(inner);
                (request, sender)
            }
        };
        match inner.admit_operation(&request.file.handle.core) {
            Ok(permit) => request.start_admitted(inner, permit, Requester::Future(sender)),
            Err(error) => sender.refuse(error, request.payload),
        }
    }

    /// Starts it on this reactor, which the caller's thread drives, and returns how it ended.
    pub(crate) async fn run_here(self, inner: Rc<ReactorCore>) -> OpResult {
        let cell = ResultReceiver::default();
        self.start_awaited(&inner, cell.sender());
        inner.request_turn();
        poll_fn(|context| cell.poll(context)).await
    }

    /// The device request that the fast path may make of it.
    fn fast_op(&self) -> Option<Op> {
        match self.kind {
            OpKind::Read if self.deadline.is_none() => Some(Op::Read),
            OpKind::Write(Durability::Volatile) if self.deadline.is_none() => Some(Op::Write),
            _ => None,
        }
    }

    /// Counts the reason if its form alone (several buffers, a deadline) excludes a read from the fast path.
    pub(crate) fn count_refusal(&self, inner: &ReactorCore) {
        match (self.kind, &self.payload) {
            (OpKind::Read, Payload::Buffers(_)) => inner.count(Counter::FastPathVectored),
            (OpKind::Read, _) if self.deadline.is_some() => inner.count(Counter::FastPathDeadline),
            _ => {}
        }
    }

    /// Starts it after its admission. Inlined where the kind is known, so that it is matched once.
    #[inline(always)]
    pub(crate) fn start_admitted(
        self,
        inner: &Rc<ReactorCore>,
        permit: AdmissionPermit,
        requester: Requester,
    ) {
        let FileRequest { file, kind, payload, offset, deadline } = self;
        let task = Task { inner, permit, requester, deadline };
        let length = payload.length();
        match kind {
            OpKind::Read if file.handle.waits_in_threads() => task.start(|operation| {
                buffered::read_in_thread(operation, payload, move |reactor, payload| {
                    let kind = OpKind::ReadOnReactor;
                    let read = FileRequest { file, kind, payload, offset, deadline: None };
                    reactor.block_on(read.run_here(reactor.inner().clone()))
                })
            }),
            OpKind::Read | OpKind::ReadOnReactor if file.handle.cache.is_some() => {
                task.start(|operation| buffered::read(operation, file, payload, offset));
            }
            OpKind::Read | OpKind::ReadOnReactor => {
                task.start(|operation| direct_read::read(operation, file, payload, offset));
            }
            OpKind::Write(Durability::Volatile) if file.handle.cache.is_some() => {
                task.start(|operation| buffered_write::write(operation, file, payload, offset));
            }
            OpKind::Write(durability) => {
                task.start(|operation| direct::write(operation, file, payload, offset, durability))
            }
            OpKind::Append(durability) => {
                task.start(|operation| append::append(operation, file, payload, durability));
            }
            OpKind::WriteAtomic => {
                task.start(|operation| atomic_write::write(operation, file, payload, offset));
            }
            OpKind::Sync(what) => {
                task.start(|operation| sync::sync(operation, file, what, 0..u64::MAX));
            }
            OpKind::SyncRange => {
                let range = offset..offset.saturating_add(length);
                task.start(|operation| sync::sync(operation, file, SyncScope::Data, range));
            }
            OpKind::WriteBack => task.start(|operation| runs::write_back_all(operation, file)),
            OpKind::Discard => {
                task.start(|operation| fallocate::discard(operation, file, offset, length));
            }
            OpKind::WriteZeroes => {
                task.start(|operation| fallocate::write_zeroes(operation, file, offset, length));
            }
            OpKind::Advise(advice) => {
                task.start(|operation| buffered::advise(operation, file, advice, offset, length));
            }
            OpKind::SetSize => task.start(|operation| fallocate::set_size(operation, file, offset)),
            OpKind::Fallocate(mode) => {
                task.start(|operation| fallocate::fallocate(operation, file, mode, offset, length));
            }
        }
    }
}

/// A task that is counted in, without its body.
struct Task<'r> {
    inner: &'r Rc<ReactorCore>,
    permit: AdmissionPermit,
    requester: Requester,
    deadline: Option<Instant>,
}

impl Task<'_> {
    #[inline(always)]
    fn start<F>(self, body: impl FnOnce(Operation) -> F)
    where
        F: Future<Output = ()> + 'static,
    {
        self.inner.start_operation(self.permit, self.requester, self.deadline, body);
    }
}

/// Pushes an awaited transfer as one device request. The device is attached.
///
/// # Errors
/// Gives sender and buffer back where the slow path has to take it, and counts why.
fn push_fast_awaited(
    inner: &ReactorCore,
    handle: &FileHandle,
    op: Op,
    buffer: Buffer,
    offset: u64,
    sender: ResultSender,
) -> Result<(), (ResultSender, Buffer)> {
    let locate = |buffer: &Buffer| match op {
        Op::Read => fast_path::read(handle, buffer, offset),
        _ => fast_path::write(handle, buffer, offset),
    };
    match inner.push_fast_awaited(handle.index, op, buffer, sender, locate) {
        Ok(()) => {
            inner.count(if op == Op::Read {
                Counter::FastPathTaken
            } else {
                Counter::WriteUnlocked
            });
            Ok(())
        }
        Err((PushError::NotEligible(buffer, refusal), sender)) => {
            if op == Op::Read {
                fast_path::count_refusal(inner, handle, refusal);
            }
            Err((sender, buffer))
        }
        Err((PushError::QueueFull(buffer), sender)) => {
            if op == Op::Read {
                inner.count(Counter::FastPathQueueFull);
            }
            Err((sender, buffer))
        }
    }
}

/// Attaches the file's device to this reactor if it was not: true when it is attached only now.
///
/// # Errors
/// ECHILD in the child of a fork, ENODEV when the device is closed, errors of attaching.
pub(crate) fn ensure_attached(inner: &ReactorCore, handle: &FileHandle) -> Result<bool, Errno> {
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
