//! [`OpenedImage`]: what the queues of a device share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use uringfs_errno::Errno;
use uringfs_rbd::{Cluster, Image, ImageName, OpenError, OpenMode};
use uringfs_ring::ForkDetector;

use super::super::without_device::without_device;
use crate::geometry::Geometry;
use crate::request::{Op, Request};

/// librbd takes requests of any number of bytes.
pub(super) const BLOCK_SIZE: u32 = 512;

/// The bytes of an image of this size that can be used.
pub(super) fn whole_blocks(size: u64) -> u64 {
    size - size % u64::from(BLOCK_SIZE)
}

/// What the queues of a device share.
pub(super) struct OpenedImage {
    pub(super) geometry: Geometry,
    pub(super) cluster: Arc<Cluster>,
    pub(super) image: Image,
    pub(super) name: ImageName,
    /// The size in bytes, whole blocks.
    pub(super) size: Arc<AtomicU64>,
    /// Another client has taken the image.
    pub(super) is_lost: AtomicBool,
    pub(super) fork: ForkDetector,
}

impl OpenedImage {
    /// The result of a step of `request`, if no cluster is needed for it.
    pub(super) fn check(&self, request: &Request) -> Option<Result<u32, Errno>> {
        if !request.is_cancelled() && self.fork.is_forked() {
            return Some(Err(Errno::CHILD));
        }
        if self.is_lost.load(Ordering::Relaxed) {
            return Some(Err(Errno::SHUTDOWN));
        }
        without_device(request, &self.geometry, self.size.load(Ordering::Relaxed))
    }

    /// The size in bytes. librbd tells those that only read of no change, so they open the image once more.
    pub(super) fn ask_size(&self) -> Result<u64, Errno> {
        if !self.geometry.read_only {
            return self.image.size();
        }
        let again =
            Image::open(&self.cluster, &self.name, OpenMode::Read).map_err(|error| match error {
                OpenError::Pool(errno) | OpenError::Image(errno) => errno,
            });
        again?.size()
    }

    /// The result of a step of `request` that librbd has executed, with what that returns. librbd leaves out what is beyond the
    /// image's end, and says EINVAL for what begins there: others may have made the image smaller.
    pub(super) fn result(
        &self,
        request: &Request,
        moved: Result<u64, Errno>,
    ) -> Result<u32, Errno> {
        let (first, length) = (request.address + request.done(), request.remaining());
        let size = || self.size.load(Ordering::Relaxed);
        match (request.op, moved) {
            (Op::Flush, Ok(_)) => Ok(0),
            // A transfer ends where the image does.
            (Op::Read, Ok(moved)) => Ok(moved.min(length) as u32),
            (Op::Read, Err(Errno::INVAL)) if first >= size() => Ok(0),
            (_, Ok(_) | Err(Errno::INVAL)) if first + length > size() => Err(Errno::NOSPC),
            (_, Ok(_)) => Ok(length as u32),
            (_, Err(errno)) => Err(self.note_error(errno)),
        }
    }

    /// The error of a request that has ended with this one. Once another client has taken the image, all requests fail:
    /// the library itself would go on when its entry on the blocklist has ended.
    #[cold]
    pub(super) fn note_error(&self, errno: Errno) -> Errno {
        match errno {
            Errno::SHUTDOWN => {}
            // The lock is lost, and not to be had again.
            Errno::ROFS if !self.geometry.read_only => {}
            errno => return errno,
        }
        self.is_lost.store(true, Ordering::Relaxed);
        Errno::SHUTDOWN
    }
}
