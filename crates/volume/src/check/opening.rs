//! Opens a volume for a check: lock, superblock, catalog.

use uringfs_device::Device;

use super::report::CheckOptions;
use crate::blocks::BlockIo;
use crate::catalog::{Access, Catalog, CatalogOptions, Key, LostPages};
use crate::core::device_lock::{DeviceLock, LockKind};
use crate::core::state::SUPERBLOCK_KEY;
use crate::error::{Error, ErrorKind};
use crate::superblock::{LoadedSuperblock, Superblock, describe_copy};
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

/// Reads the superblock. A repair also accepts a copy, if no slot is usable or both are older: one that matches the
/// catalog it names.
pub(super) fn find_superblock(
    blocks: &BlockIo,
    options: CheckOptions,
) -> Result<LoadedSuperblock, Error> {
    let error = match Superblock::read(blocks) {
        Err(error) if options.repair && error.kind() == ErrorKind::Damaged => error,
        found => return found,
    };
    let mut refused = Vec::new();
    for (block, copy) in Superblock::find_copies(blocks) {
        match verify_copy(blocks, &copy) {
            Ok(()) => return Ok(copy.replacing_slots(blocks)),
            Err(error) => refused.push(format!("the copy {}: {error}", describe_copy(block))),
        }
    }
    Err(if refused.is_empty() { error } else { Error::damaged(refused.join("; ")) })
}

/// Compares a copy of the superblock with the catalog that it names.
///
/// # Errors
/// `Damaged` when the copy is older than the catalog, or from another volume; as [`Catalog::open`].
fn verify_copy(blocks: &BlockIo, copy: &Superblock) -> Result<(), Error> {
    copy.check_device(blocks)?;
    let catalog = open(blocks, copy, LostPages::Fail)?;
    let Some(noted) = catalog.get(Key::State(SUPERBLOCK_KEY))? else { return Ok(()) };
    let (generation, uuid) = noted
        .split_first_chunk()
        .ok_or_else(|| Error::damaged("the catalog's note of its superblock is too short"))?;
    let generation = u64::from_be_bytes(*generation);
    if uuid != copy.uuid {
        return Err(Error::damaged("it belongs to another volume than the catalog that it names"));
    }
    if generation > copy.generation {
        let its = copy.generation;
        let what = format!("it is older ({its}) than the catalog that it names ({generation})");
        return Err(Error::damaged(what));
    }
    known_blocks(&catalog, copy.total_blocks).map(drop)
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
