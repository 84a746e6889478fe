//! [`Volume::check`]: whether everything a volume says of itself agrees, and making it agree again.
//!
//! A check reads the catalog as its last commit left it, a pass after the other: pages, then records,
//! names with inodes, blocks with free space, and with `deep` the files' bytes. To repair, each pass
//! also answers the records that would be right. They are committed, and all is checked again, until
//! nothing is left to repair: so what one repair brings to light the next round finds.
//!
//! # Memory
//! Apart from the catalog's cache: 32 bytes for each of [`Bounds::inodes`], a bit for each of
//! [`Bounds::blocks`], about 60 bytes for each directory, and what is found: its first 10,000 lines,
//! and 16 MiB of repairs a round. A volume with more inodes or blocks is gone through in several
//! passes.

mod blocks;
mod data;
mod findings;
mod links;
mod names;
mod paths;
mod rebuild;
mod records;
#[cfg(test)]
mod tests;
mod tree;
mod upgrade;

use rustix::io::Errno;
use uringfs_device::Device;

use crate::blocks::Blocks;
use crate::catalog::{
    Access, BadPage, Batch, Catalog, CatalogOptions, Key, LostPages, PageFlaw, Reserve, Table,
    Verified,
};
use crate::core::device_lock::{Lock, Others};
use crate::core::state::{BLOCKS, SUPERBLOCK};
use crate::error::{Error, ErrorKind};
use crate::records::inode::InodeNumber;
use crate::superblock::{Found, Superblock, place_of};
use crate::volume::format::{known_blocks, older_version, recorded_blocks};
use crate::volume::volume::Volume;
pub use findings::Finding;
use findings::{About, Findings};
use records::All;

/// What a check does.
#[derive(Clone, Copy, Debug, Default)]
pub struct CheckOptions {
    /// Mends what can be mended without losing more than is lost already.
    pub repair: bool,
    /// Reads every block that files use.
    pub deep: bool,
    /// Repairs though the device does not give all blocks of the catalog, and takes what they hold for lost. Else
    /// such a volume is not repaired: what cannot be read now may be read later, or on another machine.
    pub accept_unreadable: bool,
}

/// What a check goes through, in its order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckStep {
    /// The catalog's pages.
    Pages,
    /// Its records.
    Records,
    /// Names and inodes.
    Names,
    /// Extents and free space.
    Blocks,
    /// The bytes of files.
    Data,
}

/// What a check found.
#[derive(Clone, Debug, Default)]
pub struct CheckReport {
    /// What is wrong, or was; in the order in which it was found.
    pub findings: Vec<Finding>,
    /// Findings that are not listed, since there are too many.
    pub unlisted: u64,
    /// Of these, those that are not repaired.
    pub unlisted_left: u64,
    /// Files of all kinds but directories.
    pub files: u64,
    /// Directories.
    pub directories: u64,
    /// Blocks that files use.
    pub used_blocks: u64,
    /// Blocks that were read, where that was asked for.
    pub read_blocks: u64,
}

impl CheckReport {
    /// Nothing was wrong.
    pub fn is_sound(&self) -> bool {
        self.findings.is_empty() && self.unlisted == 0
    }

    /// Nothing is wrong now.
    pub fn is_repaired(&self) -> bool {
        self.unlisted_left == 0 && self.findings.iter().all(|finding| finding.is_repaired)
    }
}

/// Of which no more are in memory at once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Inodes whose names are counted in one pass over the names.
    inodes: usize,
    /// Blocks whose owners are found in one pass over the extents; a multiple of a region's.
    blocks: u64,
}

impl Default for Bounds {
    fn default() -> Bounds {
        // 64 MiB each.
        Bounds { inodes: 1 << 21, blocks: 1 << 29 }
    }
}

/// Rounds of repairs, at most: each mends 16 MiB of records.
const MAX_ROUNDS: usize = 100;

/// Hears how far a check is: what is gone through, and how many of it.
pub(crate) type Progress<'p> = &'p mut dyn FnMut(CheckStep, u64);

