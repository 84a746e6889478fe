//! Runs the passes of a check, and repeats them until nothing is left to repair.
use uringfs_device::{Device, Errno};

use super::findings::Findings;
use super::fixes::{Fixes, batches};
use super::opening::{find_superblock, lock_for_write, open_for_write, require_writable};
use super::paths::Parents;
use super::reader::RecordIter;
use super::rebuild::rebuild;
use super::report::{CheckOptions, CheckReport, CheckStep};
use super::round::{Bounds, LeakedBlocks, Progress, Round};
use crate::blocks::BlockIo;
use crate::catalog::{
    BadPage, Batch, Catalog, LostPages, PageDamage, Reserve, Table, Verification,
};
use crate::core::device_lock::{DeviceLock, LockKind};
use crate::error::{Error, ErrorKind};
use crate::superblock::{LoadedSuperblock, Superblock};
use crate::volume::open_catalog::{open, recorded_blocks, unrepairable};
use crate::volume::open_volume::older_version;
use crate::volume::volume::Volume;

/// Rounds of repairs. Each repairs up to 16 MiB of records.
const MAX_ROUNDS: usize = 100;

impl Volume {
    /// Checks the closed volume on a device, and repairs it if `options` say so. Returns the findings; see
    /// [`CheckReport`]. [`Self::check_online`] checks an open one. Calls `progress` with the current step and the number of pages, records, names, extents or blocks so far.
    ///
    /// # Errors
    /// `NotAVolume`, `Unsupported`; `OtherFormat` unless [`CheckOptions::overwrite_other_format`] is set; EBUSY when any
    /// process has it open for writing, or for reading if this call repairs; `Damaged` when no superblock or no header of the catalog can be read (a repair uses the backup
    /// superblock, if that is not older than the catalog); `NoSpace` when a repair lacks space; errors of the device. A
    /// repair fails on an unreadable block of the catalog, unless [`CheckOptions::accept_unreadable`] is set.
    pub fn check(
        device: &Device,
        options: CheckOptions,
        progress: &mut dyn FnMut(CheckStep, u64),
    ) -> Result<CheckReport, Error> {
        check_within(device, options, Bounds::default(), &mut |step, done| {
            progress(step, done);
            Ok(())
        })
    }
}

pub(crate) fn check_within(
    device: &Device,
    options: CheckOptions,
    bounds: Bounds,
    progress: Progress<'_>,
) -> Result<CheckReport, Error> {
    let blocks = BlockIo::new(device);
    let _lock = match options.repair {
        true => lock_for_write(device)?,
        false => DeviceLock::acquire(device, LockKind::Shared)?,
    };
    check_locked(&blocks, options, bounds, progress)
}

pub(super) fn check_locked(
    blocks: &BlockIo,
    options: CheckOptions,
    bounds: Bounds,
    progress: Progress<'_>,
) -> Result<CheckReport, Error> {
    let found = find_superblock(blocks, options)?;
    check_from(found, blocks, options, bounds, progress).map_err(|error| match error.kind() {
        ErrorKind::Damaged => unrepairable(&error.without_advice().to_string()),
        _ => error,
    })
}

