//! The part of a device that its handles share with its reactors.

use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use crossbeam_utils::CachePadded;
use parking_lot::Mutex;
use uringfs_buffer::Buffer;
use uringfs_errno::Errno;
use uringfs_ring::ForkDetector;

use crate::device_size::DeviceSize;
use crate::failure::{Failure, FailureListener, Listeners};
use crate::geometry::{Bounds, Geometry};
use crate::index::{self, DeviceIndex, MAX_DEVICES};
use crate::interface::backend::{Backend, KernelTarget};
use crate::interface::calibration::CalibrationOptions;
use crate::request::{Op, Payload, Request};
use crate::shared_calibration::SharedCalibration;

/// The most bytes of one step on a copy.
const MAX_COPY: u64 = 1 << 20;

/// A callback that is called once, when a device closes.
type OnClose = Box<dyn FnOnce(DeviceIndex) + Send>;

/// The shared part of a device, held by its handles and by every reactor that has it in its tables.
pub struct DeviceInner {
    index: DeviceIndex,
    geometry: Geometry,
    size: DeviceSize,
    backend: Box<dyn Backend>,
    fork_detector: ForkDetector,
    closed: AtomicBool,
    on_close: Mutex<Vec<OnClose>>,
    /// The calibrations that it uses, by the options that they are for.
    calibrations: Mutex<Vec<(CalibrationOptions, Arc<SharedCalibration>)>>,
    listeners: Listeners,
    /// Apart from what each request reads.
    flushes: CachePadded<AtomicU64>,
}

impl fmt::Debug for DeviceInner {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_struct("DeviceInner")
            .field("backend", &self.backend.description())
            .finish_non_exhaustive()
    }
}

