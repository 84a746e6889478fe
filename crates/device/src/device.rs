//! A device: a back end, its geometry, and its small index in the tables of
//! every reactor.
//!
//! A [`Device`] is the user's handle. Reactors that serve the device hold its
//! [`DeviceInner`]. When the last handle is dropped, or [`Device::remove`] is called, each
//! reactor is notified, finishes its requests and releases the device. Its index is
//! free again after the last release.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::backend::open::open;
use crate::claim::Claim;
use crate::device_use::{DeviceUse, UseKind};
use crate::geometry::Geometry;
use crate::index::DeviceIndex;
use crate::inner::DeviceInner;
use crate::interface::backend::{Access, Backend, Property};

/// The user's handle to an open device. Clones refer to the same device.
///
/// ```
/// # mod uringfs { pub use uringfs_device as device; }
/// use uringfs::device::backend::memory::Memory;
/// use uringfs::device::Device;
///
/// let device = Device::new(Memory::new(1 << 20)?)?;
/// assert_eq!(device.geometry().size, 1 << 20);
/// assert_eq!(device.description(), "memory, 1048576 bytes");
/// # Ok::<_, std::io::Error>(())
/// ```
#[derive(Clone)]
pub struct Device {
    handle: Arc<Handle>,
}

/// Closes the device for its reactors when the last handle is dropped.
struct Handle {
    core: Arc<DeviceInner>,
    /// Of a device that was opened to be written as a whole.
    _raw_use: Option<DeviceUse>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.core.close();
    }
}

impl Device {
    /// Opens the block device, NVMe namespace (`/dev/ng0n1`) or ordinary file `path`, or the export of an NBD server
    /// or image of Ceph's RBD whose URI `path` is: see [`RemoteTarget`](crate::backend::RemoteTarget). A file whose name
    /// looks like a URI is opened as `./nbd:...`.
    ///
    /// # Errors
    /// The error of opening it or of reading its geometry, with the path.
    pub fn open(path: impl AsRef<Path>, access: Access) -> io::Result<Device> {
        Device::from_backend(open(path.as_ref(), access)?)
    }

    /// As [`Self::open`], to be read and written as a whole. With write access, this process opens no volume on it
    /// until the last clone of the handle is dropped.
    ///
    /// # Errors
    /// As [`Self::open`]; `ResourceBusy` (EBUSY) with write access while this process has a volume on it open.
    pub fn open_raw(path: impl AsRef<Path>, access: Access) -> io::Result<Device> {
        let path = path.as_ref();
        let core = Arc::new(DeviceInner::new(open(path, access)?)?);
        let raw_use = match access {
            Access::Read => None,
            Access::ReadWrite => {
                Some(DeviceUse::begin(&core, UseKind::RawWriter).map_err(|errno| {
                    let text = format!(
                        "{} has a volume that this program has open; write files of the volume, or close it first",
                        path.display()
                    );
                    io::Error::new(errno.kind(), text)
                })?)
            }
        };
        Ok(Device { handle: Arc::new(Handle { core, _raw_use: raw_use }) })
    }

    /// A device over a back end of any kind.
    ///
    /// # Errors
    /// `QuotaExceeded` while [`MAX_DEVICES`](crate::MAX_DEVICES) are open.
    pub fn new(backend: impl Backend) -> io::Result<Device> {
        Device::from_backend(Box::new(backend))
    }

    pub(crate) fn from_backend(backend: Box<dyn Backend>) -> io::Result<Device> {
        let core = Arc::new(DeviceInner::new(backend)?);
        Ok(Device { handle: Arc::new(Handle { core, _raw_use: None }) })
    }

    /// Removes the device from every reactor's tables, without disturbing other
    /// devices: issued requests complete, later ones fail with ENODEV.
    /// Dropping the last handle does the same.
    pub fn remove(&self) {
        self.handle.core.close();
    }

    /// Its geometry. Only the size of a device can change: see [`Self::size`].
    #[inline]
    pub fn geometry(&self) -> &Geometry {
        self.handle.core.geometry()
    }

    /// Its size in bytes, as far as it was noticed: as [`Self::refresh_size`] last found it.
    #[inline]
    pub fn size(&self) -> u64 {
        self.handle.core.size()
    }

    /// Reads its size again, which others may have changed, and returns the size that counts from now on, in bytes.
    /// Volumes and servers of disks do the same where it matters.
    ///
    /// - A device grows in whole blocks of 4096 bytes. One whose size was no multiple of that grows when it is opened
    ///   again.
    /// - A device that has shrunk keeps its smaller size until it is opened again. Reads of what is lost fail with EIO.
    /// - The server of an NBD export is asked over another connection. A server that accepts no other is not asked: a
    ///   new size shows when it is started again.
    ///
    /// ```
    /// # mod uringfs { pub use uringfs_device as device; }
    /// use uringfs::device::{Access, Device};
    ///
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("image");
    /// # std::fs::write(&path, [0; 4096])?;
    /// let device = Device::open(&path, Access::ReadWrite)?;
    /// std::fs::File::options().write(true).open(&path)?.set_len(1 << 20)?;
    /// assert_eq!(device.size(), 4096);
    /// assert_eq!(device.refresh_size()?, 1 << 20);
    /// assert_eq!(device.size(), 1 << 20);
    /// # Ok::<_, std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// In one line why it cannot be read, with the device; the size is the one before then.
    pub fn refresh_size(&self) -> io::Result<u64> {
        self.handle.core.refresh_size().map_err(|errno| {
            let text = format!("{}: cannot read its size again: {errno}", self.description());
            io::Error::new(errno.kind(), text)
        })
    }

    /// Its index in tables of devices.
    #[doc(hidden)]
    #[inline]
    pub fn index(&self) -> DeviceIndex {
        self.handle.core.index()
    }

    /// The flushes that files and volumes on this device have issued so far. One of them can serve many calls: see
    /// `File::append_durably`.
    pub fn flushes(&self) -> u64 {
        self.handle.core.flushes()
    }

    /// A notice to its user about its opening: that an image of RBD was taken from another client, and for how long
    /// that client is shut out. `None` if there is nothing to tell.
    pub fn notice(&self) -> Option<&str> {
        self.handle.core.backend().notice()
    }

    /// For how long its oldest request has been waiting. `None` if there is none, or for a back end that does not know: only
    /// that of RBD does, whose cluster may be away for long.
    pub fn oldest_request(&self) -> Option<Duration> {
        self.handle.core.backend().oldest_request()
    }

    /// A description for display, such as `file /a/b`.
    pub fn description(&self) -> String {
        self.handle.core.backend().description()
    }

    /// Its properties beside its geometry, for display.
    #[doc(hidden)]
    pub fn properties(&self) -> Vec<Property> {
        self.handle.core.backend().properties()
    }

    /// The claim on its block device, which a mount of the device takes over. `None` if it is none.
    #[doc(hidden)]
    pub fn claim(&self) -> Option<&Claim> {
        self.handle.core.backend().claim()
    }

    /// The shared part, which a reactor holds to serve the device.
    #[doc(hidden)]
    pub fn core(&self) -> &Arc<DeviceInner> {
        &self.handle.core
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Device {} ({})", self.index().get(), self.description())
    }
}
