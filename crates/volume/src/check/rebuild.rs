//! A catalog in which pages are lost is replaced: what can still be read goes into a new one, in blocks
//! that are free, and then the superblock names those. Until then the old one holds.

use super::Bounds;
use super::blocks::{Used, mark_files, windows};
use super::findings::BATCH;
use super::records::All;
use crate::allocator::{ChangedRegion, FreeBits, REGION_BLOCKS, record_of};
use crate::blocks::{Blocks, Run};
use crate::catalog::{Batch, Catalog, CatalogOptions, Key, MIN_BLOCKS, Table};
use crate::error::{Error, ErrorKind};
use crate::shared::{BLOCKS, region_record};
use crate::superblock::Superblock;

/// Runs shorter than this are left to files.
const SHORTEST: u64 = 64;
/// Runs that a new catalog begins with, at most.
const MOST_RUNS: usize = 64;

/// Puts what `old` still has into a new catalog, and writes the superblock that names it.
///
/// # Errors
/// `NoSpace`, with nothing changed, when too few blocks are free; the device's.
pub(super) fn rebuild(
    blocks: &Blocks,
    superblock: &mut Superblock,
    old: &Catalog,
    bounds: Bounds,
) -> Result<(), Error> {
    let total = superblock.total_blocks;
    let runs = find_room(old, total, bounds)?;
    let new = Catalog::create(blocks, &runs, CatalogOptions::default())?;
    // Free space is counted anew; the old catalog's blocks are free then.
    for table in Table::ALL.into_iter().filter(|table| *table != Table::Regions) {
        copy(old, &new, table)?;
    }
    for window in windows(total, bounds.blocks) {
        let mut used = Used::by_metadata(window, &runs);
        mark_files(&mut used, &new, total)?;
        let mut batch = Batch::default();
        for (index, free) in used.free() {
            let (summary, record) = record_of(&free);
            let record = region_record(&ChangedRegion { index, summary, record });
            batch.put(Key::Region(index), &record);
        }
        new.commit(&batch)?;
    }
    let mut batch = Batch::default();
    batch.put(Key::State(BLOCKS), &total.to_be_bytes());
    new.commit(&batch)?;
    new.close()?;
    superblock.catalog = runs;
    superblock.write(blocks)
}

/// Free runs for as much as the old catalog has.
fn find_room(old: &Catalog, total: u64, bounds: Bounds) -> Result<Vec<Run>, Error> {
    let old_runs = old.runs();
    let needed = old_runs.iter().map(|run| run.length).sum::<u64>().max(MIN_BLOCKS);
    let (mut runs, mut found): (Vec<Run>, u64) = (Vec::new(), 0);
    for window in windows(total, bounds.blocks) {
        let mut used = Used::by_metadata(window, &old_runs);
        mark_files(&mut used, old, total)?;
        for run in used.free().flat_map(|(index, free)| free_runs(index, &free)) {
            if run.length < SHORTEST {
                continue;
            }
            let length = run.length.min(needed - found);
            runs.push(Run { length, ..run });
            found += length;
            if found == needed {
                return Ok(runs);
            }
            if runs.len() == MOST_RUNS {
                break;
            }
        }
    }
    let what = format!(
        "pages of the catalog are lost, and there is no room for a new one of {needed} blocks: \
         enlarge the volume (uringfs resize)"
    );
    Err(Error::new(ErrorKind::NoSpace, what))
}

/// Free blocks of a region in a row, the longest first.
fn free_runs(index: u32, free: &FreeBits) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for block in
        (0..REGION_BLOCKS).filter(|block| free[*block as usize / 64] >> (block % 64) & 1 == 1)
    {
        let block = u64::from(index) * REGION_BLOCKS + block;
        match runs.last_mut() {
            Some(last) if last.end() == block => last.length += 1,
            _ => runs.push(Run { start: block, length: 1 }),
        }
    }
    runs.sort_by_key(|run| std::cmp::Reverse(run.length));
    runs
}

fn copy(old: &Catalog, new: &Catalog, table: Table) -> Result<(), Error> {
    let (mut batch, mut bytes) = (Batch::default(), 0);
    for found in All::of(old, table) {
        let found = found?;
        // What cannot be read stays behind.
        let Ok(value) = found.value else { continue };
        bytes += found.key.len() + value.len();
        batch.change(table, &found.key, Some(&value));
        if bytes > BATCH {
            new.commit(&std::mem::take(&mut batch))?;
            bytes = 0;
        }
    }
    new.commit(&batch)
}
