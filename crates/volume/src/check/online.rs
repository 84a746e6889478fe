//! [`Volume::check_online`]: the passes of a check over snapshots of a volume that is open and in use. A snapshot is
//! the volume as one commit left it: the superblock, and the catalog with its log, opened for reading from the device,
//! as by the check of a closed volume. The pages of that commit are pinned, so that no later commit reuses them.
//!
//! The catalog takes the pages back if they cost too much. Then what was read counts for nothing, and the step begins
//! again with a new snapshot. File data are read without a pin, since that takes long: a new snapshot for each batch of
//! extents says which blocks to read, and one after a failed read says whether a file still uses the block.

use std::ops::ControlFlow;
use std::sync::Arc;

use uringfs_device::Errno;

use super::check::{check_size, check_slots, note_pages, read_everything, unread};
use super::data::{DataReader, UnreadBlock};
use super::findings::Findings;
use super::opening::find_superblock;
use super::paths::Parents;
use super::reader::{RecordIter, extent_of};
use super::report::{CheckOptions, CheckReport, CheckStep};
use super::round::{Bounds, LeakedBlocks, Progress, Round};
use crate::catalog::{
    BadPage, Catalog, LostPages, MAX_RECORDS, PageDamage, PagePin, Table, Verification,
};
use crate::core::state::VolumeShared;
use crate::error::{Error, ErrorKind};
use crate::space::extent::Extent;
use crate::superblock::LoadedSuperblock;
use crate::volume::open_catalog::open;
use crate::volume::volume::Volume;

/// The most snapshots that one read tries: one of them must be held to the end.
const MAX_SNAPSHOTS: usize = 8;

impl Volume {
    /// Checks the volume while it is open and in use, also by other threads: its state after one commit, by the same
    /// passes as [`Self::check`]. Repairs nothing. Changes after that commit, or not committed yet, are no findings;
    /// call [`Self::sync`] before to check all changes so far. Calls `progress` as [`Self::check`] does; a step may begin
    /// again. `progress` may stop the check.
    ///
    /// # What is not checked
    /// Everything that `check` of the closed volume checks is checked, except:
    /// - the pages in which the catalog keeps its own free space, if a commit reuses them meanwhile;
    /// - the memory of this process: uncommitted changes, the free blocks as the allocator has them, blocks that wait
    ///   for a commit, for reads in flight or for a discard, and dirty pages of a cache. None of these is a finding.
    ///
    /// A file without a name that is still open, or not yet reclaimed, is sound. With [`CheckOptions::deep`] each block
    /// that a file used when the check came to it is read. A block that was freed meanwhile is no finding.
    ///
    /// # Cost
    /// Blocks the thread, and reads from the device; tasks call it in a thread of its own. Commits wait while a snapshot
    /// is taken: up to 2 MiB are read, once for the metadata and once for each 4096 extents with `deep`. Memory is as
    /// for `check`, beside that of the open volume.
    ///
    /// While the metadata is checked, commits cannot reuse pages of the snapshot, so the catalog may grow, up to about
    /// twice its size. It never shrinks. The catalog takes the pages back when it would get larger, or when an operation
    /// finds no room in it, so no operation gets ENOSPC because of a check. The check then begins again, up to eight
    /// times.
    ///
    /// # Errors
    /// `Input` for [`CheckOptions::repair`]; ECANCELED if `progress` stops it; EBUSY when the catalog took back the pages of eight snapshots; errors of the
    /// device for its catalog (a block of a file that cannot be read is a finding); `OtherFormat`, and `Damaged` when no
    /// superblock or no header of the catalog can be read; EIO when the volume has stopped; ECHILD in the child of a
    /// fork.
    ///
    /// ```
    /// # mod uringfs {
    /// #     pub use uringfs_volume::*;
    /// #     pub use uringfs_device as device;
    /// #     pub use uringfs_volume as volume;
    /// # }
    /// use std::ops::ControlFlow;
    /// use uringfs::device::Device;
    /// use uringfs::device::backend::memory::Memory;
    /// use uringfs::volume::CheckOptions;
    /// use uringfs::{FormatOptions, Volume};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let volume = Volume::create_on(Device::new(Memory::new(64 << 20)?)?, &FormatOptions::new())?;
    /// volume.write("/a", "one")?;
    /// volume.sync()?;
    /// let go_on = &mut |_, _| ControlFlow::Continue(());
    /// let report = volume.check_online(CheckOptions::new().deep(true), go_on)?;
    /// assert!(report.is_sound() && report.files == 1);
    /// # Ok(())
    /// # }
    /// ```
    pub fn check_online(
        &self,
        options: CheckOptions,
        progress: &mut dyn FnMut(CheckStep, u64) -> ControlFlow<()>,
    ) -> Result<CheckReport, Error> {
        check_online_within(&self.shared, options, Bounds::default(), &mut |step, done| {
            match progress(step, done) {
                ControlFlow::Continue(()) => Ok(()),
                ControlFlow::Break(()) => {
                    Err(Error::refused(Errno::CANCELED, "the check was stopped"))
                }
            }
        })
    }
}

