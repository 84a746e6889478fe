//! The bytes that a client sends, in a buffer that grows while receives fill it.

use std::mem;
use std::rc::Rc;
use std::time::Instant;

use uringfs::{Buffer, Errno};

use crate::channel::Channel;

/// The size of the buffer of a connection that is mostly idle, in bytes.
const MIN_BYTES: usize = 4096;
/// That of a busy one.
const MAX_BYTES: usize = 32 << 10;

/// Received bytes that are still to be parsed.
pub(crate) struct Inbox {
    channel: Rc<Channel>,
    buffer: Buffer,
    start: usize,
    end: usize,
}

impl Inbox {
    pub(crate) fn new(channel: &Rc<Channel>) -> Inbox {
        Inbox { channel: channel.clone(), buffer: Buffer::zeroed(MIN_BYTES), start: 0, end: 0 }
    }

    /// The bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// The first `LENGTH` bytes, once all of them have come.
    pub(crate) fn take<const LENGTH: usize>(&mut self) -> Option<[u8; LENGTH]> {
        let bytes = *self.bytes().first_chunk()?;
        self.consume(LENGTH);
        Some(bytes)
    }

    /// The first `length` bytes are done with.
    pub(crate) fn consume(&mut self, length: usize) {
        self.start += length;
        assert!(self.start <= self.end, "only bytes that came are taken");
    }

    /// Receives more bytes. Returns false at the end of the stream.
    ///
    /// # Errors
    /// Those of [`Channel::receive`].
    pub(crate) async fn receive(&mut self, deadline: Option<Instant>) -> Result<bool, Errno> {
        self.make_room();
        let tail = self.buffer.split_off(self.end);
        let room = tail.len();
        let (received, tail) = self.channel.receive(tail, deadline).await;
        self.buffer.join(tail).expect("it is of this buffer");
        let received = received?;
        self.end += received;
        if received == room && self.buffer.len() < MAX_BYTES {
            self.grow();
        }
        Ok(received > 0)
    }

    /// Receives `into.len()` bytes: first those that are here. Returns false if the stream ends before.
    ///
    /// # Errors
    /// As [`Self::receive`].
    pub(crate) async fn receive_exact(&mut self, into: &mut Buffer) -> Result<bool, Errno> {
        let here = self.bytes().len().min(into.len());
        into[..here].copy_from_slice(&self.bytes()[..here]);
        self.consume(here);
        let mut done = here;
        let _transfer = self.channel.received().begin(into.len());
        while done < into.len() {
            let tail = into.split_off(done);
            let (received, tail) = self.channel.receive(tail, None).await;
            into.join(tail).expect("it is of this buffer");
            match received? {
                0 => return Ok(false),
                received => {
                    self.channel.received().note(received);
                    done += received;
                }
            }
        }
        Ok(true)
    }

    /// Moves the bytes to the front if they end at the end of the buffer.
    fn make_room(&mut self) {
        if self.start == self.end || self.end == self.buffer.len() {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        if self.end == self.buffer.len() {
            self.grow();
        }
    }

    fn grow(&mut self) {
        let larger = Buffer::zeroed((self.buffer.len() * 4).min(MAX_BYTES));
        let old = mem::replace(&mut self.buffer, larger);
        let bytes = &old[self.start..self.end];
        self.buffer[..bytes.len()].copy_from_slice(bytes);
        (self.start, self.end) = (0, bytes.len());
    }
}
