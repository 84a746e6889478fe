//! [`Session`]: one mounted volume, and [`Task`], a request under way.

use std::cell::Cell;
use std::future::poll_fn;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};

use uringfs::{Errno, Volume};

use crate::abi::InHeader;
use crate::reply::send;
use crate::tables::{Handles, Nodes};

/// The most bytes of one read or write.
pub(crate) const MAX_TRANSFER: u32 = 1 << 20;

/// One mounted volume, which all of its threads share.
pub(crate) struct Session {
    pub(crate) volume: Volume,
    pub(crate) nodes: Nodes,
    pub(crate) handles: Handles,
}

impl Session {
    pub(crate) fn new(volume: &Volume) -> Session {
        Session {
            volume: volume.clone(),
            nodes: Nodes::new(volume.root()),
            handles: Handles::default(),
        }
    }
}

/// The number of a thread's requests in flight.
#[derive(Default)]
pub(crate) struct RequestCount {
    count: Cell<usize>,
    /// Waits for 0.
    waker: Cell<Option<Waker>>,
}

impl RequestCount {
    /// Waits until no request is in flight.
    pub(crate) async fn wait_for_none(&self) {
        poll_fn(|context| match self.count.get() {
            0 => Poll::Ready(()),
            _ => {
                self.waker.set(Some(context.waker().clone()));
                Poll::Pending
            }
        })
        .await;
    }
}

/// Counts a request in flight.
pub(crate) struct InFlight(Rc<RequestCount>);

impl InFlight {
    pub(crate) fn new(requests: &Rc<RequestCount>) -> InFlight {
        requests.count.set(requests.count.get() + 1);
        InFlight(requests.clone())
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.count.set(self.0.count.get() - 1);
        if self.0.count.get() == 0
            && let Some(waker) = self.0.waker.take()
        {
            waker.wake();
        }
    }
}

/// A request under way.
pub(crate) struct Task {
    pub(crate) session: Arc<Session>,
    pub(crate) header: InHeader,
    pub(crate) channel: Arc<OwnedFd>,
    pub(crate) _in_flight: InFlight,
}

impl Task {
    pub(crate) fn reply(&self, result: Result<&[u8], Errno>) {
        send(&self.channel, self.header.unique, result);
    }

    /// Replies with what the kernel has to give back later. Returns false if it did not take it.
    pub(crate) fn try_reply(&self, payload: &[u8]) -> bool {
        send(&self.channel, self.header.unique, Ok(payload))
    }
}