pub(super) fn check_online_within(
    shared: &Arc<VolumeShared>,
    options: CheckOptions,
    bounds: Bounds,
    progress: Progress<'_>,
) -> Result<CheckReport, Error> {
    shared.check_process()?;
    if options.repair {
        let what =
            "a volume that is open is not repaired; close it, and repair it with `Volume::check`";
        return Err(Error::new(ErrorKind::Input, what));
    }
    let check =
        OnlineCheck { shared, options, bounds, max_blocks: 2 * shared.catalog.block_count() };
    let mut checked = || check.with_snapshot(|snapshot| check.check_metadata(snapshot, progress));
    let mut metadata = checked()?;
    for _ in 1..MAX_SNAPSHOTS {
        if metadata.is_certain {
            break;
        }
        metadata = checked()?;
    }
    if options.deep {
        check.read_data(&mut metadata, progress)?;
    }
    Ok(metadata.findings.into_report(metadata.report))
}

/// A check in progress.
struct OnlineCheck<'c> {
    shared: &'c VolumeShared,
    options: CheckOptions,
    bounds: Bounds,
    /// The blocks that the catalog may have before it takes back a snapshot's pages.
    max_blocks: u64,
}

/// A volume as one commit left it.
struct VolumeSnapshot {
    found: LoadedSuperblock,
    catalog: Catalog,
    pin: PagePin,
}

/// The result of a check of the metadata.
struct CheckedMetadata {
    findings: Findings,
    report: CheckReport,
    parents: Parents,
    /// Every page that counts as lost is lost, and not only its checksum.
    is_certain: bool,
}