/// Checks the volume that a superblock describes.
fn check_from(
    found: LoadedSuperblock,
    blocks: &BlockIo,
    options: CheckOptions,
    bounds: Bounds,
    progress: Progress<'_>,
) -> Result<CheckReport, Error> {
    if options.repair {
        require_writable(&found.superblock)?;
        if found.superblock.needs_upgrade() {
            return Err(older_version());
        }
    }
    progress(CheckStep::Pages, 0)?;
    // Repair the superblock's slots only after the catalog was found where it says.
    let catalog = open(blocks, &found.superblock, LostPages::Empty)?;
    let mut findings = Findings::new(options.repair);
    let (mut superblock, has_bad_slots) = check_slots(found, &catalog, &mut findings)?;
    if options.repair && has_bad_slots {
        superblock.rewrite_slot(blocks)?;
    }
    let is_small = check_size(blocks, &catalog, &mut superblock, &mut findings)?;
    drop(catalog);
    if options.repair && (is_small || has_bad_slots) {
        superblock.write(blocks)?;
    }
    let PageOutcome { lost, leaked } =
        check_pages(blocks, &mut superblock, options, bounds, &mut findings)?;
    for _ in 0..MAX_ROUNDS {
        let catalog = open(blocks, &superblock, lost)?;
        let mut round =
            Round::new(&catalog, &superblock, blocks, bounds, leaked, findings, progress)?;
        let parents = round.run(options)?;
        let growth = round.growth()?;
        let Round { findings: found, report, .. } = round;
        findings = found;
        let fixes = findings.take_fixes();
        findings.resolve_paths(&catalog, &parents)?;
        if fixes.is_empty() {
            return Ok(findings.into_report(report));
        }
        drop(catalog);
        // The repairs write regions of the current size.
        commit(blocks, &superblock, [growth, fixes])?;
    }
    Err(no_convergence())
}

/// Reports the superblock's bad slots. Returns the superblock, and whether it has any.
pub(super) fn check_slots(
    mut found: LoadedSuperblock,
    catalog: &Catalog,
    findings: &mut Findings,
) -> Result<(Superblock, bool), Error> {
    if let Some(known) = recorded_blocks(catalog)? {
        found.reclassify_backup(known);
    }
    let LoadedSuperblock { superblock, bad_slots, .. } = found;
    for slot in &bad_slots {
        findings.fixed_in_place(slot.to_string());
    }
    Ok((superblock, !bad_slots.is_empty()))
}

/// Corrects the size, if the superblock has fewer blocks than the catalog: it is from before the volume grew. True
/// if the superblock must be written.
pub(super) fn check_size(
    blocks: &BlockIo,
    catalog: &Catalog,
    superblock: &mut Superblock,
    findings: &mut Findings,
) -> Result<bool, Error> {
    let total = superblock.total_blocks;
    let Some(known) = recorded_blocks(catalog)?.filter(|known| *known > total) else {
        return Ok(false);
    };
    if known > blocks.count() {
        let there = blocks.count();
        let what =
            format!("the volume has {known} blocks, the device {there}: the device was truncated");
        return Err(Error::new(ErrorKind::Unsupported, what));
    }
    findings.fixed_in_place(format!("superblock: it says {total} blocks, the volume has {known}"));
    superblock.total_blocks = known;
    Ok(true)
}

/// The outcome of verifying the catalog's pages.
struct PageOutcome {
    /// How to treat unreadable pages from now on. If no page is lost, a failed read must not look like a lost page.
    lost: LostPages,
    leaked: LeakedBlocks,
}

/// Verifies the catalog's pages. Repairs them, or moves what is left into a new catalog.
///
/// # Errors
/// `Io` when the device fails to read a page, on a repair that does not accept that.
fn check_pages(
    blocks: &BlockIo,
    superblock: &mut Superblock,
    options: CheckOptions,
    bounds: Bounds,
    findings: &mut Findings,
) -> Result<PageOutcome, Error> {
    let pages = |lost| Ok(PageOutcome { lost, leaked: LeakedBlocks::Free });
    for _ in 0..MAX_ROUNDS {
        let catalog = open(blocks, superblock, LostPages::Empty)?;
        let verified = catalog.verify();
        let found = match verified {
            Verification::Damaged(_) | Verification::Unreadable(_) => read_everything(&catalog),
            _ => Ok(()),
        };
        let (damaged, lines) = (catalog.damaged_pages(), catalog.warnings());
        let unread = unread(&verified, &damaged);
        if options.repair
            && !options.accept_unreadable
            && let Some(unread) = &unread
        {
            return Err(not_repaired(unread));
        }
        found.map_err(|error| match &unread {
            Some(unread) => {
                let what = format!("the catalog's records cannot be found: {unread}");
                Error::new(ErrorKind::Io(Errno::IO), what)
            }
            None => error.with_cause(lines.join("; ")),
        })?;
        let is_sound = lines.is_empty();
        note_pages(&catalog, &verified, findings);
        let repairs = findings.repairs();
        match verified {
            Verification::Good if is_sound || !repairs => return pages(LostPages::Fail),
            Verification::ChecksumsLost { .. } if !repairs => return pages(LostPages::Raw),
            Verification::Good | Verification::ChecksumsLost { .. } => {
                drop(catalog);
                let pages: Vec<u64> = damaged.iter().map(|page| page.page).collect();
                // The next round finds the pages that were too many to remember.
                Catalog::rewrite(blocks, &superblock.catalog, &pages)?;
                // A checkpoint: the readable part of the log goes into the pages.
                let catalog = open_for_write(blocks, superblock)?;
                catalog.checkpoint(&Batch::default())?;
                catalog.close()?;
            }
            Verification::Damaged(_) | Verification::Unreadable(_) => {
                if !repairs {
                    return pages(LostPages::Empty);
                }
                let leaked = if unread.is_some() { LeakedBlocks::Keep } else { LeakedBlocks::Free };
                rebuild(blocks, superblock, &catalog, bounds, leaked, findings)?;
                return Ok(PageOutcome { lost: LostPages::Fail, leaked });
            }
        }
    }
    Err(no_convergence())
}

