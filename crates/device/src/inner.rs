//! The part of a device that its handles share with its reactors.

use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{OnceLock, Weak};

use crossbeam_utils::CachePadded;
use parking_lot::Mutex;
use uringfs_errno::Errno;

use crate::failure::{Failure, FailureListener, Listeners};
use crate::geometry::Geometry;
use crate::index::{self, DeviceIndex, MAX_DEVICES};
use crate::interface::backend::{Backend, KernelTarget};
use crate::interface::calibration::Calibration;
use crate::request::Request;

/// A callback that is called once, when a device closes.
type OnClose = Box<dyn FnOnce(DeviceIndex) + Send>;

/// The shared part of a device, held by its handles and by every reactor that has it in its tables.
pub struct DeviceInner {
    index: DeviceIndex,
    geometry: Geometry,
    backend: Box<dyn Backend>,
    closed: AtomicBool,
    on_close: Mutex<Vec<OnClose>>,
    calibration: OnceLock<Calibration>,
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
            geometry: backend.geometry().clone(),
            backend,
            closed: AtomicBool::new(false),
            on_close: Mutex::default(),
            calibration: OnceLock::new(),
            listeners: Listeners::default(),
            flushes: CachePadded::default(),
        })
    }

    /// Its geometry.
    #[inline]
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
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
        let step = AssertUnwindSafe(|| self.backend.perform(request));
        catch_unwind(step).unwrap_or(Err(Errno::IO))
    }

    /// The number of system calls of a request that the back end executes itself.
    pub(crate) fn calls_to_perform(&self) -> u64 {
        matches!(self.backend.kernel_target(), KernelTarget::Descriptor(_)).into()
    }

    /// The queue chosen for this device, set when the first reactor has calibrated.
    pub fn calibration(&self) -> &OnceLock<Calibration> {
        &self.calibration
    }

    /// True when the device accepts no more requests.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
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
    }
}

impl Drop for DeviceInner {
    fn drop(&mut self) {
        index::release(self.index);
    }
}