impl OnlineCheck<'_> {
    fn snapshot(&self) -> Result<VolumeSnapshot, Error> {
        let VolumeShared { blocks, catalog, .. } = self.shared;
        let (pin, (found, catalog)) = catalog.pin_pages(self.max_blocks, || {
            let found = find_superblock(blocks, self.options)?;
            let catalog = open(blocks, &found.superblock, LostPages::Empty)?;
            Ok((found, catalog))
        })?;
        match found.superblock.uuid == self.shared.uuid {
            true => Ok(VolumeSnapshot { found, catalog, pin }),
            false => {
                Err(Error::damaged("another volume was written over this one while it was open"))
            }
        }
    }

    /// Reads from a snapshot, and from further ones until one was held to the end.
    ///
    /// # Errors
    /// Those of `read`; EBUSY when no snapshot was held; EIO when the device failed to read a page.
    fn with_snapshot<T>(
        &self,
        mut read: impl FnMut(&mut VolumeSnapshot) -> Result<T, Error>,
    ) -> Result<T, Error> {
        for _ in 0..MAX_SNAPSHOTS {
            let mut snapshot = self.snapshot()?;
            let outcome = read(&mut snapshot);
            if snapshot.pin.is_held() {
                snapshot.require_readable(&Verification::Good)?;
                return outcome;
            }
        }
        let what = "the volume changes too fast to be checked in use: check it when less is changed, or closed";
        Err(Error::refused(Errno::BUSY, what))
    }

    fn check_metadata(
        &self,
        snapshot: &mut VolumeSnapshot,
        progress: Progress<'_>,
    ) -> Result<CheckedMetadata, Error> {
        let blocks = &self.shared.blocks;
        progress(CheckStep::Pages, 0)?;
        let verified = snapshot.verify()?;
        let VolumeSnapshot { found, catalog, .. } = snapshot;
        let mut findings = Findings::new(false);
        let (mut superblock, _) = check_slots(found.clone(), catalog, &mut findings)?;
        check_size(blocks, catalog, &mut superblock, &mut findings)?;
        read_everything(catalog)?;
        note_pages(catalog, verified.as_ref().unwrap_or(&Verification::Good), &mut findings);
        let leaked = LeakedBlocks::Free;
        let mut round =
            Round::new(catalog, &superblock, blocks, self.bounds, leaked, findings, progress)?;
        let parents = round.run(CheckOptions { deep: false, ..self.options })?;
        let Round { mut findings, report, .. } = round;
        findings.resolve_paths(catalog, &parents)?;
        let is_lost = |page: &BadPage| matches!(page.damage, PageDamage::Lost(_));
        let is_certain = verified.is_some() || !catalog.damaged_pages().iter().any(is_lost);
        Ok(CheckedMetadata { findings, report, parents, is_certain })
    }

    /// Reads the blocks of all files.
    fn read_data(
        &self,
        metadata: &mut CheckedMetadata,
        progress: Progress<'_>,
    ) -> Result<(), Error> {
        let CheckedMetadata { findings, report, parents, .. } = metadata;
        let mut reader = DataReader {
            blocks: &self.shared.blocks,
            findings,
            read_blocks: &mut report.read_blocks,
            progress,
        };
        let mut next = Some(Vec::new());
        while let Some(from) = next {
            let batch = self.with_snapshot(|snapshot| snapshot.extents(from.clone()))?;
            for (inode, extent) in &batch.extents {
                reader.read(*inode, extent, |block| self.is_in_use(block))?;
            }
            next = batch.next;
        }
        self.with_snapshot(|snapshot| findings.resolve_paths(&snapshot.catalog, parents))
    }

    /// Whether a file still has a block: if not, its blocks were freed after the snapshot that named it.
    fn is_in_use(&self, block: &UnreadBlock) -> Result<bool, Error> {
        self.with_snapshot(|VolumeSnapshot { found, catalog, .. }| {
            for found_extent in RecordIter::for_inode(catalog, Table::Extents, block.inode) {
                let total = found.superblock.total_blocks;
                let Some((_, extent)) = extent_of(&found_extent?, total) else { continue };
                let has_offset = (extent.offset..extent.end()).contains(&block.offset);
                if has_offset && extent.start + (block.offset - extent.offset) == block.block {
                    return Ok(true);
                }
            }
            Ok(false)
        })
    }
}

/// Extents in the order of their files.
struct ExtentBatch {
    extents: Vec<(u64, Extent)>,
    /// The key of the next batch, unless this is the last.
    next: Option<Vec<u8>>,
}

impl VolumeSnapshot {
    /// Verifies every page of the catalog, its own included, as a check of a closed volume does. `None` if a checkpoint
    /// has begun meanwhile: it may have reused some of those, and only the pages of records are verified, when they are
    /// read.
    fn verify(&mut self) -> Result<Option<Verification>, Error> {
        let (verified, damaged) = self.catalog.verify_pages();
        if !self.pin.is_newest() {
            return Ok(None);
        }
        self.catalog.note_damaged(damaged);
        self.require_readable(&verified)?;
        if let Verification::ChecksumsLost { .. } = verified {
            self.catalog.set_lost_pages(LostPages::Raw)?;
        }
        Ok(Some(verified))
    }

    /// # Errors
    /// EIO when the device failed to read a page. Its records are not lost, since a later read may succeed.
    fn require_readable(&self, verified: &Verification) -> Result<(), Error> {
        match unread(verified, &self.catalog.damaged_pages()) {
            Some(unread) => Err(Error::new(
                ErrorKind::Io(Errno::IO),
                format!("the volume is not checked: {unread}"),
            )),
            None => Ok(()),
        }
    }

    /// The valid extents from a key on, as many as one scan returns.
    fn extents(&self, from: Vec<u8>) -> Result<ExtentBatch, Error> {
        let total = self.found.superblock.total_blocks;
        let found = self.catalog.scan_entries(Table::Extents, from, None, MAX_RECORDS)?;
        let is_full = found.len() == MAX_RECORDS;
        let last = found.last().filter(|_| is_full);
        Ok(ExtentBatch {
            next: last.map(|last| [&last.key[..], &[0]].concat()),
            extents: found.iter().filter_map(|found| extent_of(found, total)).collect(),
        })
    }
}