impl DeviceInner {
    /// A device over `backend`.
    ///
    /// # Errors
    /// `QuotaExceeded` while [`MAX_DEVICES`] are open.
    pub(crate) fn new(backend: Box<dyn Backend>) -> io::Result<DeviceInner> {
        let index = index::allocate().ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::QuotaExceeded,
                format!("{MAX_DEVICES} devices are open; close one first"),
            )
        })?;
        Ok(DeviceInner {
            index,
            size: DeviceSize::new(backend.geometry().size),
            geometry: backend.geometry().clone(),
            backend,
            fork_detector: ForkDetector::default(),
            closed: AtomicBool::new(false),
            on_close: Mutex::default(),
            calibrations: Mutex::default(),
            listeners: Listeners::default(),
            flushes: CachePadded::default(),
        })
    }

    /// Its geometry.
    #[inline]
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Its size in bytes, as far as it was noticed.
    #[inline]
    pub fn size(&self) -> u64 {
        self.size.now()
    }

    /// The largest size that it has had. Bytes between [`Self::size`] and this are lost: reads fail with EIO.
    #[inline]
    pub fn largest_size(&self) -> u64 {
        self.size.largest()
    }

    /// The points at which transfers may end short.
    #[inline]
    pub fn bounds(&self) -> Bounds {
        Bounds { block_size: self.geometry.block_size, size: self.size.largest() }
    }

    /// Reads the size again, without waiting. Returns the size that counts: the one before if it cannot be read.
    pub fn check_size(&self) -> u64 {
        match self.backend.size() {
            Ok(bytes) => self.size.note(bytes),
            Err(_) => self.size(),
        }
    }

    /// Reads the size again. May wait for a server.
    ///
    /// # Errors
    /// Those of [`Backend::ask_size`].
    pub fn refresh_size(&self) -> Result<u64, Errno> {
        self.backend.ask_size().map(|bytes| self.size.note(bytes))
    }

    /// Its index in tables of devices.
    #[inline]
    pub fn index(&self) -> DeviceIndex {
        self.index
    }

    /// Its back end.
    pub fn backend(&self) -> &dyn Backend {
        &*self.backend
    }

    /// Lets the back end execute the next step of `request`, from its `done` on, in this thread. Returns EIO if the
    /// back end panics, so that the request still completes.
    #[inline]
    pub fn perform(&self, request: &mut Request) -> Result<u32, Errno> {
        let step = AssertUnwindSafe(|| match request.payload.is_shared() {
            true => self.perform_on_copy(request),
            false => self.backend.perform(request),
        });
        catch_unwind(step).unwrap_or(Err(Errno::IO))
    }

    /// A step on a copy of memory that others change, of which back ends can have no slice.
    fn perform_on_copy(&self, request: &mut Request) -> Result<u32, Errno> {
        let length = request.remaining().min(MAX_COPY);
        let address = request.address.checked_add(request.done()).ok_or(Errno::INVAL)?;
        let copy = match request.op {
            Op::Write => request.copy_out(length as usize),
            _ => Buffer::zeroed(length as usize),
        };
        let mut step =
            Request::new(request.device, request.op, address, Payload::Buffer(copy), request.tag);
        step.durability = request.durability;
        let moved = self.backend.perform(&mut step)?;
        if let (Op::Read, Payload::Buffer(copy)) = (request.op, &step.payload) {
            request.copy_in(&copy[..moved as usize]);
        }
        Ok(moved)
    }

    /// The number of system calls of a request that the back end executes itself.
    pub(crate) fn calls_to_perform(&self) -> u64 {
        match self.backend.kernel_target() {
            KernelTarget::Descriptor(_) | KernelTarget::Nvme(..) => 1,
            KernelTarget::Nop | KernelTarget::InProcess => 0,
        }
    }

    /// The calibration for reactors with these options, which it shares with devices on the same storage with the same
    /// block size and alignment.
    pub fn calibration(&self, options: CalibrationOptions) -> Arc<SharedCalibration> {
        let mut calibrations = self.calibrations.lock();
        for (_, found) in calibrations.iter_mut().filter(|(_, found)| found.is_of_parent_process())
        {
            *found = Arc::new(found.in_child());
        }
        if let Some((_, found)) = calibrations.iter().find(|(of, _)| *of == options) {
            return found.clone();
        }
        let found = SharedCalibration::find(&*self.backend, options);
        calibrations.push((options, found.clone()));
        found
    }

    /// A new calibration for reactors with these options, which the device shares with no other from now on: what was
    /// measured on another one does not hold for it.
    pub fn leave_shared_calibration(&self, options: CalibrationOptions) -> Arc<SharedCalibration> {
        let mut calibrations = self.calibrations.lock();
        let own = Arc::<SharedCalibration>::default();
        calibrations.retain(|(of, _)| *of != options);
        calibrations.push((options, own.clone()));
        own
    }

    /// True when the device accepts no more requests.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// True in the child of a fork: the device was opened by the parent, which has the current state of its files.
    #[inline]
    pub fn is_forked(&self) -> bool {
        self.fork_detector.is_forked()
    }

    /// Counts a flush. The code that issues it calls this.
    pub fn count_flush(&self) {
        self.flushes.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn flushes(&self) -> u64 {
        self.flushes.load(Ordering::Relaxed)
    }

    /// Adds a listener: every later failure is reported to it, until it is dropped.
    pub fn add_listener(&self, listener: Weak<dyn FailureListener>) {
        self.listeners.add(listener);
    }

    /// Reports a failure to the listeners. The code that reaps a request calls this.
    #[cold]
    pub fn report_failure(&self, failure: Failure) {
        self.listeners.report(failure);
    }

    /// Calls `on_close` when the device closes; at once if it is closed already.
    pub fn on_close(&self, on_close: OnClose) {
        let mut callbacks = self.on_close.lock();
        if self.is_closed() {
            drop(callbacks);
            on_close(self.index);
        } else {
            callbacks.push(on_close);
        }
    }

    pub(crate) fn close(&self) {
        let callbacks = {
            let mut callbacks = self.on_close.lock();
            self.closed.store(true, Ordering::Release);
            std::mem::take(&mut *callbacks)
        };
        for on_close in callbacks {
            on_close(self.index);
        }
        self.backend.release();
    }
}

impl Drop for DeviceInner {
    fn drop(&mut self) {
        index::release(self.index);
    }
}
