//! A device: a back end, its geometry, and the small index that every
//! reactor's tables know it by.
//!
//! A [`Device`] is the user's handle. Reactors that serve the device hold its
//! [`Core`]; when the last handle goes, or [`Device::remove`] is called, each is
//! notified, finishes its requests and releases it. The index is free again when the
//! last holder has.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

use crate::backend::open::open;
use crate::core::Core;
use crate::geometry::Geometry;
use crate::index::DeviceIndex;
use crate::interface::backend::{Access, Backend};

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

impl Device {
    /// Opens what `path` names: a block device, or an ordinary file.
    ///
    /// # Errors
    /// An error from opening it or reading its geometry, with the path.
    pub fn open(path: &Path, access: Access) -> io::Result<Device> {
        Device::from_backend(open(path, access)?)
    }

    /// A device over a back end of any kind.
    ///
    /// # Errors
    /// `QuotaExceeded` while [`MAX_DEVICES`](crate::MAX_DEVICES) are open.
    pub fn new(backend: impl Backend) -> io::Result<Device> {
        Device::from_backend(Box::new(backend))
    }

    fn from_backend(backend: Box<dyn Backend>) -> io::Result<Device> {
        let core = Arc::new(Core::new(backend)?);
        Ok(Device { handle: Arc::new(Handle { core }) })
    }

    /// Removes the device from every reactor's tables while others stay busy:
    /// issued requests complete, later ones are refused with ENODEV.
    /// Dropping the last handle does the same.
    pub fn remove(&self) {
        self.handle.core.close();
    }

    /// Its geometry.
    #[inline]
    pub fn geometry(&self) -> &Geometry {
        self.handle.core.geometry()
    }

    /// Its place in tables of devices.
    #[inline]
    pub fn index(&self) -> DeviceIndex {
        self.handle.core.index()
    }

    /// Its description, for people.
    pub fn description(&self) -> String {
        self.handle.core.backend().description()
    }

    /// The part that a reactor holds to serve it.
    pub fn core(&self) -> &Arc<Core> {
        &self.handle.core
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Device {} ({})", self.index().get(), self.description())
    }
}
