//! Replaces a catalog that has lost pages: copies the readable records into a new one in free blocks, then writes the
//! superblock that names it. Until then the old catalog stays valid.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use uringfs_buffer::Buffer;

use super::blocks::{UsedBlocks, mark_counted, mark_files, windows};
use super::findings::Findings;
use super::fixes::BATCH_BYTES;
use super::reader::RecordIter;
use super::records::report_unreadable;
use super::round::{Bounds, LeakedBlocks};
use crate::blocks::{BLOCK, BlockIo, Run};
use crate::catalog::{Batch, Catalog, CatalogOptions, Key, MIN_BLOCKS, Table};
use crate::core::state::{BLOCKS_KEY, SUPERBLOCK_KEY, encode_region};
use crate::error::{Error, ErrorKind};
use crate::space::allocator::{ChangedRegion, FreeBits, REGION_BLOCKS, encode_free_bits};
use crate::space::system_zone::SystemZone;
use crate::superblock::Superblock;

/// Shorter runs are not used.
const MIN_RUN_BLOCKS: u64 = 64;
/// The most runs of a new catalog.
const MAX_RUNS: usize = 64;

/// Copies `old` into a new catalog, and writes the superblock that names it. With [`LeakedBlocks::Keep`],
/// leaked blocks and the old catalog's become free only if they count as free.
///
/// # Errors
/// `NoSpace`, with nothing changed, when too few blocks are free; errors of the device.
pub(super) fn rebuild(
    blocks: &BlockIo,
    superblock: &mut Superblock,
    old: &Catalog,
    bounds: Bounds,
    leaked: LeakedBlocks,
    findings: &mut Findings,
) -> Result<(), Error> {
    let total = superblock.total_blocks;
    let (runs, log) = find_space(old, superblock, bounds, leaked)?;
    let new = Catalog::create_replacing(old, &runs, log, CatalogOptions::default())?;
    let zone = SystemZone::new(superblock, new.all_runs());
    // Regions are not copied but computed, and so free the old catalog's blocks.
    for table in Table::ALL.into_iter().filter(|table| *table != Table::Regions) {
        copy(old, &new, table, findings)?;
    }
    for window in windows(total, bounds.blocks) {
        let mut used = UsedBlocks::with_system_zone(window, &zone);
        mark_files(&mut used, &new, total)?;
        if leaked == LeakedBlocks::Keep {
            mark_counted(&mut used, old, total)?;
        }
        let mut batch = Batch::default();
        for (index, free) in used.free() {
            let (summary, record) = encode_free_bits(&free);
            let record = encode_region(&ChangedRegion { index, summary, record });
            batch.put(Key::Region(index), &record);
        }
        new.checkpoint(&batch)?;
    }
    let mut batch = Batch::default();
    batch.put(Key::State(BLOCKS_KEY), &total.to_be_bytes());
    batch.put(Key::State(SUPERBLOCK_KEY), &superblock.identity(superblock.generation + 1));
    new.checkpoint(&batch)?;
    new.close()?;
    (superblock.catalog, superblock.log) = (runs, log);
    superblock.write(blocks)?;
    // So that an old superblock that reappears does not find the old catalog whole.
    let erased = old.header_block().map_or(Ok(()), |head| {
        blocks.write(head, Buffer::zeroed(BLOCK as usize)).and_then(|()| blocks.flush())
    });
    erased.map_err(|errno| Error::io("erasing the header of the old catalog", errno))
}

