//! Replies on their way to the client. The task of a reply sends it, with all that gather meanwhile in one call.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::mem;
use std::rc::Rc;
use std::task::Poll;

use uringfs::Buffer;

use crate::channel::Channel;
use crate::memory::Shares;

/// The replies that wait to be sent.
pub(crate) struct Outbox {
    channel: Rc<Channel>,
    queued: RefCell<Queued>,
    is_sending: Cell<bool>,
}

#[derive(Default)]
struct Queued {
    parts: Vec<Part>,
    /// The short replies, one after the other.
    heads: Vec<u8>,
    /// Of the requests that are answered, until the client has the replies.
    shares: Vec<Shares>,
}

enum Part {
    /// So many bytes of the short replies.
    Heads(usize),
    Data(Buffer),
}

/// A reply.
pub(crate) enum Reply {
    /// Few bytes.
    Head(Vec<u8>),
    /// A head with data.
    Data(Buffer),
}

impl Outbox {
    pub(crate) fn new(channel: &Rc<Channel>) -> Outbox {
        Outbox {
            channel: channel.clone(),
            queued: RefCell::default(),
            is_sending: Cell::new(false),
        }
    }

    /// Whether this side has ended the connection by an error.
    pub(crate) fn has_failed(&self) -> bool {
        self.channel.failure().is_some()
    }

    /// Sends a reply, or leaves it to the task that is sending. Once it is impossible to send, the connection receives no more.
    pub(crate) async fn send(&self, reply: Reply, shares: Shares) {
        if self.has_failed() {
            return;
        }
        self.queued.borrow_mut().push(reply, Some(shares));
        if self.is_sending.replace(true) {
            return;
        }
        // Others that complete in this turn go with it.
        yield_now().await;
        loop {
            let (buffers, _shares) = self.queued.take().into_buffers();
            if buffers.is_empty() {
                break;
            }
            if let Err(errno) = self.channel.send(buffers, None).await {
                self.queued.take();
                self.channel.fail(errno);
                break;
            }
        }
        self.is_sending.set(false);
    }
}

impl Queued {
    fn push(&mut self, reply: Reply, shares: Option<Shares>) {
        self.shares.extend(shares);
        match (reply, self.parts.last_mut()) {
            (Reply::Head(bytes), Some(Part::Heads(length))) => {
                *length += bytes.len();
                self.heads.extend(bytes);
            }
            (Reply::Head(bytes), _) => {
                self.parts.push(Part::Heads(bytes.len()));
                self.heads.extend(bytes);
            }
            (Reply::Data(buffer), _) => self.parts.push(Part::Data(buffer)),
        }
    }

    fn into_buffers(self) -> (Vec<Buffer>, Vec<Shares>) {
        let mut heads = match self.heads.is_empty() {
            true => None,
            false => {
                let mut heads = Buffer::aligned(self.heads.len(), 8);
                heads.copy_from_slice(&self.heads);
                Some(heads)
            }
        };
        let into_buffer = |part| match part {
            Part::Data(buffer) => buffer,
            Part::Heads(length) => {
                let mut first = heads.take().expect("the lengths add up");
                heads = Some(first.split_off(length));
                first
            }
        };
        (self.parts.into_iter().map(into_buffer).collect(), self.shares)
    }
}

/// Lets the reactor's other work run.
pub(crate) async fn yield_now() {
    let mut is_first = true;
    poll_fn(|context| match mem::take(&mut is_first) {
        true => {
            context.waker().wake_by_ref();
            Poll::Pending
        }
        false => Poll::Ready(()),
    })
    .await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_replies_share_a_buffer_and_keep_their_order() {
        let mut queued = Queued::default();
        for part in [&b"a"[..], b"bc", b"DATA", b"d", b"MORE"] {
            let reply = match part[0].is_ascii_uppercase() {
                true => Reply::Data(Buffer::copy_of(part)),
                false => Reply::Head(part.to_vec()),
            };
            queued.push(reply, None);
        }
        let (buffers, _) = queued.into_buffers();
        let parts: Vec<&[u8]> = buffers.iter().map(|buffer| &buffer[..]).collect();
        assert_eq!(parts, [&b"abc"[..], b"DATA", b"d", b"MORE"]);
    }
}
