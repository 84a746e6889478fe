//! Opens a volume for a check: lock, superblock, catalog.

use uringfs_device::Device;

use super::report::CheckOptions;
use crate::blocks::BlockIo;
use crate::catalog::{Access, Catalog, CatalogOptions, Key, LostPages};
use crate::core::device_lock::{DeviceLock, LockKind};
use crate::core::state::SUPERBLOCK_KEY;
use crate::error::{Error, ErrorKind};
use crate::superblock::{LoadedSuperblock, Superblock, describe_backup};
use crate::volume::format::known_blocks;

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

/// Reads the superblock. If no slot is usable, or both are older than the backup superblock, a repair uses the backup,
/// if it matches the catalog that it names.
pub(super) fn find_superblock(
    blocks: &BlockIo,
    options: CheckOptions,
) -> Result<LoadedSuperblock, Error> {
    let error = match Superblock::read(blocks) {
        Err(error) if options.repair && error.kind() == ErrorKind::Damaged => error,
        found => return found,
    };
    let mut refused = Vec::new();
    for (block, backup) in Superblock::find_backups(blocks) {
        match verify_backup(blocks, &backup) {
            Ok(()) => return Ok(backup.replacing_slots(blocks)),
            Err(error) => {
                refused.push(format!("the backup superblock {}: {error}", describe_backup(block)));
            }
        }
    }
    Err(if refused.is_empty() { error } else { Error::damaged(refused.join("; ")) })
}

/// Compares a backup superblock with the catalog that it names.
///
/// # Errors
/// `Damaged` when the backup is older than the catalog, or from another volume; as [`Catalog::open`].
fn verify_backup(blocks: &BlockIo, backup: &Superblock) -> Result<(), Error> {
    backup.check_device(blocks)?;
    let catalog = open(blocks, backup, LostPages::Fail)?;
    let Some(recorded) = catalog.get(Key::State(SUPERBLOCK_KEY))? else { return Ok(()) };
    let (generation, uuid) = recorded
        .split_first_chunk()
        .ok_or_else(|| Error::damaged("the catalog's record of its superblock is too short"))?;
    let generation = u64::from_be_bytes(*generation);
    if uuid != backup.uuid {
        return Err(Error::damaged("it belongs to another volume than the catalog that it names"));
    }
    if generation > backup.generation {
        let older = backup.generation;
        let what = format!("it is older ({older}) than the catalog that it names ({generation})");
        return Err(Error::damaged(what));
    }
    known_blocks(&catalog, backup.total_blocks).map(drop)
}

pub(super) fn open(
    blocks: &BlockIo,
    superblock: &Superblock,
    lost: LostPages,
) -> Result<Catalog, Error> {
    let access = Access::ReadOnly;
    let options = CatalogOptions {
        access,
        lost_page_policy: lost,
        truncate_damaged_log: true,
        ..CatalogOptions::default()
    };
    Catalog::open(blocks, &superblock.catalog, superblock.log, options)
}

pub(super) fn open_for_write(blocks: &BlockIo, superblock: &Superblock) -> Result<Catalog, Error> {
    let options = CatalogOptions { truncate_damaged_log: true, ..CatalogOptions::default() };
    Catalog::open(blocks, &superblock.catalog, superblock.log, options)
}