/// Finds free runs for a catalog of the old one's size, and a run for the log: the old one, unless the backup
/// superblock needs a block of it.
fn find_space(
    old: &Catalog,
    superblock: &Superblock,
    bounds: Bounds,
    leaked: LeakedBlocks,
) -> Result<(Vec<Run>, Run), Error> {
    let (zone, total) = (SystemZone::new(superblock, old.all_runs()), superblock.total_blocks);
    let needed = old.runs().iter().map(|run| run.length).sum::<u64>().max(MIN_BLOCKS);
    let mut longest = LongestRuns { needed, found: 0, runs: BinaryHeap::new() };
    let mut log = superblock.log;
    let mut has_room = false;
    let mut has_log =
        !superblock.backup_block().is_some_and(|backup| (log.start..log.end()).contains(&backup));
    for window in windows(total, bounds.blocks) {
        let mut used = UsedBlocks::with_system_zone(window, &zone);
        mark_files(&mut used, old, total)?;
        if leaked == LeakedBlocks::Keep {
            mark_counted(&mut used, old, total)?;
        }
        for mut run in used.free().flat_map(|(index, free)| free_runs(index, &free)) {
            if !has_log && run.length >= log.length {
                (has_log, log.start) = (true, run.start);
                run = Run { start: log.end(), length: run.length - log.length };
            }
            has_room |= run.length >= MIN_RUN_BLOCKS && longest.add(run);
            if has_room && has_log {
                return Ok((longest.into_runs(), log));
            }
        }
    }
    let what = format!(
        "there is no room for a new catalog of {needed} blocks: enlarge the volume (uringfs resize)"
    );
    Err(Error::new(ErrorKind::NoSpace, what))
}

/// The longest free runs found so far.
struct LongestRuns {
    /// Blocks.
    needed: u64,
    /// Blocks in `runs`.
    found: u64,
    /// Length and start, the shortest first; at most [`MAX_RUNS`].
    runs: BinaryHeap<Reverse<(u64, u64)>>,
}

impl LongestRuns {
    /// Adds a run. True if the runs are enough.
    fn add(&mut self, run: Run) -> bool {
        self.found += run.length;
        self.runs.push(Reverse((run.length, run.start)));
        if self.runs.len() > MAX_RUNS
            && let Some(Reverse((shortest, _))) = self.runs.pop()
        {
            self.found -= shortest;
        }
        self.found >= self.needed
    }

    /// The longest runs, cut to what is needed.
    fn into_runs(self) -> Vec<Run> {
        let mut left = self.needed;
        let mut runs = Vec::new();
        for Reverse((length, start)) in self.runs.into_sorted_vec() {
            let length = length.min(left);
            left -= length;
            if length > 0 {
                runs.push(Run { start, length });
            }
        }
        runs
    }
}

/// The runs of free blocks in a region.
pub(super) fn free_runs(index: u32, free: &FreeBits) -> Vec<Run> {
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
    runs
}

fn copy(old: &Catalog, new: &Catalog, table: Table, findings: &mut Findings) -> Result<(), Error> {
    let (mut batch, mut bytes) = (Batch::default(), 0);
    for found in RecordIter::new(old, table) {
        let found = found?;
        let value = match found.value {
            Ok(value) => value,
            // An unreadable record is not copied.
            Err(error) => {
                report_unreadable(findings, table, &found.key, &error.to_string(), Vec::new());
                continue;
            }
        };
        bytes += found.key.len() + value.len();
        batch.change(table, &found.key, Some(&value));
        if bytes > BATCH_BYTES {
            new.checkpoint(&std::mem::take(&mut batch))?;
            bytes = 0;
        }
    }
    new.checkpoint(&batch)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_free_runs_are_taken() {
        let mut longest = LongestRuns { needed: 5000, found: 0, runs: BinaryHeap::new() };
        for index in 0..1000 {
            assert!(!longest.add(Run { start: 1000 * index, length: 64 + index % 7 }));
            assert!(longest.runs.len() <= MAX_RUNS);
        }
        assert!(!longest.add(Run { start: 2_000_000, length: 400 }));
        assert!(longest.add(Run { start: 3_000_000, length: 4000 }));
        let runs = longest.into_runs();
        assert_eq!(runs[0], Run { start: 3_000_000, length: 4000 });
        assert_eq!(runs[1], Run { start: 2_000_000, length: 400 });
        assert_eq!(runs.iter().map(|run| run.length).sum::<u64>(), 5000);
        assert!(runs.iter().all(|run| run.length > 0));
    }
}