impl Volume {
    /// Checks the volume of a device, and repairs it if told to, which nobody else may have open then.
    /// Findings are lines; see [`CheckReport`]. `progress` hears what is gone through, and how many
    /// pages, records, names, extents or blocks.
    ///
    /// # Errors
    /// `NotAVolume`, `Unsupported`; EBUSY when another program has it open for writing, or at all if
    /// this one is to repair; `Damaged` when no superblock or no head of the catalog can be read (a repair
    /// takes the superblock's copy, if that is not older than the catalog);
    /// `NoSpace` when a repair finds no room; the device's: also for a block of the catalog that it does not
    /// give, if it is to be repaired and [`CheckOptions::accept_unreadable`] is not set.
    pub fn check(
        device: &Device,
        options: CheckOptions,
        progress: &mut dyn FnMut(CheckStep, u64),
    ) -> Result<CheckReport, Error> {
        check_within(device, options, Bounds::default(), progress)
    }
}

pub(crate) fn check_within(
    device: &Device,
    options: CheckOptions,
    bounds: Bounds,
    progress: Progress<'_>,
) -> Result<CheckReport, Error> {
    let blocks = Blocks::of(device);
    let _lock = match options.repair {
        true => lock_to_write(device)?,
        false => Lock::take(device, Others::MayRead)?,
    };
    check_locked(&blocks, options, bounds, progress)
}

/// Keeps out others from what is about to be written.
fn lock_to_write(device: &Device) -> Result<Lock, Error> {
    if device.geometry().read_only {
        return Err(Error::new(ErrorKind::Input, "the target is open for reading only"));
    }
    Lock::take(device, Others::KeepOut)
}

/// What is written has to be of the version that this code writes.
fn refuse_to_write(superblock: &Superblock) -> Result<(), Error> {
    if superblock.is_read_only() {
        let what = "the volume uses features that this uringfs may not write; use a newer one";
        return Err(Error::new(ErrorKind::Unsupported, what));
    }
    Ok(())
}

fn check_locked(
    blocks: &Blocks,
    options: CheckOptions,
    bounds: Bounds,
    progress: Progress<'_>,
) -> Result<CheckReport, Error> {
    let mut found = find_superblock(blocks, options)?;
    if options.repair {
        refuse_to_write(&found.superblock)?;
        if found.superblock.is_of_older_version() {
            return Err(older_version());
        }
    }
    progress(CheckStep::Pages, 0);
    // A superblock is trusted with both slots only once the catalog was found where it says.
    let catalog = open(blocks, &found.superblock, LostPages::Empty)?;
    if let Some(known) = recorded_blocks(&catalog)? {
        found.settle(known);
    }
    let Found { mut superblock, bad_slots } = found;
    let mut findings = Findings::new(options.repair);
    for slot in &bad_slots {
        findings.mended(slot.to_string());
    }
    if options.repair && !bad_slots.is_empty() {
        superblock.write_again(blocks)?;
    }
    let is_small = check_size(blocks, &catalog, &mut superblock, &mut findings)?;
    drop(catalog);
    if options.repair && (is_small || !bad_slots.is_empty()) {
        superblock.write(blocks)?;
    }
    let Pages { lost, leaked } =
        check_pages(blocks, &mut superblock, options, bounds, &mut findings)?;
    for _ in 0..MAX_ROUNDS {
        let catalog = open(blocks, &superblock, lost)?;
        let total = superblock.total_blocks;
        let known = known_blocks(&catalog, total)?;
        let mut round = Round {
            catalog: &catalog,
            superblock: &superblock,
            blocks,
            total,
            known,
            bounds,
            leaked,
            findings,
            report: CheckReport::default(),
            lost_and_found: None,
            progress,
        };
        let parents = round.go(options)?;
        let Round { findings: found, report, .. } = round;
        findings = found;
        let mut fixes = findings.take_fixes();
        findings.name(&catalog, &parents)?;
        if fixes.is_empty() {
            return Ok(findings.into_report(report));
        }
        if known < total {
            // Regions are repaired as those of the volume as it is now.
            fixes.extend([findings::put(Key::State(BLOCKS), total.to_be_bytes().to_vec())]);
        }
        drop(catalog);
        commit(blocks, &superblock, fixes)?;
    }
    Err(endless())
}

