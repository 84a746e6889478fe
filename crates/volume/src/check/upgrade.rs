//! Upgrades a volume of an older version: it gets a backup superblock, and new records of inodes use the current
//! version. Existing records stay, since both versions are read.
//!
//! The contents of the backup's block move first. Then one write of the superblock changes the version, so that after a
//! power cut the volume has either version and is consistent. A new
//! volume has neither files nor catalog in its first 4 MiB; an upgraded one keeps what is there.

use std::collections::BTreeSet;

use uringfs_device::Device;

use super::blocks::{UsedBlocks, mark_files, windows};
use super::check::check_locked;
use super::findings::Findings;
use super::opening::{lock_for_write, open_for_write, require_writable};
use super::reader::{RecordIter, extent_of};
use super::rebuild::{free_runs, rebuild};
use super::report::{CheckOptions, CheckStep};
use super::round::{Bounds, LeakedBlocks, Progress};
use crate::blocks::{BLOCK, BlockIo, Run};
use crate::catalog::{Batch, Catalog, Key, LostPages, Reserve, Table};
use crate::core::state::{BLOCKS_KEY, encode_region};
use crate::error::{Error, ErrorKind};
use crate::space::allocator::{ChangedRegion, REGION_BLOCKS, encode_free_bits};
use crate::space::extent::{Extent, ExtentRecord, ExtentState};
use crate::space::system_zone::SystemZone;
use crate::superblock::{LoadedSuperblock, Superblock};
use crate::volume::open_catalog::{known_blocks, open};
use crate::volume::volume::Volume;

impl Volume {
    /// Upgrades a volume of an older version to the current one, which older code does not open. Returns false if it is
    /// current already. Checks the volume first; `progress` is as in [`Volume::check`].
    ///
    /// # Errors
    /// `Damaged`, with nothing changed, when the volume is not consistent; `NoSpace` when no block is free for the
    /// contents of the backup superblock's block; as [`Volume::check`].
    pub fn upgrade(
        device: &Device,
        progress: &mut dyn FnMut(CheckStep, u64),
    ) -> Result<bool, Error> {
        upgrade_within(device, Bounds::default(), &mut |step, done| {
            progress(step, done);
            Ok(())
        })
    }
}

pub(super) fn upgrade_within(
    device: &Device,
    bounds: Bounds,
    progress: Progress<'_>,
) -> Result<bool, Error> {
    let blocks = &BlockIo::new(device);
    let _lock = lock_for_write(device)?;
    let found = Superblock::read(blocks)?;
    found.require_no_other_format()?;
    let LoadedSuperblock { mut superblock, bad_slots, .. } = found;
    require_writable(&superblock)?;
    if !superblock.needs_upgrade() {
        return Ok(false);
    }
    let report = check_locked(blocks, CheckOptions::default(), bounds, progress)?;
    let found = report.findings.len() as u64 + report.unlisted;
    // The superblock's slots do not count: this call writes them.
    if found > bad_slots.len() as u64 {
        return Err(Error::damaged(format!(
            "the check has {found} findings, and only a consistent volume is upgraded: repair it with the uringfs \
             that made it, or copy the files to a new volume"
        )));
    }
    superblock.upgrade();
    let backup = superblock.backup_block().expect("an upgraded volume has a backup superblock");
    let catalog = open(blocks, &superblock, LostPages::Fail)?;
    if catalog.all_runs().iter().any(|run| (run.start..run.end()).contains(&backup)) {
        let mut findings = Findings::new(true);
        rebuild(blocks, &mut superblock, &catalog, bounds, LeakedBlocks::Free, &mut findings)?;
        return Ok(true);
    }
    let batch = relocate_block(blocks, &superblock, &catalog, backup)?;
    drop(catalog);
    if let Some(batch) = batch {
        let catalog = open_for_write(blocks, &superblock)?;
        catalog.checkpoint(&batch)?;
        catalog.close()?;
    }
    superblock.write(blocks)?;
    Ok(true)
}

