//! The back end.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use uringfs_errno::Errno;

use super::super::kept_queues::{self, KeptQueues};
use super::open::open;
use super::opened::{OpenedImage, whole_blocks};
use super::owner_watch;
use super::periodic::Periodic;
use super::queue::RbdQueue;
use super::target::RbdTarget;
use crate::geometry::Geometry;
use crate::interface::backend::{Access, Backend, KernelTarget, Property};
use crate::interface::queue::Queue;
use crate::request::Request;

/// An image of Ceph's RBD.
///
/// A writer has the image's exclusive lock for as long as the device is open, and says in the image's metadata
/// (`uringfs.owner`) which process of which host it is. A second writer is refused. If the process of the first one has ended
/// without closing the image, as after a crash of the process, the next one on the same machine takes the image at once; on
/// another machine once the cluster has not heard of the first one for half a minute.
///
/// To take the image, a writer puts the other client's instance (its address with its nonce, never the host) on the cluster's
/// blocklist, waits for the map of the storage daemons with that entry, breaks the lock, and reads only then. From then on
/// nothing of the other one reaches the image while the entry lives: its next request fails with ESHUTDOWN, and all later ones
/// do, too, until it opens the image again. A device without requests notices it within a few seconds. With the option `take-over` a writer does this at once, also if the other one runs.
///
/// With the option `lease` the kernel kills the process once it has not run for so long, as after SIGSTOP, or while its machine
/// slept. Only from a client with a lease can an image be taken for less than an hour.
///
/// With the option `request-timeout` a request that the cluster does not answer in time is executed again, by a new client
/// instance, once the one before is on the blocklist; it has not ended until then.
///
/// The drop of the last handle waits for the requests that the cluster has, and so for the cluster.
///
/// ```no_run
/// # mod uringfs { pub use uringfs_device as device; }
/// use uringfs::device::backend::rbd::{Rbd, RbdTarget};
/// use uringfs::device::{Access, Device};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let target = RbdTarget::parse("rbd:rbd/disk").unwrap()?;
/// let device = Device::new(Rbd::open(&target, Access::ReadWrite)?)?;
/// println!("{} bytes", device.size());
/// # Ok(())
/// # }
/// ```
pub struct Rbd {
    /// `None` for a reader.
    _owner_watch: Option<Periodic>,
    target: RbdTarget,
    /// The same for all devices on the same image.
    name: String,
    opened: Arc<OpenedImage>,
    /// For [`Backend::perform`].
    queues: KeptQueues<RbdQueue>,
}

impl Rbd {
    /// Connects to a cluster, and opens an image. For writing it takes the image's exclusive lock.
    ///
    /// # Errors
    /// In one line why it cannot be opened, with the name and what to do: `NotFound` for a missing library, configuration,
    /// pool, image or snapshot, `PermissionDenied` for a wrong key, `TimedOut` when the cluster does not answer,
    /// `ResourceBusy` when another client has the lock, with its address and, if it is such a device, host and process.
    pub fn open(target: &RbdTarget, access: Access) -> io::Result<Rbd> {
        let opened = Arc::new(open(target, access)?);
        let watch = (access == Access::ReadWrite).then(|| owner_watch::begin(&opened)).transpose();
        let watch = watch.map_err(|errno| target.failed("watching its owner", errno))?;
        let name = target.canonical().to_string();
        let (target, queues) = (target.clone(), KeptQueues::default());
        Ok(Rbd { _owner_watch: watch, target, name, opened, queues })
    }
}

impl Backend for Rbd {
    fn geometry(&self) -> &Geometry {
        &self.opened.geometry
    }

    fn size(&self) -> Result<u64, Errno> {
        Ok(self.opened.size.load(Ordering::Relaxed))
    }

    fn ask_size(&self) -> Result<u64, Errno> {
        if self.opened.fork.is_forked() {
            return Err(Errno::CHILD);
        }
        let size = whole_blocks(self.opened.ask_size()?);
        self.opened.size.store(size, Ordering::Relaxed);
        Ok(size)
    }

    fn description(&self) -> String {
        format!("{}, {} bytes", self.target, self.opened.size.load(Ordering::Relaxed))
    }

    fn properties(&self) -> Vec<Property> {
        let cluster = &self.opened.instance().cluster;
        let address = cluster.address().unwrap_or_default();
        vec![
            Property::new("client", format!("{cluster:?}"), "this client of the cluster".into()),
            Property::new("address", address, "its address, as on the blocklist".into()),
        ]
    }

    fn kernel_target(&self) -> KernelTarget<'_> {
        KernelTarget::InProcess
    }

    fn perform(&self, request: &mut Request) -> Result<u32, Errno> {
        if let Some(result) = self.opened.check(request) {
            return result;
        }
        self.queues.perform(request, || RbdQueue::new(self.opened.clone(), kept_queues::DEPTH))
    }

    fn perform_each(
        &self,
        requests: &mut [Request],
        ended: &mut dyn FnMut(usize, Result<u32, Errno>),
    ) {
        let create = || RbdQueue::new(self.opened.clone(), kept_queues::DEPTH);
        self.queues.perform_each(requests, create, ended);
    }

    fn release(&self) {
        self.opened.release();
    }

    /// `None` if the process has no descriptors left. The reactor then uses a queue that calls [`Self::perform`].
    fn own_queue(&self, depth: usize) -> Option<Box<dyn Queue>> {
        let queue = RbdQueue::new(self.opened.clone(), depth);
        queue.ok().map(|queue| Box::new(queue) as Box<dyn Queue>)
    }

    fn notice(&self) -> Option<&str> {
        self.opened.taken.as_deref()
    }

    fn oldest_request(&self) -> Option<Duration> {
        self.opened.waits.oldest()
    }

    fn shared_name(&self) -> Option<&str> {
        Some(&self.name)
    }

    /// Those on this host, too. The image's own lock excludes them.
    fn ignores_sharers(&self) -> bool {
        self.target.takes_over() && !self.opened.geometry.read_only
    }
}

impl fmt::Debug for Rbd {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.description())
    }
}
