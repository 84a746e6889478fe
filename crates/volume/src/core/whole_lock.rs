//! [`WholeLock`]: keeps volumes and other programs from a device that is used as a whole.

use std::fmt;

use uringfs_device::{Access, Device};

use super::device_lock::{DeviceLock, LockKind};
use crate::error::Error;

/// Keeps other programs from a device that this one uses as a whole, without a volume. It takes the lock of a volume: exclusive for
/// writing, shared for reading. It ends with its drop.
///
/// ```
/// # mod uringfs {
/// #     pub use uringfs_volume::{FormatOptions, Volume, WholeLock};
/// #     pub use uringfs_device as device;
/// #     pub mod volume { pub use super::WholeLock; }
/// # }
/// use uringfs::device::{Access, Device};
/// use uringfs::volume::WholeLock;
/// use uringfs::{FormatOptions, Volume};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// let path = folder.path().join("image");
/// Volume::create(&path, &FormatOptions::new().size(64 << 20))?.close()?;
/// let device = Device::open(&path, Access::ReadWrite)?;
/// let lock = WholeLock::acquire(&device, Access::ReadWrite)?;
/// assert!(Volume::open(&path).is_err());
/// drop(lock);
/// Volume::open(&path)?;
/// # Ok(())
/// # }
/// ```
pub struct WholeLock {
    _lock: DeviceLock,
}

impl WholeLock {
    /// Takes the lock: beside other readers for [`Access::Read`]. Waits for the lock of a process that has exited.
    ///
    /// # Errors
    /// `Refused` (EBUSY), naming the process, while another user has a conflicting lock.
    pub fn acquire(device: &Device, access: Access) -> Result<WholeLock, Error> {
        let kind = match access {
            Access::Read => LockKind::Shared,
            Access::ReadWrite => LockKind::Exclusive,
        };
        DeviceLock::acquire_whole(device, kind).map(|lock| WholeLock { _lock: lock })
    }
}

impl fmt::Debug for WholeLock {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("WholeLock")
    }
}
