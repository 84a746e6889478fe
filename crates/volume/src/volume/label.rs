//! Changes the label of a volume that is not open.

use uringfs_device::Device;

use crate::blocks::BlockIo;
use crate::core::device_lock::{DeviceLock, LockKind};
use crate::error::{Error, ErrorKind};
use crate::superblock::{LoadedSuperblock, REPAIR_ADVICE, Superblock};
use crate::volume::open_volume::older_version;
use crate::volume::volume::Volume;

impl Volume {
    /// Changes the label of the volume on a device. After a power cut it has the old label or the new one.
    ///
    /// ```
    /// # use uringfs_volume as uringfs;
    /// use uringfs::{FormatOptions, Volume};
    ///
    /// # let folder = tempfile::tempdir()?;
    /// let path = folder.path().join("image");
    /// let volume = Volume::create(&path, &FormatOptions::new().size(64 << 20).label("old"))?;
    /// let device = volume.device().clone();
    /// volume.close()?;
    /// Volume::set_label(&device, "new")?;
    /// assert_eq!(Volume::open(&path)?.label(), "new");
    /// # Ok::<_, uringfs_volume::Error>(())
    /// ```
    ///
    /// # Errors
    /// `Input` for a label of more than 64 bytes, or with a zero byte; `Damaged` if the backup superblock is not that of
    /// the volume; EBUSY when any process has the volume open; `Unsupported` for a volume that this version may only
    /// read; as opening; errors of the device.
    pub fn set_label(device: &Device, label: &str) -> Result<(), Error> {
        if device.geometry().read_only {
            return Err(Error::new(ErrorKind::Input, "the target is open for reading only"));
        }
        let blocks = &BlockIo::new(device);
        let _lock = DeviceLock::acquire(device, LockKind::Exclusive)?;
        let found = Superblock::read(blocks)?;
        found.require_no_other_format()?;
        if found.superblock.is_read_only() || found.superblock.needs_upgrade() {
            return Err(older_version());
        }
        if !found.has_own_backup() {
            let what = "the backup superblock is damaged";
            return Err(Error::damaged(what).with_advice(REPAIR_ADVICE));
        }
        let LoadedSuperblock { mut superblock, .. } = found;
        // With the old label, so that one slot is durable while the other one is written.
        superblock.rewrite_slot(blocks)?;
        superblock.set_label(label)?;
        superblock.write(blocks)
    }
}
