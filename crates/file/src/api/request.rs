//! A request to a file before it starts: what to do, with which memory, where, and until when.
//!
//! - [`FileRequest::start`]: as a task of a reactor.
//! - [`FileRequest::start_awaited`]: on the fast path where one device request does it, else as a task.
//! - [`FileRequest::run_here`]: the same, and waits for the outcome.

use std::future::poll_fn;
use std::rc::Rc;
use std::time::Instant;

use uringfs_buffer::Buffer;
use uringfs_device::{Durability, Errno, Op, Payload};
use uringfs_reactor::{
    AdmissionPermit, Counter, Locate, OpResult, Operation, PushError, ReactorCore, Requester,
    ResultReceiver, ResultSender, SubmitError,
};

use crate::buffered::single_miss::SingleMiss;
use crate::buffered::{read as buffered, write as buffered_write};
use crate::direct::fallocate::{self, FallocateMode};
use crate::direct::fast_path;
use crate::direct::{append, atomic_write, read as direct_read, write as direct};
use crate::map::mapping::SyncScope;
use crate::state::buffered_handle::Advice;
use crate::state::file::{File, FileHandle};
use crate::writeback::runs;
use crate::writeback::sync;

/// The operation that a request asks for.
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
    SetLen,
    Fallocate(FallocateMode),
    Advise(Advice),
}

/// A request to a file that has not started.
pub(crate) struct FileRequest {
    pub(crate) file: File,
    pub(crate) kind: OpKind,
    pub(crate) payload: Payload,
    /// In bytes; the new size for [`OpKind::SetLen`].
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
        reactor: &Rc<ReactorCore>,
        requester: Requester,
    ) -> Result<(), SubmitError> {
        match reactor.admit_operation(&self.file.handle.device_inner) {
            Ok(permit) => {
                self.start_admitted(reactor, permit, requester);
                Ok(())
            }
            Err(error) => Err(SubmitError::new(error, self.payload)),
        }
    }

    /// Starts it for a caller that awaits: on the fast path where one device request does it.
    pub(crate) fn start_awaited(self, reactor: &Rc<ReactorCore>, sender: ResultSender) {
        let (request, sender) = match (self.fast_op(), self.payload) {
            (Some(op), Payload::Buffer(buffer)) => {
                let handle = &*self.file.handle;
                match push_fast_awaited(reactor, handle, op, buffer, self.offset, sender) {
                    Ok(()) => return,
                    Err(Unpushed { sender, buffer, why: Some(error) }) => {
                        drop(self.file);
                        return sender.refuse(error, Payload::Buffer(buffer));
                    }
                    Err(Unpushed { sender, buffer, why: None }) => {
                        (FileRequest { payload: Payload::Buffer(buffer), ..self }, sender)
                    }
                }
            }
            (_, payload) => {
                let request = FileRequest { payload, ..self };
                request.count_refusal(reactor);
                (request, sender)
            }
        };
        match reactor.admit_awaited(&request.file.handle.device_inner) {
            Ok(permit) => request.start_admitted(reactor, permit, Requester::Future(sender)),
            Err(error) => {
                drop(request.file);
                sender.refuse(error, request.payload);
            }
        }
    }

    /// Starts it on this reactor, which the caller's thread drives, and returns how it ended.
    pub(crate) async fn run_here(self, reactor: Rc<ReactorCore>) -> OpResult {
        let receiver = ResultReceiver::default();
        self.start_awaited(&reactor, receiver.sender());
        reactor.request_turn();
        poll_fn(|context| receiver.poll(context)).await
    }

    /// The device request that the fast path, or a thread that waits, may make of it.
    pub(crate) fn fast_op(&self) -> Option<(Op, Durability)> {
        match self.kind {
            _ if self.deadline.is_some() => None,
            OpKind::Read => Some((Op::Read, Durability::Volatile)),
            OpKind::Write(durability) => Some((Op::Write, durability)),
            _ => None,
        }
    }

    /// Counts the reason if its form alone (several buffers, a deadline) excludes a read from the fast path.
    pub(crate) fn count_refusal(&self, reactor: &ReactorCore) {
        match (self.kind, &self.payload) {
            (OpKind::Read, Payload::Buffers(_)) => reactor.count(Counter::FastPathVectored),
            (OpKind::Read, _) if self.deadline.is_some() => {
                reactor.count(Counter::FastPathDeadline)
            }
            _ => {}
        }
    }

    /// Starts it after its admission. Inlined where the kind is known, so that it is matched once.
    #[inline(always)]
    pub(crate) fn start_admitted(
        self,
        reactor: &Rc<ReactorCore>,
        permit: AdmissionPermit,
        requester: Requester,
    ) {
        let FileRequest { file, kind, payload, offset, deadline } = self;
        let task = Task { reactor, permit, requester, deadline };
        let length = payload.length();
        let refusal = match kind {
            OpKind::Read => file.handle.read_refusal,
            OpKind::ReadOnReactor | OpKind::Advise(_) => None,
            _ => file.handle.map.check_process().err(),
        };
        if let Some(errno) = refusal {
            return task.start(|operation| async move {
                operation.end_releasing(file, payload, Err(errno))
            });
        }
        match kind {
            OpKind::Read if file.handle.waits_in_threads() => task.start(|operation| {
                buffered::read_in_thread(operation, payload, move |reactor, payload| {
                    let kind = OpKind::ReadOnReactor;
                    let read = FileRequest { file, kind, payload, offset, deadline: None };
                    reactor.block_on(read.run_here(reactor.inner().clone()))
                })
            }),
            OpKind::Read | OpKind::ReadOnReactor if file.handle.cache().is_some() => {
                let single = match task.deadline {
                    None => SingleMiss::begin(task.reactor, &file.handle, offset, length),
                    Some(_) => None,
                };
                match single {
                    Some(miss) => {
                        task.start(|operation| miss.read(operation, file, payload, offset))
                    }
                    None => {
                        task.start(|operation| buffered::read(operation, file, payload, offset))
                    }
                }
            }
            OpKind::Read | OpKind::ReadOnReactor => {
                task.start(|operation| direct_read::read(operation, file, payload, offset));
            }
            OpKind::Write(Durability::Volatile) if file.handle.cache().is_some() => {
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
            OpKind::SetLen => task.start(|operation| fallocate::set_len(operation, file, offset)),
            OpKind::Fallocate(mode) => {
                task.start(|operation| fallocate::fallocate(operation, file, mode, offset, length));
            }
        }
    }
}