/// A check of all that the catalog says.
struct Round<'r> {
    catalog: &'r Catalog,
    superblock: &'r Superblock,
    blocks: &'r Blocks,
    /// Blocks of the volume.
    total: u64,
    /// Of these, those that the records of regions speak of.
    known: u64,
    bounds: Bounds,
    leaked: Leaked,
    findings: Findings,
    report: CheckReport,
    /// `/lost+found`, once something was put there.
    lost_and_found: Option<InodeNumber>,
    progress: Progress<'r>,
}

/// The superblock. To repair also from a copy, where no slot can be used or both are older: one that what it
/// names bears out.
fn find_superblock(blocks: &Blocks, options: CheckOptions) -> Result<Found, Error> {
    let error = match Superblock::read(blocks) {
        Err(error) if options.repair && error.kind() == ErrorKind::Damaged => error,
        found => return found,
    };
    let mut refused = Vec::new();
    for (block, copy) in Superblock::copies(blocks) {
        match bear_out(blocks, &copy) {
            Ok(()) => return Ok(copy.instead_of_slots(blocks)),
            Err(error) => refused.push(format!("the copy {}: {error}", place_of(block))),
        }
    }
    Err(if refused.is_empty() { error } else { Error::damaged(refused.join("; ")) })
}

/// Compares a copy of the superblock with the catalog that it names.
///
/// # Errors
/// `Damaged` when it is older than that, or another volume's; as [`Catalog::open`].
fn bear_out(blocks: &Blocks, copy: &Superblock) -> Result<(), Error> {
    copy.check_device(blocks)?;
    let catalog = open(blocks, copy, LostPages::Refuse)?;
    let Some(noted) = catalog.get(Key::State(SUPERBLOCK))? else { return Ok(()) };
    let (generation, uuid) = noted
        .split_first_chunk()
        .ok_or_else(|| Error::damaged("the catalog's note of its superblock is too short"))?;
    let generation = u64::from_be_bytes(*generation);
    if uuid != copy.uuid {
        return Err(Error::damaged("it is of another volume than the catalog that it names"));
    }
    if generation > copy.generation {
        let its = copy.generation;
        let what = format!("it is older ({its}) than the catalog that it names ({generation})");
        return Err(Error::damaged(what));
    }
    known_blocks(&catalog, copy.total_blocks).map(drop)
}

fn open(blocks: &Blocks, superblock: &Superblock, lost: LostPages) -> Result<Catalog, Error> {
    let access = Access::ReadOnly;
    let options = CatalogOptions { access, lost, cuts_log: true, ..CatalogOptions::default() };
    Catalog::open(blocks, &superblock.catalog, superblock.log, options)
}

fn open_to_write(blocks: &Blocks, superblock: &Superblock) -> Result<Catalog, Error> {
    let options = CatalogOptions { cuts_log: true, ..CatalogOptions::default() };
    Catalog::open(blocks, &superblock.catalog, superblock.log, options)
}

/// Whether the superblock says fewer blocks than the catalog: then it is of before the volume grew. It is
/// to be written again so.
fn check_size(
    blocks: &Blocks,
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
        let what = format!("the volume has {known} blocks, the device {there}: it was cut short");
        return Err(Error::new(ErrorKind::Unsupported, what));
    }
    findings.mended(format!("superblock: it says {total} blocks, the volume has {known}"));
    superblock.total_blocks = known;
    Ok(true)
}

/// What is to become of blocks that are neither free nor in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leaked {
    /// They become free.
    Free,
    /// They stay taken: they may hold the bytes of files whose extents could not be read.
    Keep,
}

/// What verifying the catalog's pages leads to.
struct Pages {
    /// What is to become of pages that cannot be read from now on: where none is lost, one that fails to be
    /// read must not look as if it were.
    lost: LostPages,
    leaked: Leaked,
}

