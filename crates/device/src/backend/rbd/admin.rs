//! [`RbdAdmin`]: the size of an image, and the blocklist of its cluster.

use std::io::{self, ErrorKind};
use std::sync::Arc;

use uringfs_errno::Errno;
use uringfs_rbd::{Cluster, OpenMode};

use super::bounded::within_timeout;
use super::open::Opening;
use super::target::RbdTarget;
use crate::interface::backend::Access;

/// A client that is shut out of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BlockedClient {
    /// Its address with its nonce, as `10.0.0.1:0/4711`.
    pub address: String,
    /// Until when, as the cluster writes it: `2036-11-28T19:05:31.123456+0000`.
    pub until: String,
}

/// The administration of an image and of its cluster's blocklist. It takes no lock: a writer may have the image open.
///
/// ```no_run
/// # mod uringfs { pub use uringfs_device as device; }
/// use uringfs::device::backend::rbd::{RbdAdmin, RbdTarget};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let admin = RbdAdmin::new(&RbdTarget::parse("rbd:rbd/disk").unwrap()?);
/// for client in admin.blocklist()? {
///     println!("{} is shut out until {}", client.address, client.until);
/// }
/// admin.enlarge(20 << 30)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct RbdAdmin {
    target: RbdTarget,
}

impl RbdAdmin {
    /// That of an image. Connects to nothing yet.
    pub fn new(target: &RbdTarget) -> RbdAdmin {
        RbdAdmin { target: target.clone() }
    }

    /// Enlarges the image to this many bytes, at once, also while a client has it open: a device on it finds the new size when
    /// it is asked again ([`Device::refresh_size`](crate::Device::refresh_size)).
    ///
    /// # Errors
    /// As [`Rbd::open`](super::Rbd::open); `InvalidInput` if the image is larger than that.
    pub fn enlarge(&self, bytes: u64) -> io::Result<()> {
        let target = self.target.clone();
        within_timeout(&self.target, move |library, is_over| {
            let cluster = target.connect(library, false)?;
            let image = target.open_image(&cluster, OpenMode::ReadWrite)?;
            is_over.require_wanted(&target)?;
            image.enlarge(bytes).map_err(|errno| match errno {
                Errno::INVAL => target.refuse(
                    ErrorKind::InvalidInput,
                    format!("the image is larger than {bytes} bytes, and is not made smaller"),
                ),
                errno => target.failed("enlarging the image", errno),
            })?;
            // If it had the lock and was not there, librbd has broken that.
            let opening = Opening { target: &target, access: Access::ReadWrite, is_over };
            opening.fence_last(&image, &cluster).map(drop)
        })
    }

    /// The clients that are shut out of the cluster, of all images.
    ///
    /// # Errors
    /// As [`Rbd::open`](super::Rbd::open); `PermissionDenied` if this client may not see them.
    pub fn blocklist(&self) -> io::Result<Vec<BlockedClient>> {
        self.with_cluster(|target, cluster| {
            let entries = cluster.blocklisted().map_err(|errno| target.explain_blocklist(errno))?;
            let clients = entries.into_iter();
            Ok(clients.map(|it| BlockedClient { address: it.address, until: it.until }).collect())
        })
    }

    /// Lets a client in again that is shut out, by its address as in [`Self::blocklist`]. Requests that it still
    /// has under way may then reach its images: its process must have ended. False if it is not shut out.
    ///
    /// # Errors
    /// As [`Self::blocklist`].
    pub fn remove_from_blocklist(&self, address: &str) -> io::Result<bool> {
        let address = address.to_owned();
        self.with_cluster(move |target, cluster| {
            let explain = |errno| target.explain_blocklist(errno);
            let all = cluster.blocklisted().map_err(explain)?;
            if !all.iter().any(|entry| entry.address == address) {
                return Ok(false);
            }
            cluster.remove_from_blocklist(&address).map_err(explain)?;
            Ok(true)
        })
    }

    fn with_cluster<T: Send + 'static>(
        &self,
        work: impl FnOnce(&RbdTarget, &Arc<Cluster>) -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let target = self.target.clone();
        within_timeout(&self.target, move |library, is_over| {
            let cluster = target.connect(library, false)?;
            is_over.require_wanted(&target)?;
            work(&target, &cluster)
        })
    }
}

impl RbdTarget {
    /// The error of a client that may not read or change the blocklist.
    pub(super) fn explain_blocklist(&self, errno: Errno) -> io::Error {
        match errno {
            Errno::ACCESS | Errno::PERM => self.refuse(
                ErrorKind::PermissionDenied,
                format!("this client may not do that to the blocklist ({errno}); name an administrator's by id=NAME"),
            ),
            errno => self.failed("asking for the blocklist", errno),
        }
    }
}
