//! Opens a volume for a check: lock, superblock, catalog.

use uringfs_device::Device;

use super::report::CheckOptions;
use crate::blocks::BlockIo;
use crate::catalog::{Access, Catalog, CatalogOptions, Key, LostPages};
use crate::core::device_lock::{DeviceLock, LockKind};
use crate::core::state::SUPERBLOCK_KEY;
use crate::error::{Error, ErrorKind};
use crate::superblock::{LoadedSuperblock, Superblock, describe_backup};
use crate::volume::format::{known_blocks, open_catalog};

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
    let mut failed = Vec::new();
    for (block, backup) in Superblock::find_backups(blocks) {
        match verify_backup(blocks, &backup) {
            Ok(()) if options.repair && is_accepted => return Ok(backup.replacing_slots(blocks)),
            Ok(()) => return Err(error),
            Err(why) => failed.push((describe_backup(block), why.without_advice())),
        }
    }
    let unread = failed.iter().map(|(_, why)| why.kind()).find(|kind| is_io(*kind));
    let kind = match unread {
        // A later read may succeed.
        Some(unread) => unread,
        None if is_accepted && !failed.is_empty() => ErrorKind::Damaged,
        None => error.kind(),
    };
    let mut what = error.without_advice().to_string();
    for (backup, why) in failed {
        what += &format!("; the backup superblock {backup}: {why}");
    }
    Err(match kind {
        ErrorKind::Damaged => unrepairable(&what),
        kind => Error::new(kind, what),
    })
}

fn is_io(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::Io(_))
}

/// The error of damage that no repair corrects.
pub(super) fn unrepairable(what: &str) -> Error {
    Error::damaged(format!(
        "{what}; this cannot be repaired: restore the volume from a copy. Without the catalog nothing says which blocks \
         belong to which file, but the data is still on the device, where programs that search for the contents of \
         files may find some"
    ))
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

fn read_options(lost_page_policy: LostPages) -> CatalogOptions {
    let access = Access::ReadOnly;
    CatalogOptions {
        access,
        lost_page_policy,
        truncate_damaged_log: true,
        ..CatalogOptions::default()
    }
}

pub(super) fn open(
    blocks: &BlockIo,
    superblock: &Superblock,
    lost: LostPages,
) -> Result<Catalog, Error> {
    Catalog::open(blocks, &superblock.catalog, superblock.log, read_options(lost))
}

pub(super) fn open_for_write(blocks: &BlockIo, superblock: &Superblock) -> Result<Catalog, Error> {
    let options = CatalogOptions { truncate_damaged_log: true, ..CatalogOptions::default() };
    Catalog::open(blocks, &superblock.catalog, superblock.log, options)
}
