//! The connection to a front end: receives whole messages with their descriptors, and sends replies. Waits on the reactor.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use uringfs::Reactor;
use uringfs::reactor::PollEvents;

use crate::abi::MessageHeader;
use crate::message::{HEADER_BYTES, MAX_DESCRIPTORS, Malformed, parse_header};

/// How long the rest of a message may take, and the front end to take a reply.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(10);

/// A connection.
#[derive(Debug)]
pub(crate) struct Connection<'r> {
    reactor: &'r Reactor,
    socket: Arc<OwnedFd>,
}

/// A message, received in full.
#[derive(Debug)]
pub(crate) struct Received {
    pub(crate) header: MessageHeader,
    pub(crate) payload: Vec<u8>,
    pub(crate) descriptors: Vec<OwnedFd>,
}

impl<'r> Connection<'r> {
    pub(crate) fn new(reactor: &'r Reactor, socket: OwnedFd) -> Connection<'r> {
        Connection { reactor, socket: Arc::new(socket) }
    }

    /// The next message. `None` when the front end has closed the connection between two messages.
    ///
    /// # Errors
    /// Those of the socket; InvalidData for what is no message; TimedOut when the rest of one does not come.
    pub(crate) async fn receive(&self) -> io::Result<Option<Received>> {
        let mut descriptors = Vec::new();
        let mut head = [0; HEADER_BYTES];
        match self.receive_exactly(&mut head, &mut descriptors, None).await? {
            0 => return Ok(None),
            HEADER_BYTES => {}
            _ => return Err(io::ErrorKind::UnexpectedEof.into()),
        }
        let (header, length) = parse_header(&head).map_err(invalid)?;
        let mut payload = vec![0; length];
        let deadline = Some(Instant::now() + MESSAGE_TIMEOUT);
        if self.receive_exactly(&mut payload, &mut descriptors, deadline).await? != length {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(Some(Received { header, payload, descriptors }))
    }

    /// Fills `into`, and returns the bytes received: fewer at the end of the stream. Without a deadline the first byte may
    /// take for ever.
    async fn receive_exactly(
        &self,
        into: &mut [u8],
        descriptors: &mut Vec<OwnedFd>,
        mut deadline: Option<Instant>,
    ) -> io::Result<usize> {
        let mut done = 0;
        while done < into.len() {
            match self.receive_some(&mut into[done..], descriptors) {
                Ok(0) => break,
                Ok(received) => {
                    done += received;
                    deadline.get_or_insert_with(|| Instant::now() + MESSAGE_TIMEOUT);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.reactor.poll(&self.socket, PollEvents::IN, deadline).await?;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    fn receive_some(&self, into: &mut [u8], descriptors: &mut Vec<OwnedFd>) -> io::Result<usize> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let mut into = [IoSliceMut::new(into)];
        let received = recvmsg(&self.socket, &mut into, &mut control, flags)?;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                descriptors.extend(rights);
            }
        }
        if received.flags.contains(ReturnFlags::CTRUNC) || descriptors.len() > MAX_DESCRIPTORS {
            return Err(invalid(Malformed("too many descriptors")));
        }
        Ok(received.bytes)
    }

    /// Sends a message, with a descriptor if there is one.
    ///
    /// # Errors
    /// Those of the socket; TimedOut when the front end takes nothing.
    pub(crate) async fn send(
        &self,
        bytes: &[u8],
        descriptor: Option<BorrowedFd<'_>>,
    ) -> io::Result<()> {
        let deadline = Some(Instant::now() + MESSAGE_TIMEOUT);
        let (mut done, mut descriptor) = (0, descriptor);
        while done < bytes.len() {
            match send_some(&self.socket, &bytes[done..], descriptor) {
                Ok(sent) => {
                    done += sent;
                    descriptor = None;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.reactor.poll(&self.socket, PollEvents::OUT, deadline).await?;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Sends what the socket takes now.
///
/// # Errors
/// WouldBlock when it takes nothing; the others of `sendmsg(2)`.
pub(crate) fn send_some(
    socket: &OwnedFd,
    bytes: &[u8],
    descriptor: Option<BorrowedFd<'_>>,
) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = descriptor.as_slice();
    if !descriptors.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    Ok(sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags)?)
}

pub(crate) fn invalid(Malformed(what): Malformed) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the front end sent {what}"))
}
