//! The work of a connection: requests of queues, and the parts of their flushes.

use std::sync::Arc;

use parking_lot::Mutex;
use uringfs_errno::Errno;
use uringfs_nbd_protocol::handshake::export_flags;
use uringfs_nbd_protocol::transmission::{Command, command_flags};

use super::export::{Export, MAX_CLEAR};
use super::inbox::Inbox;
use super::peer::Peer;
use crate::request::{Durability, Op, Payload, Request, StepCompletion, Tag};

/// The longest write of zeros to a server without `WRITE_ZEROES`, in bytes.
const MAX_ZEROS: u64 = 1 << 20;

/// A piece of work, which may go over several connections until one gets a reply.
pub(super) struct Job {
    pub(super) work: Work,
    pub(super) owner: Arc<Inbox>,
    /// The request's own memory, if a copy is in its place: sockets move slices.
    shared: Option<Payload>,
    /// Bytes of a discard or zeroing that earlier messages have done.
    cleared: u64,
}

pub(super) enum Work {
    /// A read, a write, a discard or a zeroing.
    Request(Request),
    /// A flush of one connection.
    FlushPart(Arc<Flush>),
    /// The same, before the connection is replaced: nothing waits for its end.
    LastFlush,
}

/// A flush, which covers several connections.
pub(super) struct Flush {
    state: Mutex<FlushState>,
}

struct FlushState {
    /// Until the last part has ended.
    request: Option<Request>,
    parts: usize,
    result: Result<u32, Errno>,
}

/// One message of a job.
#[derive(Clone, Copy, Debug)]
pub(super) struct Message {
    pub(super) command: Command,
    pub(super) flags: u16,
    pub(super) offset: u64,
    pub(super) length: u32,
    pub(super) payload: MessagePayload,
}

/// The bytes after the head of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MessagePayload {
    None,
    /// The memory of the request.
    Memory,
    Zeros,
}

/// The step that follows a reply without an error.
pub(super) enum Next {
    /// The next message of the job.
    Message(Job),
    /// The job has ended with so many bytes.
    End(Job, u32),
}

impl Message {
    /// Whether a sound server may be silent for long before it replies.
    pub(super) fn is_slow(&self) -> bool {
        matches!(self.command, Command::FLUSH | Command::TRIM | Command::WRITE_ZEROES)
    }
}

impl Flush {
    /// `request`, which ends with the last of `parts` parts, at least one.
    pub(super) fn new(request: Request, parts: usize) -> Arc<Flush> {
        let state = FlushState { request: Some(request), parts, result: Ok(0) };
        Arc::new(Flush { state: Mutex::new(state) })
    }

    fn end_part(&self, result: Result<u32, Errno>) -> Option<StepCompletion> {
        let mut state = self.state.lock();
        state.result = state.result.and(result);
        state.parts -= 1;
        if state.parts > 0 {
            return None;
        }
        let request = state.request.take()?;
        Some(StepCompletion { request, result: state.result })
    }
}

impl Job {
    pub(super) fn new(mut work: Work, owner: Arc<Inbox>) -> Job {
        let shared = match &mut work {
            Work::Request(request) => request.replace_shared(),
            Work::FlushPart(_) | Work::LastFlush => None,
        };
        Job { work, owner, shared, cleared: 0 }
    }

    /// Whether it must not be done once acknowledged writes were lost.
    pub(super) fn is_change(&self) -> bool {
        match &self.work {
            Work::Request(request) => request.op != Op::Read,
            Work::FlushPart(_) | Work::LastFlush => true,
        }
    }

    /// Whether it needs bytes that a connection to this export does not have.
    pub(super) fn reaches_beyond(&self, export: &Export, peer: &Peer) -> bool {
        let Work::Request(request) = &self.work else { return false };
        request.address.saturating_add(request.length()).min(peer.size()) > export.size
    }

    /// Whether its effect may be lost until a flush. A discard need not be durable.
    pub(super) fn is_volatile(&self, peer: &Peer) -> bool {
        let Work::Request(request) = &self.work else { return false };
        peer.geometry.volatile_cache
            && matches!(request.op, Op::Write | Op::WriteZeroes)
            && request.durability == Durability::Volatile
    }

    /// Whether it is a request with this tag, of this queue.
    pub(super) fn has_tag(&self, owner: &Arc<Inbox>, tag: Tag) -> bool {
        let is_tagged = matches!(&self.work, Work::Request(request) if request.tag == tag);
        is_tagged && Arc::ptr_eq(&self.owner, owner)
    }

    /// Its owner has cancelled it.
    pub(super) fn set_cancelled(&mut self) {
        if let Work::Request(request) = &mut self.work {
            request.cancel();
        }
    }

    /// Its next message on a connection to `export`, which may have fewer bytes than another connection has by now.
    pub(super) fn message(&self, export: &Export, peer: &Peer) -> Message {
        let Work::Request(request) = &self.work else {
            let (command, payload) = (Command::FLUSH, MessagePayload::None);
            return Message { command, flags: 0, offset: 0, length: 0, payload };
        };
        let geometry = &peer.geometry;
        let offset = request.address + request.done() + self.cleared;
        let wanted = request.remaining() - self.cleared;
        let room = peer.size().min(export.whole_size()) - offset;
        let is_durable = request.durability == Durability::Durable;
        let fua = match is_durable && peer.export.has(export_flags::SEND_FUA) {
            true => command_flags::FUA,
            false => 0,
        };
        let (command, flags, most, payload) = match request.op {
            Op::Read => (Command::READ, 0, geometry.max_transfer.into(), MessagePayload::None),
            Op::Write => {
                (Command::WRITE, fua, geometry.max_transfer.into(), MessagePayload::Memory)
            }
            Op::Discard => (Command::TRIM, fua, MAX_CLEAR, MessagePayload::None),
            Op::WriteZeroes if geometry.write_zeroes => {
                (Command::WRITE_ZEROES, fua, MAX_CLEAR, MessagePayload::None)
            }
            Op::WriteZeroes => {
                let most = MAX_ZEROS.min(geometry.max_transfer.into());
                (Command::WRITE, fua, most, MessagePayload::Zeros)
            }
            Op::Flush => unreachable!("flushes are jobs of their own"),
        };
        // Below `most`, so that it fits.
        let length = wanted.min(room).min(most) as u32;
        Message { command, flags, offset, length, payload }
    }

    /// The server has done `length` bytes.
    pub(super) fn advance(mut self, length: u32) -> Next {
        match &self.work {
            Work::Request(request) if matches!(request.op, Op::Discard | Op::WriteZeroes) => {
                self.cleared += u64::from(length);
                match self.cleared < request.remaining() {
                    true => Next::Message(self),
                    false => Next::End(self, 0),
                }
            }
            _ => Next::End(self, length),
        }
    }

    /// Ends it. Returns the completion that its owner gets now, if any.
    pub(super) fn end(self, result: Result<u32, Errno>) -> Option<(Arc<Inbox>, StepCompletion)> {
        let completion = match self.work {
            Work::Request(mut request) => {
                if let Some(shared) = self.shared {
                    request.restore_shared(shared, result.unwrap_or(0));
                }
                StepCompletion { request, result }
            }
            Work::FlushPart(flush) => flush.end_part(result)?,
            Work::LastFlush => return None,
        };
        Some((self.owner, completion))
    }
}
