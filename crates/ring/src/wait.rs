//! Waits for descriptors that become ready, for connections and for bytes of a socket.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;

use io_uring::squeue::{Entry, Entry128};
use io_uring::{opcode, types};
use uringfs_buffer::Buffer;

use crate::command::Command;
use crate::gathered_send::GatheredSend;
use crate::in_flight::RequestId;
use crate::poll_events::PollEvents;

/// An event to wait for. Owns its descriptor and its memory until the wait ends.
#[derive(Debug)]
pub enum Wait {
    /// The descriptor becomes ready for any of `events`.
    Poll {
        /// The descriptor to poll.
        file: Arc<OwnedFd>,
        /// The events to poll for.
        events: PollEvents,
    },
    /// A connection arrives.
    Accept {
        /// The listening socket.
        file: Arc<OwnedFd>,
    },
    /// Bytes arrive: 0 at the end of the stream.
    Receive {
        /// The socket.
        file: Arc<OwnedFd>,
        /// Their destination.
        buffer: Buffer,
    },
    /// The socket accepts bytes.
    Send {
        /// The socket.
        file: Arc<OwnedFd>,
        /// Their source.
        buffer: Buffer,
    },
    /// The socket accepts bytes of several buffers, in their order.
    SendVectored {
        /// The socket.
        file: Arc<OwnedFd>,
        /// Their sources.
        send: Box<GatheredSend>,
    },
    /// A command ends.
    Command(Box<Command>),
}

/// The output of a successful wait.
#[derive(Debug)]
pub enum WaitOutput {
    /// Polled: the events.
    Ready(PollEvents),
    /// Accepted: the connection.
    Accepted(OwnedFd),
    /// Received or sent: the number of bytes.
    Moved(u32),
    /// Ended: the driver's result.
    Ended(u32),
}

/// The submission entry of a wait.
pub(crate) enum WaitEntry {
    Narrow(Entry),
    Wide(Entry128),
}

/// The handle of a wait in flight, to cancel it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitHandle(pub(crate) RequestId);

impl Wait {
    /// The descriptor concerned.
    pub fn file(&self) -> &Arc<OwnedFd> {
        match self {
            Wait::Poll { file, .. }
            | Wait::Accept { file }
            | Wait::Receive { file, .. }
            | Wait::Send { file, .. }
            | Wait::SendVectored { file, .. } => file,
            Wait::Command(command) => command.file(),
        }
    }

    /// Decodes the kernel's result of this wait. Must be called exactly once for each result: it
    /// takes ownership of an accepted descriptor.
    pub(crate) fn decode(&self, value: u32) -> WaitOutput {
        match self {
            Wait::Poll { .. } => WaitOutput::Ready(PollEvents::from_bits(value)),
            Wait::Accept { .. } => {
                // SAFETY: the kernel has just opened this descriptor for the accept,
                // and its completion is taken once.
                let socket = unsafe { OwnedFd::from_raw_fd(value as i32) };
                WaitOutput::Accepted(socket)
            }
            Wait::Receive { .. } | Wait::Send { .. } | Wait::SendVectored { .. } => {
                WaitOutput::Moved(value)
            }
            Wait::Command(_) => WaitOutput::Ended(value),
        }
    }

    /// The entry. A command has a wide one.
    pub(crate) fn entry(&self, id: RequestId) -> WaitEntry {
        let descriptor = types::Fd(self.file().as_raw_fd());
        let entry = match self {
            Wait::Poll { events, .. } => opcode::PollAdd::new(descriptor, events.bits()).build(),
            Wait::Accept { .. } => {
                opcode::Accept::new(descriptor, std::ptr::null_mut(), std::ptr::null_mut())
                    .flags(libc::SOCK_CLOEXEC)
                    .build()
            }
            Wait::Receive { buffer, .. } => {
                opcode::Recv::new(descriptor, buffer.pointer().as_ptr(), buffer.len() as u32)
                    .build()
            }
            Wait::Send { buffer, .. } => {
                opcode::Send::new(descriptor, buffer.pointer().as_ptr(), buffer.len() as u32)
                    .flags(libc::MSG_NOSIGNAL)
                    .build()
            }
            Wait::SendVectored { send, .. } => opcode::SendMsg::new(descriptor, send.message())
                .flags(libc::MSG_NOSIGNAL as u32)
                .build(),
            Wait::Command(command) => return WaitEntry::Wide(command.entry(id)),
        };
        WaitEntry::Narrow(entry.user_data(id.0))
    }
}