/// Copies a file's block elsewhere. Returns a batch that moves the extent, frees the block, and makes the regions cover
/// the whole volume: after a power cut while it grew they do not yet.
fn relocate_block(
    blocks: &BlockIo,
    superblock: &Superblock,
    catalog: &Catalog,
    block: u64,
) -> Result<Option<Batch>, Error> {
    let total = superblock.total_blocks;
    let known = known_blocks(catalog, total)?;
    let owner = owner_of(catalog, total, block)?;
    if owner.is_none() && known == total {
        return Ok(None);
    }
    let (mut batch, mut regions) = (Batch::default(), BTreeSet::new());
    batch.set_reserve(Reserve::Use);
    let mut moved_to = None;
    if let Some((inode, extent)) = owner {
        let to = find_block(superblock, catalog, block)?;
        if extent.state == ExtentState::Written {
            let moved = blocks.read(block, BLOCK as usize);
            moved.and_then(|bytes| blocks.write(to, bytes)).and_then(|()| blocks.flush()).map_err(
                |errno| Error::io(format!("moving block {block} of inode {inode}"), errno),
            )?;
        }
        let at = extent.offset + (block - extent.start);
        let parts = [extent.offset..at, at..at + 1, at + 1..extent.end()];
        for part in parts.iter().filter_map(|range| extent.intersection(range)) {
            let start = if part.offset == at { to } else { part.start };
            let record = ExtentRecord::from(&Extent { start, ..part });
            batch.put(Key::Extent(inode, part.offset), zerocopy::IntoBytes::as_bytes(&record));
        }
        moved_to = Some(to);
        regions.extend([block, to]);
    }
    if known < total {
        batch.put(Key::State(BLOCKS_KEY), &total.to_be_bytes());
        regions.insert(known - 1);
    }
    let regions: BTreeSet<u64> = regions.into_iter().map(|block| block / REGION_BLOCKS).collect();
    let taken = moved_to.map(|start| Run { start, length: 1 });
    let zone = SystemZone::new(superblock, catalog.all_runs().into_iter().chain(taken));
    for first in regions.into_iter().map(|region| region * REGION_BLOCKS) {
        let mut used = UsedBlocks::with_system_zone(first..total.min(first + REGION_BLOCKS), &zone);
        mark_files(&mut used, catalog, total)?;
        for (index, mut free) in used.free() {
            if block / REGION_BLOCKS == u64::from(index) {
                let at = block % REGION_BLOCKS;
                free[at as usize / 64] |= 1 << (at % 64);
            }
            let (summary, record) = encode_free_bits(&free);
            let record = encode_region(&ChangedRegion { index, summary, record });
            batch.put(Key::Region(index), &record);
        }
    }
    Ok(Some(batch))
}

/// The extent that has a block, and its inode.
fn owner_of(catalog: &Catalog, total: u64, block: u64) -> Result<Option<(u64, Extent)>, Error> {
    for found in RecordIter::new(catalog, Table::Extents) {
        let owner = extent_of(&found?, total);
        let has = |extent: &Extent| (extent.run().start..extent.run().end()).contains(&block);
        if let Some(owner) = owner.filter(|(_, extent)| has(extent)) {
            return Ok(Some(owner));
        }
    }
    Ok(None)
}

/// Finds a free block for the contents of `block`, which the backup superblock needs.
fn find_block(superblock: &Superblock, catalog: &Catalog, block: u64) -> Result<u64, Error> {
    let (total, zone) = (superblock.total_blocks, SystemZone::new(superblock, catalog.all_runs()));
    for window in windows(total, Bounds::default().blocks) {
        let mut used = UsedBlocks::with_system_zone(window, &zone);
        mark_files(&mut used, catalog, total)?;
        let free = used.free().find_map(|(index, free)| free_runs(index, &free).first().copied());
        if let Some(run) = free {
            return Ok(run.start);
        }
    }
    let what = format!(
        "the backup superblock needs block {block}, and no free block is left for its contents: copy a file out, \
         and remove it with the uringfs that made the volume"
    );
    Err(Error::new(ErrorKind::NoSpace, what))
}
