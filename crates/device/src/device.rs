//! A device: a back end, its geometry, and the small index that every
//! reactor's tables know it by.
//!
//! A [`Device`] is the user's handle. Reactors that serve the device hold its
//! [`Core`]; when the last handle goes, or [`Device::remove`] is called, each is
//! told, finishes its requests and lets go. The index is free again when the
//! last holder has.

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::Mutex;
use rustix::io::Errno;

use crate::failure::{Failure, Listener, Listeners};
use crate::geometry::Geometry;
use crate::queue::Queue;
use crate::queue::auto::Choice;
use crate::request::Request;

/// How many devices may be open at once in a process.
pub const MAX_DEVICES: usize = 1024;

/// A device's place in every table of devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DeviceIndex(u16);

impl DeviceIndex {
    /// As a place in a table, below [`MAX_DEVICES`].
    #[inline]
    pub fn get(self) -> usize {
        self.0 as usize
    }

    #[cfg(test)]
    pub(crate) fn for_tests(index: u16) -> DeviceIndex {
        DeviceIndex(index)
    }
}

/// How the queues of the kernel reach a back end's bytes.
#[derive(Clone, Copy, Debug)]
pub enum Reach<'a> {
    /// By reading and writing this descriptor.
    Descriptor(BorrowedFd<'a>),
    /// There are no bytes: a request is the kernel's NOP.
    Nothing,
    /// Not at all: the bytes are this process's.
    Call,
}

/// Where bytes live. The queues call it from any thread.
pub trait Backend: Send + Sync + 'static {
    /// What it is like; the same at every call.
    fn geometry(&self) -> &Geometry;

    /// What it is, for people: `file /a/b`, `memory 1 GiB`.
    fn description(&self) -> String;

    /// How the kernel's queues reach it.
    fn reach(&self) -> Reach<'_>;

    /// Does the next step of `request`, from its `done` on, in the calling
    /// thread, and answers the bytes moved; fewer than asked is allowed.
    fn perform(&self, request: &mut Request) -> Result<u32, Errno>;

    /// A queue of its own, for a back end that decides itself when requests
    /// complete. The other queues then do not serve it.
    fn own_queue(&self, _depth: usize) -> Option<Box<dyn Queue>> {
        None
    }
}

/// The user's handle on an open device. Clones are the same device.
#[derive(Clone)]
pub struct Device {
    handle: Arc<Handle>,
}

/// Closes the device for its reactors when the last user lets go.
struct Handle {
    core: Arc<Core>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.core.close();
    }
}

/// Called, once, when a device closes.
type OnClose = Box<dyn FnOnce(DeviceIndex) + Send>;

/// What serves a device: held by its handles and by every reactor that has it in its tables.
pub struct Core {
    index: DeviceIndex,
    geometry: Geometry,
    backend: Box<dyn Backend>,
    closed: AtomicBool,
    on_close: Mutex<Vec<OnClose>>,
    choice: OnceLock<Choice>,
    listeners: Listeners,
}

impl Device {
    /// Opens what `path` names: a block device, or an ordinary file.
    ///
    /// # Errors
    /// What opening or asking for the geometry says, with the path.
    pub fn open(path: &Path, access: Access) -> io::Result<Device> {
        Device::of_box(crate::backend::open(path, access)?)
    }

    /// A device over a back end of any kind.
    ///
    /// # Errors
    /// `QuotaExceeded` while [`MAX_DEVICES`] are open.
    pub fn new(backend: impl Backend) -> io::Result<Device> {
        Device::of_box(Box::new(backend))
    }

    fn of_box(backend: Box<dyn Backend>) -> io::Result<Device> {
        let index = take_index().ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::QuotaExceeded,
                format!("{MAX_DEVICES} devices are open; close one first"),
            )
        })?;
        let core = Core {
            index,
            geometry: backend.geometry().clone(),
            backend,
            closed: AtomicBool::new(false),
            on_close: Mutex::default(),
            choice: OnceLock::new(),
            listeners: Listeners::default(),
        };
        Ok(Device { handle: Arc::new(Handle { core: Arc::new(core) }) })
    }

    /// Removes the device from every reactor's tables while others stay busy:
    /// what was issued completes, what comes later is refused with ENODEV.
    /// Dropping the last handle does the same.
    pub fn remove(&self) {
        self.handle.core.close();
    }

    /// What it is like.
    #[inline]
    pub fn geometry(&self) -> &Geometry {
        &self.handle.core.geometry
    }

    /// Its place in tables of devices.
    #[inline]
    pub fn index(&self) -> DeviceIndex {
        self.handle.core.index
    }

    /// What it is, for people.
    pub fn description(&self) -> String {
        self.handle.core.backend.description()
    }

    /// What a reactor holds to serve it.
    pub fn core(&self) -> &Arc<Core> {
        &self.handle.core
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Device {} ({})", self.index().get(), self.description())
    }
}

impl Core {
    /// What it is like.
    #[inline]
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Its place in tables of devices.
    #[inline]
    pub fn index(&self) -> DeviceIndex {
        self.index
    }

    /// Where its bytes live.
    pub fn backend(&self) -> &dyn Backend {
        &*self.backend
    }

    /// Has the back end do the next step of `request`, from its `done` on, in this thread. Answers EIO for a back end
    /// that panics: whoever waits for the request hears of it.
    #[inline]
    pub fn perform(&self, request: &mut Request) -> Result<u32, Errno> {
        let step = AssertUnwindSafe(|| self.backend.perform(request));
        catch_unwind(step).unwrap_or(Err(Errno::IO))
    }

    /// The queue that was found best for it, once one reactor has tried.
    pub fn choice(&self) -> &OnceLock<Choice> {
        &self.choice
    }

    /// True once it takes no new requests.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Has a listener hear of every request that fails from now on, until it is dropped.
    pub fn listen(&self, listener: Weak<dyn Listener>) {
        self.listeners.add(listener);
    }

    /// Tells them of one. Whoever takes a request's end from a queue does.
    #[cold]
    pub fn tell_failure(&self, failure: Failure) {
        self.listeners.tell(failure);
    }

    /// Has `tell` called when the device closes; at once when it has already.
    pub fn on_close(&self, tell: OnClose) {
        let mut waiting = self.on_close.lock();
        if self.is_closed() {
            drop(waiting);
            tell(self.index);
        } else {
            waiting.push(tell);
        }
    }

    fn close(&self) {
        let waiting = {
            let mut waiting = self.on_close.lock();
            self.closed.store(true, Ordering::Release);
            std::mem::take(&mut *waiting)
        };
        for tell in waiting {
            tell(self.index);
        }
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        give_back_index(self.index);
    }
}

/// What a device is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reads only.
    Read,
    /// Reads and writes.
    ReadWrite,
}

/// Indexes in use, one bit each.
static INDEXES: Mutex<[u64; MAX_DEVICES / 64]> = Mutex::new([0; MAX_DEVICES / 64]);

fn take_index() -> Option<DeviceIndex> {
    let mut words = INDEXES.lock();
    let (place, word) = words.iter_mut().enumerate().find(|(_, word)| **word != u64::MAX)?;
    let bit = word.trailing_ones();
    *word |= 1 << bit;
    Some(DeviceIndex((place * 64 + bit as usize) as u16))
}

fn give_back_index(index: DeviceIndex) {
    INDEXES.lock()[index.get() / 64] &= !(1 << (index.get() % 64));
}