/// Reports what was wrong with the catalog's pages.
pub(super) fn note_pages(catalog: &Catalog, verified: &Verification, findings: &mut Findings) {
    catalog.warnings().into_iter().for_each(|line| findings.fixed_in_place(line));
    let is_named =
        |page: &BadPage| matches!(page.damage, PageDamage::Lost(_) | PageDamage::Unreadable(_));
    if let Verification::Damaged(what) | Verification::Unreadable(what) = verified
        && !catalog.damaged_pages().iter().any(is_named)
    {
        findings.fixed_in_place(format!("the catalog: {what}"));
    }
}

/// The first part of the catalog that the device failed to read, and the number of others.
pub(super) fn unread(verified: &Verification, damaged: &[BadPage]) -> Option<String> {
    let pages: Vec<&BadPage> =
        damaged.iter().filter(|page| matches!(page.damage, PageDamage::Unreadable(_))).collect();
    match (&pages[..], verified) {
        ([], Verification::Unreadable(what)) => Some(what.clone()),
        ([], Verification::ChecksumsLost { device_error: unread }) => unread.clone(),
        ([], _) => None,
        ([page], _) => Some(page.to_string()),
        ([page, others @ ..], _) => Some(format!("{page}; and {} more", others.len())),
    }
}

fn not_repaired(unread: &str) -> Error {
    let what = format!(
        "{unread}: not repaired, since a later read may succeed; copy the device to a good one and \
         repair that, or give --accept-unreadable to repair without those blocks"
    );
    Error::new(ErrorKind::Io(Errno::IO), what)
}

/// Reads all records, so that all lost pages become known.
pub(super) fn read_everything(catalog: &Catalog) -> Result<(), Error> {
    Table::ALL.into_iter().flat_map(|table| RecordIter::new(catalog, table)).try_for_each(|found| {
        found?;
        Ok(())
    })
}

fn no_convergence() -> Error {
    Error::damaged("repairs do not converge; this is a bug in uringfs")
}

/// Commits the repairs, one part after the other.
fn commit(blocks: &BlockIo, superblock: &Superblock, parts: [Fixes; 2]) -> Result<(), Error> {
    let catalog = open_for_write(blocks, superblock)?;
    for mut batch in parts.into_iter().flat_map(batches) {
        batch.set_reserve(Reserve::Use);
        catalog.checkpoint(&batch)?;
    }
    catalog.close()
}

impl Round<'_> {
    /// Runs all passes. Returns the parent of each directory.
    pub(super) fn run(&mut self, options: CheckOptions) -> Result<Parents, Error> {
        self.check_records()?;
        let parents = self.check_names()?;
        self.check_tree(&parents)?;
        self.check_blocks()?;
        self.check_xattrs()?;
        if options.deep && self.findings.is_last_round() {
            self.read_data()?;
        }
        Ok(parents)
    }
}