/// An admitted operation, without its body.
struct Task<'r> {
    reactor: &'r Rc<ReactorCore>,
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
        self.reactor.start_operation(self.permit, self.requester, self.deadline, body);
    }
}

/// A read or an overwrite, to be located for the fast path.
struct LocateAwaited<'a> {
    op: (Op, Durability),
    reactor: &'a ReactorCore,
    handle: &'a FileHandle,
    offset: u64,
}

impl Locate for LocateAwaited<'_> {
    fn locate(self, buffer: &Buffer) -> Option<u64> {
        let LocateAwaited { op, reactor, handle, offset } = self;
        match op {
            (Op::Read, _) => fast_path::LocateRead { reactor, handle, offset }.locate(buffer),
            (_, Durability::Volatile) => fast_path::LocateWrite { handle, offset }.locate(buffer),
            (_, Durability::Durable) => {
                fast_path::LocateDurableWrite { handle, offset }.locate(buffer)
            }
        }
    }
}

/// An awaited transfer that was not pushed.
struct Unpushed {
    sender: ResultSender,
    buffer: Buffer,
    /// Why nothing takes it. `None` if the slow path does.
    why: Option<Errno>,
}

/// Pushes an awaited transfer as one device request. Attaches the device at its first use.
///
/// # Errors
/// [`Unpushed`]. Counts why the slow path has to take it.
fn push_fast_awaited(
    reactor: &ReactorCore,
    handle: &FileHandle,
    op: (Op, Durability),
    buffer: Buffer,
    offset: u64,
    sender: ResultSender,
) -> Result<(), Unpushed> {
    let is_read = op.0 == Op::Read;
    let locate = LocateAwaited { op, reactor, handle, offset };
    match reactor.push_fast_awaited(handle.index, op, buffer, sender, locate) {
        Ok(()) => {
            reactor.count(if is_read { Counter::FastPathTaken } else { Counter::WriteUnlocked });
            Ok(())
        }
        Err((PushError::NotEligible(buffer), sender)) => {
            Err(Unpushed { sender, buffer, why: None })
        }
        Err((PushError::QueueFull(buffer), sender)) => match ensure_attached(reactor, handle) {
            Ok(true) => push_fast_awaited(reactor, handle, op, buffer, offset, sender),
            Ok(false) => {
                if is_read {
                    reactor.count(Counter::FastPathQueueFull);
                }
                Err(Unpushed { sender, buffer, why: None })
            }
            Err(error) => Err(Unpushed { sender, buffer, why: Some(error) }),
        },
    }
}

/// Attaches the file's device to this reactor if it was not: true when it is attached only now.
///
/// # Errors
/// ECHILD in the child of a fork, ENODEV when the device is closed, errors of attaching.
pub(crate) fn ensure_attached(reactor: &ReactorCore, handle: &FileHandle) -> Result<bool, Errno> {
    if reactor.is_forked() {
        return Err(Errno::CHILD);
    }
    if handle.device_inner.is_closed() {
        return Err(Errno::NODEV);
    }
    if reactor.is_attached(handle.index) {
        return Ok(false);
    }
    // Attaching takes locks of the process, which threads of the parent may have held.
    handle.map.check_process()?;
    reactor
        .attach(&handle.device_inner)
        .map(|()| true)
        .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
}
