//! The interface of every back end.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use uringfs_errno::Errno;
use uringfs_ring::nvme::Namespace;

use crate::claim::Claim;
use crate::geometry::Geometry;
use crate::interface::queue::Queue;
use crate::request::Request;

/// The access for which a device is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reads only.
    Read,
    /// Reads and writes.
    ReadWrite,
}

/// The object on which the kernel executes a back end's requests.
#[derive(Clone, Copy, Debug)]
pub enum KernelTarget<'a> {
    /// This descriptor, which it reads and writes.
    Descriptor(BorrowedFd<'a>),
    /// This character device, to whose namespace it sends commands.
    #[doc(hidden)]
    Nvme(BorrowedFd<'a>, Namespace),
    /// None, since there are no bytes: a request is a NOP of the kernel.
    Nop,
    /// None, since the bytes are in this process: only [`Backend::perform`] moves them.
    InProcess,
}

/// A property of a back end beside its geometry, for display.
#[doc(hidden)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Property {
    /// As in JSON: `atomic_write`.
    pub name: &'static str,
    /// Its value.
    pub value: String,
    /// Its meaning.
    pub meaning: String,
}

impl Property {
    pub(crate) fn new(name: &'static str, value: String, meaning: String) -> Property {
        Property { name, value, meaning }
    }
}

/// A store of bytes, which a [`Device`](crate::Device) is made of: one of the [back ends](crate::backend). Queues call it
/// from any thread.
pub trait Backend: Send + Sync + 'static {
    /// Its geometry, which never changes.
    fn geometry(&self) -> &Geometry;

    /// Its size in bytes now: [`Geometry::size`] is that at its opening. Does not wait.
    ///
    /// # Errors
    /// The system's.
    #[doc(hidden)]
    fn size(&self) -> Result<u64, Errno> {
        Ok(self.geometry().size)
    }

    /// The same, from where the bytes are: may wait for a server.
    ///
    /// # Errors
    /// The system's, or the server's.
    #[doc(hidden)]
    fn ask_size(&self) -> Result<u64, Errno> {
        self.size()
    }

    /// A description for display: `file /a/b`, `memory 1 GiB`.
    fn description(&self) -> String;

    /// Its properties beside its geometry, for display.
    #[doc(hidden)]
    fn properties(&self) -> Vec<Property> {
        Vec::new()
    }

    /// A notice to its user about its opening. `None` if there is nothing to tell.
    #[doc(hidden)]
    fn notice(&self) -> Option<&str> {
        None
    }

    /// For how long its oldest request has been waiting, of a back end whose requests may wait without an end. `None` if it has
    /// no requests, or does not know.
    #[doc(hidden)]
    fn oldest_request(&self) -> Option<Duration> {
        None
    }

    /// The object on which the kernel executes its requests.
    #[doc(hidden)]
    fn kernel_target(&self) -> KernelTarget<'_>;

    /// Executes the next step of `request`, from its `done` on, in the calling
    /// thread, and returns the number of bytes moved, which may be fewer than requested.
    #[doc(hidden)]
    fn perform(&self, request: &mut Request) -> Result<u32, Errno>;

    /// [`Self::perform`] of each request, all at once if the back end can. Calls `ended` with the index and the result of each.
    #[doc(hidden)]
    fn perform_each(
        &self,
        requests: &mut [Request],
        ended: &mut dyn FnMut(usize, Result<u32, Errno>),
    ) {
        for (index, request) in requests.iter_mut().enumerate() {
            ended(index, self.perform(request));
        }
    }

    /// Lets others have its bytes: the last handle of the device is dropped. Reactors may keep the back end for longer, and the
    /// process may end before they let it go.
    #[doc(hidden)]
    fn release(&self) {}

    /// A queue of its own, for a back end that decides when its requests
    /// complete. The reactor then uses no other queue.
    #[doc(hidden)]
    fn own_queue(&self, _depth: usize) -> Option<Box<dyn Queue>> {
        None
    }

    /// The claim on its block device, whether it is acquired or not. `None` if it is none.
    #[doc(hidden)]
    fn claim(&self) -> Option<&Claim> {
        None
    }

    /// The descriptor that identifies its bytes, whatever path they were opened by: locks are locks of this one.
    #[doc(hidden)]
    fn identity(&self) -> Option<BorrowedFd<'_>> {
        match self.kernel_target() {
            KernelTarget::Descriptor(descriptor) => Some(descriptor),
            KernelTarget::Nvme(..) | KernelTarget::Nop | KernelTarget::InProcess => None,
        }
    }

    /// The name by which all processes know its bytes. `None` if it has none, or if its descriptor identifies them.
    #[doc(hidden)]
    fn shared_name(&self) -> Option<&str> {
        None
    }

    /// Whether it takes its bytes from other processes that have them under [`Self::shared_name`].
    #[doc(hidden)]
    fn ignores_sharers(&self) -> bool {
        false
    }

    /// Identifies bytes in this process that several devices can reach: the address of what they share. `None` if
    /// only this back end reaches its bytes, or if its descriptor identifies them.
    #[doc(hidden)]
    fn shared_memory(&self) -> Option<usize> {
        None
    }
}
