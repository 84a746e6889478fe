//! A file: a device, a map that says where on it the bytes lie, and who may
//! write when. What it can do stands in [`crate::ask`].

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

use rustix::io::Errno;
use uringfs_device::{Access, Core, Device, DeviceIndex, Geometry};
use uringfs_reactor::SubmissionLock;

use crate::lock::WriteLock;
use crate::map::{AnyMap, Flat, Map, Mapping, Place};
use crate::options::{FileOptions, WriteLocking};

/// The longest simple transfer: a block of the file system's usual size, or the
/// device's, if that is larger. In bytes.
const SIMPLE_LIMIT: u32 = 4096;

/// A file. Clones are the same file; it can be used from any thread.
#[derive(Clone)]
pub struct File {
    pub(crate) shared: Arc<Shared>,
}

pub(crate) struct Shared {
    pub(crate) device: Device,
    /// The device's, at hand.
    pub(crate) core: Arc<Core>,
    pub(crate) index: DeviceIndex,
    pub(crate) map: AnyMap,
    pub(crate) options: FileOptions,
    pub(crate) lock: Arc<WriteLock>,
    /// Offsets, lengths and addresses of direct requests have none of these bits.
    pub(crate) block_mask: u64,
    /// Nor has the memory of these.
    pub(crate) memory_mask: u64,
    /// The longest simple read, in bytes: 0 when it is switched off.
    pub(crate) simple_read_limit: u32,
    /// The longest simple write, in bytes: 0 when nothing may be written, or not without a lock.
    pub(crate) simple_write_limit: u32,
    pub(crate) read_only: bool,
    /// Taken by each write while the kernel is given it: `direct.write_lock=exclusive`.
    pub(crate) submission: Option<SubmissionLock>,
}

impl File {
    /// Opens an image file or a block device as one file.
    ///
    /// # Errors
    /// What opening says, with the path and what to do.
    pub fn open(path: impl AsRef<Path>, access: Access) -> io::Result<File> {
        let device = Device::open(path.as_ref(), access)?;
        Ok(File::over(device, FileOptions::default()))
    }

    /// A whole device as one file.
    pub fn over(device: Device, options: FileOptions) -> File {
        File::over_with_lock(device, Arc::default(), options)
    }

    /// The same, beside other such files of this device, which share a lock.
    pub fn over_with_lock(device: Device, lock: Arc<WriteLock>, options: FileOptions) -> File {
        let size = device.geometry().size;
        File::new(device, AnyMap::Flat(Flat { address: 0, size }), lock, options)
    }

    /// A file on `device` whose bytes lie where `map` says: at addresses that
    /// are multiples of the device's block size. Files of the same bytes share a lock.
    pub fn with_map(
        device: Device,
        map: impl Map,
        lock: Arc<WriteLock>,
        options: FileOptions,
    ) -> File {
        let view = map.view();
        File::new(device, AnyMap::Other(Box::new(map), view), lock, options)
    }

    fn new(device: Device, map: AnyMap, lock: Arc<WriteLock>, options: FileOptions) -> File {
        let geometry = device.geometry();
        let limit = SIMPLE_LIMIT.max(geometry.block_size);
        let read_only = geometry.read_only || map.is_read_only();
        let submission = match options.write_lock {
            WriteLocking::Shared => None,
            WriteLocking::Exclusive => Some(lock.submission().clone()),
        };
        let shared = Shared {
            block_mask: geometry.block_size as u64 - 1,
            memory_mask: geometry.memory_alignment as u64 - 1,
            simple_read_limit: if options.simple_read { limit } else { 0 },
            simple_write_limit: if read_only || submission.is_some() { 0 } else { limit },
            core: device.core().clone(),
            index: device.index(),
            read_only,
            submission,
            map,
            options,
            lock,
            device,
        };
        File { shared: Arc::new(shared) }
    }

    /// Bytes.
    pub fn size(&self) -> u64 {
        self.shared.map.size()
    }

    /// Bytes of the device that it has: less than its size where there are holes, more where blocks
    /// were allocated ahead.
    pub fn allocated(&self) -> u64 {
        self.shared.map.allocated()
    }

    /// Where data begins, from `offset` on (`SEEK_DATA`). What was allocated and never written is none.
    ///
    /// # Errors
    /// ENXIO behind the file's end, and where no more data comes.
    pub fn seek_data(&self, offset: u64) -> Result<u64, Errno> {
        let size = self.size();
        let mut at = offset;
        while at < size {
            let Mapping { length, place } = self.shared.map.map(at);
            if matches!(place, Place::Written(_)) {
                return Ok(at);
            }
            at = at.saturating_add(length);
        }
        Err(Errno::NXIO)
    }

    /// Where a hole begins, from `offset` on (`SEEK_HOLE`): at the file's end, if nowhere before.
    ///
    /// # Errors
    /// ENXIO behind the file's end.
    pub fn seek_hole(&self, offset: u64) -> Result<u64, Errno> {
        let size = self.size();
        if offset >= size {
            return Err(Errno::NXIO);
        }
        let mut at = offset;
        while at < size {
            let Mapping { length, place } = self.shared.map.map(at);
            if !matches!(place, Place::Written(_)) {
                return Ok(at);
            }
            at += length;
        }
        Ok(size)
    }

    /// The device the bytes lie on.
    pub fn device(&self) -> &Device {
        &self.shared.device
    }

    /// What that device is like.
    pub fn geometry(&self) -> &Geometry {
        self.shared.device.geometry()
    }
}

impl fmt::Debug for File {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "File of {} bytes on {:?}", self.size(), self.shared.device)
    }
}