/// Verifies the catalog's pages; mends them, or puts what is left into a new catalog.
///
/// # Errors
/// `Io` where the device did not give one, if that is to be repaired and not accepted.
fn check_pages(
    blocks: &Blocks,
    superblock: &mut Superblock,
    options: CheckOptions,
    bounds: Bounds,
    findings: &mut Findings,
) -> Result<Pages, Error> {
    let pages = |lost| Ok(Pages { lost, leaked: Leaked::Free });
    for _ in 0..MAX_ROUNDS {
        let catalog = open(blocks, superblock, LostPages::Empty)?;
        let verified = catalog.verify();
        let found = match verified {
            Verified::Damaged(_) | Verified::Unread(_) => read_everything(&catalog),
            _ => Ok(()),
        };
        let (damaged, lines) = (catalog.damaged_pages(), catalog.flaws());
        let unread = unread(&verified, &damaged);
        if options.repair
            && !options.accept_unreadable
            && let Some(unread) = &unread
        {
            return Err(not_repaired(unread));
        }
        found.map_err(|error| match &unread {
            Some(unread) => {
                let what = format!("{unread}: it leads to the catalog's records");
                Error::new(ErrorKind::Io(Errno::IO), what)
            }
            None => error.because(lines.join("; ")),
        })?;
        let is_sound = lines.is_empty();
        lines.into_iter().for_each(|line| findings.mended(line));
        let repairs = findings.repairs();
        match verified {
            Verified::Good if is_sound || !repairs => return pages(LostPages::Refuse),
            Verified::WithoutSums { .. } if !repairs => return pages(LostPages::AsTheyAre),
            Verified::Good | Verified::WithoutSums { .. } => {
                drop(catalog);
                let pages: Vec<u64> = damaged.iter().map(|page| page.page).collect();
                // What was too much to be remembered is found in the next round.
                Catalog::rewrite(blocks, &superblock.catalog, &pages)?;
                // What can be read of the log goes into them.
                let catalog = open_to_write(blocks, superblock)?;
                catalog.commit(&Batch::default())?;
                catalog.close()?;
            }
            Verified::Damaged(what) | Verified::Unread(what) => {
                let is_named =
                    |page: &BadPage| matches!(page.flaw, PageFlaw::Lost(_) | PageFlaw::Unread(_));
                if !damaged.iter().any(is_named) {
                    findings.mended(format!("the catalog: {what}"));
                }
                if !repairs {
                    return pages(LostPages::Empty);
                }
                let leaked = if unread.is_some() { Leaked::Keep } else { Leaked::Free };
                rebuild::rebuild(blocks, superblock, &catalog, bounds, leaked, findings)?;
                return Ok(Pages { lost: LostPages::Refuse, leaked });
            }
        }
    }
    Err(endless())
}

/// What the device did not give of the catalog, if something.
fn unread(verified: &Verified, damaged: &[BadPage]) -> Option<String> {
    let pages: Vec<&BadPage> =
        damaged.iter().filter(|page| matches!(page.flaw, PageFlaw::Unread(_))).collect();
    match (&pages[..], verified) {
        ([], Verified::Unread(what)) => Some(what.clone()),
        ([], Verified::WithoutSums { unread }) => unread.clone(),
        ([], _) => None,
        ([page], _) => Some(page.to_string()),
        ([page, others @ ..], _) => Some(format!("{page}; and {} more", others.len())),
    }
}

fn not_repaired(unread: &str) -> Error {
    let what = format!(
        "{unread}: not repaired, since what cannot be read is not lost yet; copy the device to a good one and \
         repair that, or give --accept-unreadable to go on without"
    );
    Error::new(ErrorKind::Io(Errno::IO), what)
}

/// Goes through all records, so that all pages are known that are lost.
fn read_everything(catalog: &Catalog) -> Result<(), Error> {
    Table::ALL.into_iter().flat_map(|table| All::of(catalog, table)).try_for_each(|found| {
        found?;
        Ok(())
    })
}

fn endless() -> Error {
    Error::damaged("there is no end of what is to be repaired; this is an error of uringfs")
}

/// Makes repairs durable.
fn commit(blocks: &Blocks, superblock: &Superblock, fixes: findings::Fixes) -> Result<(), Error> {
    let catalog = open_to_write(blocks, superblock)?;
    for mut batch in findings::batches(fixes) {
        batch.reserve(Reserve::Use);
        catalog.commit(&batch)?;
    }
    catalog.close()
}

impl Round<'_> {
    /// Checks everything; answers each directory's parent.
    fn go(&mut self, options: CheckOptions) -> Result<paths::Parents, Error> {
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
