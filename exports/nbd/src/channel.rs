//! The bytes of a connection, plain or over TLS.

use std::cell::{Cell, RefCell};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::net::{Shutdown, shutdown};
use uringfs::reactor::LocalReactor;
use uringfs::{Buffer, Errno};

use crate::progress::Progress;
use crate::tls::{Session, Tls};

/// The bytes that are received from a client with TLS at a time.
const ENCRYPTED_BYTES: usize = 32 << 10;
/// The bytes that are encrypted and sent at a time.
const PLAIN_BYTES: usize = 256 << 10;
/// How long the end of TLS may take to be sent.
const END_TIMEOUT: Duration = Duration::from_secs(2);

/// A connection's socket. One task receives and one sends at a time.
pub(crate) struct Channel {
    reactor: LocalReactor,
    socket: Arc<OwnedFd>,
    received: Progress,
    sent: Progress,
    tls: RefCell<Option<Session>>,
    /// Why this side has ended the connection.
    failure: Cell<Option<Errno>>,
}

impl Channel {
    pub(crate) fn new(reactor: &LocalReactor, socket: OwnedFd) -> Channel {
        Channel {
            reactor: reactor.clone(),
            socket: Arc::new(socket),
            received: Progress::default(),
            sent: Progress::default(),
            tls: RefCell::default(),
            failure: Cell::default(),
        }
    }

    pub(crate) fn socket(&self) -> &Arc<OwnedFd> {
        &self.socket
    }

    /// The progress of what is received: the caller says when that is in the middle of a request.
    pub(crate) fn received(&self) -> &Progress {
        &self.received
    }

    /// Whether the client stalls in the middle of a request or of a reply.
    pub(crate) fn has_stalled(&self) -> bool {
        let stalled = [&self.received, &self.sent].map(Progress::has_stalled);
        stalled.contains(&true)
    }

    /// Ends the connection by an error.
    pub(crate) fn fail(&self, errno: Errno) {
        self.failure.set(Some(self.failure.get().unwrap_or(errno)));
        self.shut(Shutdown::Both);
    }

    /// The first error by which this side has ended the connection.
    pub(crate) fn failure(&self) -> Option<Errno> {
        self.failure.get()
    }

    /// Ends the connection, in one direction or in both.
    pub(crate) fn shut(&self, how: Shutdown) {
        let _ = shutdown(&self.socket, how);
    }

    /// Goes on with TLS, once its own handshake is done.
    ///
    /// # Errors
    /// ETIMEDOUT after the deadline; EPROTO when the handshake fails; ECONNRESET when the client ends the connection.
    pub(crate) async fn start_tls(&self, tls: &Tls, deadline: Instant) -> Result<(), Errno> {
        self.tls.replace(Some(Session::new(tls)?));
        while self.with_session(|session| session.is_shaking_hands()) {
            let received = self.receive_encrypted(Some(deadline)).await;
            // An alert says why it failed.
            let output = self.with_session(Session::take_output);
            self.send_raw(output, Some(deadline)).await?;
            if !received? {
                return Err(Errno::CONNRESET);
            }
        }
        Ok(())
    }

    fn with_session<T>(&self, run: impl FnOnce(&mut Session) -> T) -> T {
        run(self.tls.borrow_mut().as_mut().expect("TLS has started"))
    }

    /// Receives bytes into `buffer`. Returns how many: 0 at the end of the stream.
    ///
    /// # Errors
    /// ETIMEDOUT after the deadline; those of `recv(2)`; EPROTO for what is no TLS.
    pub(crate) async fn receive(
        &self,
        mut buffer: Buffer,
        deadline: Option<Instant>,
    ) -> (Result<usize, Errno>, Buffer) {
        if self.tls.borrow().is_none() {
            return self.reactor.receive(&self.socket, buffer, deadline).await;
        }
        loop {
            match self.with_session(|session| session.read(&mut buffer)) {
                Ok(Some(length)) => return (Ok(length), buffer),
                Ok(None) => {}
                Err(errno) => return (Err(errno), buffer),
            }
            if let Err(errno) = self.receive_encrypted(deadline).await {
                return (Err(errno), buffer);
            }
        }
    }

    /// Returns false at the end of the stream.
    async fn receive_encrypted(&self, deadline: Option<Instant>) -> Result<bool, Errno> {
        let buffer = Buffer::aligned(ENCRYPTED_BYTES, 64);
        let (received, mut buffer) = self.reactor.receive(&self.socket, buffer, deadline).await;
        let received = received?;
        buffer.truncate(received);
        self.with_session(|session| session.receive(buffer))?;
        Ok(received > 0)
    }

    /// Sends all bytes of buffers.
    ///
    /// # Errors
    /// ETIMEDOUT after the deadline; those of `sendmsg(2)`.
    pub(crate) async fn send(
        &self,
        buffers: Vec<Buffer>,
        deadline: Option<Instant>,
    ) -> Result<(), Errno> {
        let _transfer = self.sent.begin(buffers.iter().map(Buffer::len).sum());
        if self.tls.borrow().is_none() {
            return self.send_raw(buffers, deadline).await;
        }
        let mut written = 0;
        // Each is freed as soon as it is encrypted.
        for buffer in buffers {
            for part in buffer.chunks(PLAIN_BYTES) {
                self.with_session(|session| session.write(part))?;
                written += part.len();
                if written >= PLAIN_BYTES {
                    let output = self.with_session(Session::take_output);
                    self.send_raw(output, deadline).await?;
                    written = 0;
                }
            }
        }
        let output = self.with_session(Session::take_output);
        self.send_raw(output, deadline).await
    }

    /// Ends TLS with a message, so that the client can tell the end from a connection that was cut.
    pub(crate) async fn end_tls(&self) {
        if self.tls.borrow().is_some() {
            let output = self.with_session(Session::end);
            let _ = self.send_raw(output, Some(Instant::now() + END_TIMEOUT)).await;
        }
    }

    async fn send_raw(
        &self,
        mut buffers: Vec<Buffer>,
        deadline: Option<Instant>,
    ) -> Result<(), Errno> {
        while !buffers.is_empty() {
            let (sent, rest) = self.reactor.send_vectored(&self.socket, buffers, deadline).await;
            let sent = sent?;
            self.sent.note(sent);
            buffers = without_first(rest, sent);
        }
        Ok(())
    }
}

/// The rest of buffers, without their first `sent` bytes.
fn without_first(mut buffers: Vec<Buffer>, mut sent: usize) -> Vec<Buffer> {
    let mut whole = 0;
    for buffer in &mut buffers {
        if sent < buffer.len() {
            *buffer = buffer.split_off(sent);
            break;
        }
        sent -= buffer.len();
        whole += 1;
    }
    buffers.drain(..whole);
    buffers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_sent_is_not_sent_again() {
        let rest = |sent| {
            let buffers = [&b"abc"[..], b"DATA", b"d"].map(Buffer::copy_of).into();
            let rest = without_first(buffers, sent);
            rest.iter().flat_map(|buffer| buffer.to_vec()).collect::<Vec<u8>>()
        };
        assert_eq!(rest(0), b"abcDATAd");
        assert_eq!(rest(3), b"DATAd");
        assert_eq!(rest(5), b"TAd");
        assert_eq!(rest(8), b"");
    }
}
