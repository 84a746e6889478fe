//! [`OpenedImage`]: the state that the queues of a device share.

use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use uringfs_errno::Errno;
use uringfs_rbd::{Image, OpenError, OpenMode, Waker};
use uringfs_ring::ForkDetector;

use super::super::without_device::without_device;
use super::instance::Instance;
use super::lease::Lease;
use super::renewals::Renewals;
use super::target::RbdTarget;
use super::waits::AllWaits;
use crate::geometry::Geometry;
use crate::request::{Op, Request};

/// librbd takes requests of any number of bytes.
pub(super) const BLOCK_SIZE: u32 = 512;

/// The bytes of an image of this size that can be used.
pub(super) fn whole_blocks(size: u64) -> u64 {
    size - size % u64::from(BLOCK_SIZE)
}

/// The state that the queues of a device share.
pub(super) struct OpenedImage {
    pub(super) target: RbdTarget,
    pub(super) geometry: Geometry,
    /// The size in bytes, whole blocks.
    pub(super) size: Arc<AtomicU64>,
    pub(super) fork: ForkDetector,
    pub(super) waits: AllWaits,
    /// The instance in use. Only a renewal changes it.
    instance: Mutex<Arc<Instance>>,
    /// The generation of the instance in use; one more while it is being renewed.
    generation: AtomicU64,
    /// The queues that wait for the end of the renewal.
    wakers: Mutex<Vec<Waker>>,
    pub(super) renewals: Mutex<Renewals>,
    /// Another client has taken the image.
    is_lost: AtomicBool,
    /// The device has been dropped.
    is_released: AtomicBool,
    /// The lock has been given back.
    has_no_lock: AtomicBool,
    /// The client from which it was taken when it was opened, in words.
    pub(super) taken: Option<String>,
    /// Ends after the instance.
    _lease: Option<Lease>,
}

impl OpenedImage {
    pub(super) fn new(
        target: RbdTarget,
        geometry: Geometry,
        size: Arc<AtomicU64>,
        instance: Instance,
        taken: Option<String>,
        lease: Option<Lease>,
    ) -> OpenedImage {
        OpenedImage {
            target,
            geometry,
            size,
            fork: ForkDetector::default(),
            waits: AllWaits::default(),
            generation: instance.generation.into(),
            instance: Mutex::new(Arc::new(instance)),
            wakers: Mutex::default(),
            renewals: Mutex::default(),
            is_lost: AtomicBool::new(false),
            is_released: AtomicBool::new(false),
            has_no_lock: AtomicBool::new(false),
            taken,
            _lease: lease,
        }
    }

    /// The instance in use, or the one that is being renewed.
    pub(super) fn instance(&self) -> Arc<Instance> {
        self.instance.lock().clone()
    }

    /// The generation of the instance in use; `None` while it is being renewed.
    pub(super) fn generation(&self) -> Option<u64> {
        let generation = self.renewal();
        generation.is_multiple_of(2).then_some(generation)
    }

    /// Another number for each renewal, and for the time before and after it.
    pub(super) fn renewal(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Whether this caller is to renew the instance of this generation.
    pub(super) fn begin_renewal(&self, generation: u64) -> bool {
        let (changed, failed) = (Ordering::AcqRel, Ordering::Relaxed);
        self.generation.compare_exchange(generation, generation + 1, changed, failed).is_ok()
    }

    /// Ends a renewal with a new instance.
    pub(super) fn renew(&self, instance: Instance) {
        let generation = instance.generation;
        let left = mem::replace(&mut *self.instance.lock(), Arc::new(instance));
        left.leave();
        self.end_renewal(generation);
    }

    /// Notes that another client has taken the image, so that all requests fail: also if a renewal should find that.
    pub(super) fn lose(&self) {
        self.is_lost.store(true, Ordering::Release);
        let generation = self.generation.load(Ordering::Relaxed);
        self.end_renewal(generation.next_multiple_of(2));
    }

    fn end_renewal(&self, generation: u64) {
        self.generation.store(generation, Ordering::Release);
        self.wakers.lock().drain(..).for_each(|waker| waker.wake());
    }

    /// Wakes this queue at the end of the renewal in progress. If there is none, it is not woken.
    pub(super) fn wake_after_renewal(&self, waker: Waker) {
        let mut wakers = self.wakers.lock();
        if self.generation().is_none() {
            wakers.push(waker);
        }
    }

    /// Gives the lock back as soon as no queue has requests: the device has been dropped.
    pub(super) fn release(&self) {
        self.is_released.store(true, Ordering::Relaxed);
        self.release_if_idle();
    }

    /// Gives the lock back if the device has been dropped, and no queue has requests. A failure leaves the lock to the next
    /// writer, which finds that the process has ended, or has closed the image.
    pub(super) fn release_if_idle(&self) {
        let has_lock = self.is_released()
            && !self.geometry.read_only
            && !self.is_lost()
            && self.generation().is_some()
            && self.waits.oldest().is_none();
        if has_lock && !self.fork.is_forked() && !self.has_no_lock.swap(true, Ordering::Relaxed) {
            let _ = self.instance().image().release_lock();
        }
    }

    /// Whether the device has been dropped.
    pub(super) fn is_released(&self) -> bool {
        self.is_released.load(Ordering::Relaxed)
    }

    /// Whether another client has taken the image.
    pub(super) fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Relaxed)
    }

    /// The result of a step of `request`, if no cluster is needed for it.
    pub(super) fn check(&self, request: &Request) -> Option<Result<u32, Errno>> {
        if !request.is_cancelled() && self.fork.is_forked() {
            return Some(Err(Errno::CHILD));
        }
        if self.is_lost() {
            return Some(Err(Errno::SHUTDOWN));
        }
        without_device(request, &self.geometry, self.size.load(Ordering::Relaxed))
    }

    /// The size in bytes. librbd tells those that only read of no change, so they open the image once more.
    pub(super) fn ask_size(&self) -> Result<u64, Errno> {
        let instance = self.instance();
        if !self.geometry.read_only {
            return instance.image().size();
        }
        let again =
            Image::open(&instance.cluster, &self.target.name, OpenMode::Read).map_err(|error| {
                match error {
                    OpenError::Pool(errno) | OpenError::Image(errno) => errno,
                }
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
            (_, Err(errno)) => Err(errno),
        }
    }
}
