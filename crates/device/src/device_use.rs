//! The uses of a file or block device that exclude each other within this process: an open volume, and a handle that
//! writes the device as a whole. Other processes are excluded by locks (crate `volume`), which do not see a handle of
//! their own process.

use std::fs;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use parking_lot::Mutex;
use rustix::fs::{FileType, fstat};
use uringfs_errno::Errno;

use crate::backend::in_use::backing_stores;
use crate::inner::DeviceInner;

/// Uses of one kind do not exclude each other here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UseKind {
    /// An open volume.
    Volume,
    /// A handle that writes the device as a whole.
    RawWriter,
}

/// The use of the bytes of a device, by whatever path it was opened. It ends with its drop.
#[derive(Debug)]
pub struct DeviceUse {
    entries: Vec<Entry>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    kind: UseKind,
    storage: Storage,
    /// The device has all bytes of this file or device. Else it is a part, such as a partition, and other parts are free.
    is_whole: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Storage {
    File { device: u64, inode: u64 },
    Block { number: u64 },
}

/// All uses by this process.
static USED: Mutex<Vec<Entry>> = Mutex::new(Vec::new());

impl DeviceUse {
    /// Begins the use of a device, and of the files and devices that contain it. A device without a descriptor has no other
    /// users.
    ///
    /// # Errors
    /// EBUSY while this process has a use of the other kind for some of the same bytes.
    pub fn begin(device: &DeviceInner, kind: UseKind) -> Result<DeviceUse, Errno> {
        let identity = device.backend().identity();
        let entries = identity.map_or_else(Vec::new, |descriptor| entries_of(descriptor, kind));
        let mut used = USED.lock();
        let conflicts = |ours: &Entry| {
            used.iter().any(|other| {
                other.storage == ours.storage
                    && other.kind != kind
                    && (other.is_whole || ours.is_whole)
            })
        };
        if entries.iter().any(conflicts) {
            return Err(Errno::BUSY);
        }
        used.extend(&entries);
        Ok(DeviceUse { entries })
    }
}

impl Drop for DeviceUse {
    fn drop(&mut self) {
        let mut used = USED.lock();
        for ours in &self.entries {
            let at = used.iter().position(|entry| entry == ours);
            used.swap_remove(at.expect("each use is in the list"));
        }
    }
}

fn entries_of(descriptor: BorrowedFd<'_>, kind: UseKind) -> Vec<Entry> {
    let own = Storage::of(descriptor).map(|storage| Entry { kind, storage, is_whole: true });
    let below = backing_stores(descriptor).into_iter().filter_map(|lower| {
        let storage = Storage::at(&lower.path)?;
        Some(Entry { kind, storage, is_whole: lower.is_whole })
    });
    own.into_iter().chain(below).collect()
}

impl Storage {
    fn of(descriptor: BorrowedFd<'_>) -> Option<Storage> {
        let status = fstat(descriptor).ok()?;
        Some(match FileType::from_raw_mode(status.st_mode) {
            FileType::BlockDevice => Storage::Block { number: status.st_rdev },
            _ => Storage::File { device: status.st_dev, inode: status.st_ino },
        })
    }

    fn at(path: &Path) -> Option<Storage> {
        let status = fs::metadata(path).ok()?;
        Some(match status.file_type().is_block_device() {
            true => Storage::Block { number: status.rdev() },
            false => Storage::File { device: status.dev(), inode: status.ino() },
        })
    }
}
