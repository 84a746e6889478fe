//! All links of a device.

use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;

use super::connection::Connection;
use super::link::Link;
use super::peer::Peer;

/// The most links of a device apart from the main one. Queues that get none use the main link.
const MAX_EXTRAS: usize = 15;

/// The main link, and those that queues have, or have had.
pub(super) struct Links {
    peer: Peer,
    main: Arc<Link>,
    extras: Mutex<Extras>,
}

#[derive(Default)]
struct Extras {
    all: Vec<Arc<Link>>,
    /// Those whose queues were dropped. Their writes may need a flush, so they stay connected.
    unused: Vec<Arc<Link>>,
}

impl Links {
    /// Those of a device with this connection.
    pub(super) fn new(peer: Peer, connection: Connection) -> Links {
        let main = Arc::new(Link::main(connection, Instant::now()));
        Links { peer, main, extras: Mutex::default() }
    }

    pub(super) fn peer(&self) -> &Peer {
        &self.peer
    }

    pub(super) fn main(&self) -> &Arc<Link> {
        &self.main
    }

    pub(super) fn all(&self) -> Vec<Arc<Link>> {
        let extras = self.extras.lock();
        [&self.main].into_iter().chain(&extras.all).cloned().collect()
    }

    /// A link for one queue. `None` if there are too many.
    pub(super) fn take_extra(&self) -> Option<Arc<Link>> {
        let mut extras = self.extras.lock();
        if let Some(link) = extras.unused.pop() {
            return Some(link);
        }
        (extras.all.len() < MAX_EXTRAS).then(|| {
            let link = Arc::new(Link::extra(Instant::now()));
            extras.all.push(link.clone());
            link
        })
    }

    /// The queue with this link was dropped.
    pub(super) fn put_extra(&self, link: Arc<Link>) {
        self.extras.lock().unused.push(link);
    }
}
