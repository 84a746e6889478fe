//! Opens a volume for a check: lock, superblock, catalog.

use uringfs_device::Device;

use super::report::CheckOptions;
use crate::blocks::BlockIo;
use crate::catalog::{Catalog, CatalogOptions, LostPages};
use crate::core::device_lock::{DeviceLock, LockKind};
use crate::error::{Error, ErrorKind};
use crate::superblock::{LoadedSuperblock, Superblock};
use crate::volume::open_catalog::{find_usable_backup, is_io, open_catalog, read_options};

/// Locks a device for writing.
pub(super) fn lock_for_write(device: &Device) -> Result<DeviceLock, Error> {
    if device.geometry().read_only {
        return Err(Error::new(ErrorKind::Input, "the target is open for reading only"));
    }
    DeviceLock::acquire(device, LockKind::Exclusive)
}

/// Checks that this version may write the volume.
pub(super) fn require_writable(superblock: &Superblock) -> Result<(), Error> {
    if superblock.is_read_only() {
        let what = "the volume uses features that this uringfs may not write; use a newer one";
        return Err(Error::new(ErrorKind::Unsupported, what));
    }
    Ok(())
}

/// Reads the superblock. A repair uses the backup superblock instead, if that matches the catalog that it names, and
/// the slots are no good: none is usable, both are older than the backup, or they are of another volume. If a
/// slot is unreadable, it does so only with [`CheckOptions::accept_unreadable`]; if another format was made over the
/// volume, only with [`CheckOptions::overwrite_other_format`]. The error advises a repair only if that
/// finds a backup to use.
pub(super) fn find_superblock(
    blocks: &BlockIo,
    options: CheckOptions,
) -> Result<LoadedSuperblock, Error> {
    let found = Superblock::read(blocks).and_then(|found| {
        if !options.overwrite_other_format {
            found.require_no_other_format()?;
        }
        if !found.has_own_backup() {
            open_catalog(blocks, &found.superblock, read_options(LostPages::Empty))?;
        }
        Ok(found)
    });
    let error = match found {
        Err(error) if error.kind() == ErrorKind::Damaged || is_io(error.kind()) => error,
        Err(error) if error.kind() == ErrorKind::OtherFormat && options.overwrite_other_format => {
            error
        }
        found => return found,
    };
    let is_accepted = !is_io(error.kind()) || options.accept_unreadable;
    match find_usable_backup(blocks, error, is_accepted)? {
        (backup, _) if options.repair && is_accepted => Ok(backup.replacing_slots(blocks)),
        (_, error) => Err(error),
    }
}

pub(super) fn open_for_write(blocks: &BlockIo, superblock: &Superblock) -> Result<Catalog, Error> {
    let options = CatalogOptions { truncate_damaged_log: true, ..CatalogOptions::default() };
    Catalog::open(blocks, &superblock.catalog, superblock.log, options)
}
