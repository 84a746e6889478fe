//! Opens the catalog that a superblock names. If the slots of the superblock are no good, finds a backup superblock that a
//! repair can use.

use crate::blocks::BlockIo;
use crate::catalog::{Access, Catalog, CatalogOptions, Key, LostPages};
use crate::core::state::{BLOCKS_KEY, SUPERBLOCK_KEY};
use crate::error::{Error, ErrorKind};
use crate::superblock::{REPAIR_ADVICE, Superblock, describe_backup};

/// Opens the catalog that a superblock names, if both are of the same volume.
///
/// # Errors
/// `Damaged` if they are not, with the way to mend it; as [`Catalog::open`].
pub(crate) fn open_catalog(
    blocks: &BlockIo,
    superblock: &Superblock,
    options: CatalogOptions,
) -> Result<Catalog, Error> {
    let opened = Catalog::open(blocks, &superblock.catalog, superblock.log, options);
    let catalog = match opened {
        Err(error) if error.kind() == ErrorKind::Damaged => {
            return Err(superblock.error_with_other_backup(blocks, &error).unwrap_or(error));
        }
        opened => opened?,
    };
    match catalog.get(Key::State(SUPERBLOCK_KEY)) {
        Ok(Some(identity)) if !identity.ends_with(&superblock.uuid) => {
            let what = "the superblock is of another volume than the catalog that it names";
            let error = superblock.error_with_other_backup(blocks, &Error::damaged(what));
            Err(error.unwrap_or_else(|| Error::damaged(what).with_advice(REPAIR_ADVICE)))
        }
        // A record that cannot be read is for the caller's next read, or a check.
        _ => Ok(catalog),
    }
}

/// The error of a volume that cannot be opened. It advises a repair only if that finds a backup superblock to use.
pub(crate) fn with_checked_advice(blocks: &BlockIo, error: Error) -> Error {
    if !error.has_advice() || error.kind() == ErrorKind::OtherFormat {
        return error;
    }
    let is_final = !is_io(error.kind());
    match find_usable_backup(blocks, error, is_final) {
        Ok((_, error)) | Err(error) => error,
    }
}

/// Finds the newest backup superblock that matches the catalog that it names. Returns it with `error`, which is that of
/// the slots.
///
/// # Errors
/// There is none: `error`, without advice and with what is wrong with each backup. If `is_final`, it says that no
/// repair can help.
pub(crate) fn find_usable_backup(
    blocks: &BlockIo,
    error: Error,
    is_final: bool,
) -> Result<(Superblock, Error), Error> {
    let mut failed = Vec::new();
    for (block, backup) in Superblock::find_backups(blocks) {
        match verify_backup(blocks, &backup) {
            Ok(()) => return Ok((backup, error)),
            Err(why) => failed.push((describe_backup(block), why.without_advice())),
        }
    }
    let unread = failed.iter().map(|(_, why)| why.kind()).find(|kind| is_io(*kind));
    let kind = match unread {
        // A later read may succeed.
        Some(unread) => unread,
        None if is_final && !failed.is_empty() => ErrorKind::Damaged,
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

pub(crate) fn is_io(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::Io(_))
}

/// The error of damage that no repair corrects.
pub(crate) fn unrepairable(what: &str) -> Error {
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

pub(crate) fn read_options(lost_page_policy: LostPages) -> CatalogOptions {
    let access = Access::ReadOnly;
    CatalogOptions {
        access,
        lost_page_policy,
        truncate_damaged_log: true,
        ..CatalogOptions::default()
    }
}

pub(crate) fn open(
    blocks: &BlockIo,
    superblock: &Superblock,
    lost: LostPages,
) -> Result<Catalog, Error> {
    Catalog::open(blocks, &superblock.catalog, superblock.log, read_options(lost))
}

/// The number of blocks that the records of regions cover. It is less than `total` after a power cut while the
/// volume grew.
///
/// # Errors
/// `Damaged` when it is more: the superblock is from before the volume grew.
pub(crate) fn known_blocks(catalog: &Catalog, total: u64) -> Result<u64, Error> {
    match recorded_blocks(catalog)? {
        Some(known) if known > total => Err(Error::damaged(format!(
            "the superblock says {total} blocks, the catalog {known}: the superblock is from before the \
             volume grew"
        ))
        .with_advice(REPAIR_ADVICE)),
        known => Ok(known.unwrap_or(total)),
    }
}

/// The number of blocks that the catalog records, if the record can be read.
pub(crate) fn recorded_blocks(catalog: &Catalog) -> Result<Option<u64>, Error> {
    let known = match catalog.get(Key::State(BLOCKS_KEY)) {
        Ok(value) => value.and_then(|value| Some(u64::from_be_bytes(value.try_into().ok()?))),
        Err(error) if error.kind() == ErrorKind::Damaged => None,
        Err(error) => return Err(error),
    };
    Ok(known.filter(|known| *known > 0))
}
