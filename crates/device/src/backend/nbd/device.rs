//! The back end.

use std::fmt;
use std::io;
use std::sync::Arc;

use uringfs_errno::Errno;

use super::super::kept_queues::{self, KeptQueues};
use super::links::Links;
use super::open::{ask_size, open};
use super::queue::{NbdQueue, QueueUser};
use super::target::NbdTarget;
use crate::geometry::Geometry;
use crate::interface::backend::{Access, Backend, KernelTarget};
use crate::interface::queue::Queue;
use crate::request::Request;

/// An export of an NBD server.
pub struct Nbd {
    target: String,
    /// The same for all devices with the same server and name.
    name: String,
    links: Arc<Links>,
    /// For [`Backend::perform`].
    queues: KeptQueues<NbdQueue>,
}

impl Nbd {
    /// Connects to a server, and opens its export.
    ///
    /// # Errors
    /// In one line why it cannot be opened, with the URI and what to do. `NotFound` for a name that the server does not
    /// have, `ReadOnlyFilesystem` for a read-only export that is to be written.
    pub fn open(target: &NbdTarget, access: Access) -> io::Result<Nbd> {
        let (peer, connection) = open(target, access)?;
        let links = Arc::new(Links::new(peer, connection));
        let name = target.canonical().to_string();
        Ok(Nbd { target: target.to_string(), name, links, queues: KeptQueues::default() })
    }
}

impl Nbd {
    /// A queue for a thread that performs requests.
    fn thread_queue(&self) -> Result<NbdQueue, Errno> {
        NbdQueue::new(self.links.clone(), kept_queues::DEPTH, QueueUser::Thread)
    }
}

impl Backend for Nbd {
    fn geometry(&self) -> &Geometry {
        &self.links.peer().geometry
    }

    fn size(&self) -> Result<u64, Errno> {
        Ok(self.links.peer().offered())
    }

    fn ask_size(&self) -> Result<u64, Errno> {
        ask_size(self.links.peer())
    }

    fn description(&self) -> String {
        format!("{}, {} bytes", self.target, self.links.peer().size())
    }

    fn kernel_target(&self) -> KernelTarget<'_> {
        KernelTarget::InProcess
    }

    fn perform(&self, request: &mut Request) -> Result<u32, Errno> {
        if let Some(result) = self.links.peer().check(request) {
            return result;
        }
        self.queues.perform(request, || self.thread_queue())
    }

    fn perform_each(
        &self,
        requests: &mut [Request],
        ended: &mut dyn FnMut(usize, Result<u32, Errno>),
    ) {
        self.queues.perform_each(requests, || self.thread_queue(), ended);
    }

    /// `None` if the process has no descriptors left. The reactor then uses a queue that calls [`Self::perform`].
    fn own_queue(&self, depth: usize) -> Option<Box<dyn Queue>> {
        let queue = NbdQueue::new(self.links.clone(), depth, QueueUser::Reactor);
        queue.ok().map(|queue| Box::new(queue) as Box<dyn Queue>)
    }

    fn shared_name(&self) -> Option<&str> {
        Some(&self.name)
    }
}

impl fmt::Debug for Nbd {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.description())
    }
}
