//! Pass: extents against free space. Each block belongs to the catalog, to one file, or is free. The device is
//! checked in windows, with one pass over the extents for each window.

use std::ops::Range;

use super::findings::FindingTarget;
use super::fixes::{Fixes, delete, put};
use super::reader::{InodeCursor, RecordIter, extent_of};
use super::report::CheckStep;
use super::round::{LeakedBlocks, Round};
use crate::blocks::{BLOCK, Run};
use crate::catalog::{Catalog, Key, Table};
use crate::core::state::{BLOCKS_KEY, encode_region, parse_region};
use crate::error::{Error, ErrorKind};
use crate::records::inode::{FileType, Inode};
use crate::space::allocator::{
    ChangedRegion, FreeBits, InvalidRegion, REGION_BLOCKS, encode_free_bits, free_bits,
    region_length,
};
use crate::space::extent::Extent;
use crate::space::system_zone::SystemZone;

/// Runs whose owners are searched. Further ones are counted or reported without owners.
const MAX_SUSPECTS: usize = 1000;

/// The blocks of a window that are in use, one bit each.
pub(super) struct UsedBlocks {
    window: Range<u64>,
    bits: Vec<u64>,
}

/// Blocks with a fault, whose owners are to be found.
struct Suspect {
    run: Run,
    fault: BlockFault,
}

enum BlockFault {
    /// More than one file has them.
    Shared,
    /// This many blocks of a region are in use and count as free. `record` is the corrected record.
    CountsAsFree { region: u32, blocks: u64, record: Vec<u8> },
}

impl UsedBlocks {
    /// Blocks that belong to no file.
    pub(super) fn with_system_zone(window: Range<u64>, zone: &SystemZone) -> UsedBlocks {
        let words = (window.end - window.start).div_ceil(REGION_BLOCKS) * REGION_BLOCKS / 64;
        let mut used = UsedBlocks { window, bits: vec![0; words as usize] };
        for run in zone.runs() {
            used.mark(*run);
        }
        used
    }

    /// Marks the part of a run that is inside the window. Returns the blocks that were already marked.
    fn mark(&mut self, run: Run) -> Vec<Run> {
        let begin = run.start.max(self.window.start);
        let end = run.end().min(self.window.end);
        let mut twice: Vec<Run> = Vec::new();
        let mut at = begin;
        while at < end {
            let place = at - self.window.start;
            let (word, from) = ((place / 64) as usize, place % 64);
            let count = (64 - from).min(end - at);
            let mask = (u64::MAX >> (64 - count)) << from;
            let both = self.bits[word] & mask;
            self.bits[word] |= mask;
            for bit in (from..from + count).filter(|bit| both >> bit & 1 == 1) {
                let block = at - from + bit;
                match twice.last_mut() {
                    Some(last) if last.end() == block => last.length += 1,
                    _ => twice.push(Run { start: block, length: 1 }),
                }
            }
            at += count;
        }
        twice
    }

    /// The regions of the window.
    fn regions(&self) -> Range<u32> {
        let first = (self.window.start / REGION_BLOCKS) as u32;
        first..self.window.end.div_ceil(REGION_BLOCKS) as u32
    }

    /// Marks the blocks of a region that are not free.
    fn mark_all_but(&mut self, index: u32, free: Option<&FreeBits>) {
        let at = (u64::from(index) * REGION_BLOCKS - self.window.start) as usize / 64;
        for (word, used) in self.bits[at..][..REGION_BLOCKS as usize / 64].iter_mut().enumerate() {
            *used |= free.map_or(u64::MAX, |free| !free[word]);
        }
    }

    /// The regions of the window, each with its free blocks.
    pub(super) fn free(&self) -> impl Iterator<Item = (u32, FreeBits)> {
        let first = (self.window.start / REGION_BLOCKS) as u32;
        let (regions, _) = self.bits.as_chunks::<{ REGION_BLOCKS as usize / 64 }>();
        (first..).zip(regions).map(|(index, used)| {
            let mut free = used.map(|word| !word);
            let length = region_length(index, self.window.end);
            for block in length..REGION_BLOCKS {
                free[block as usize / 64] &= !(1 << (block % 64));
            }
            (index, free)
        })
    }
}

/// Marks the blocks of all files. Skips invalid extents.
pub(super) fn mark_files(used: &mut UsedBlocks, from: &Catalog, total: u64) -> Result<(), Error> {
    for found in RecordIter::new(from, Table::Extents) {
        if let Some((_, extent)) = extent_of(&found?, total) {
            used.mark(extent.run());
        }
    }
    Ok(())
}

/// Marks the blocks that do not count as free. A region without a readable record counts as full: its record may be
/// among those that could not be read.
pub(super) fn mark_counted(used: &mut UsedBlocks, from: &Catalog, total: u64) -> Result<(), Error> {
    for index in used.regions() {
        let length = region_length(index, total);
        let free = match from.get(Key::Region(index)) {
            Ok(recorded) => recorded
                .and_then(|recorded| free_bits(parse_region(&recorded).ok()?.1, length).ok()),
            Err(error) if error.kind() == ErrorKind::Damaged => None,
            Err(error) => return Err(error),
        };
        used.mark_all_but(index, free.as_deref());
    }
    Ok(())
}

/// Splits a volume into windows.
pub(super) fn windows(total: u64, blocks: u64) -> impl Iterator<Item = Range<u64>> {
    (0..total.div_ceil(blocks)).map(move |index| index * blocks..total.min((index + 1) * blocks))
}

impl Round<'_> {
    pub(super) fn check_blocks(&mut self) -> Result<(), Error> {
        let zone = SystemZone::new(self.superblock, self.catalog.all_runs());
        let mut suspects = Vec::new();
        for window in windows(self.total, self.bounds.blocks) {
            let mut used = UsedBlocks::with_system_zone(window, &zone);
            self.mark_extents(&mut used, &zone, &mut suspects)?;
            for (index, free) in used.free() {
                self.check_region(index, &free, &zone, &mut suspects)?;
            }
        }
        self.check_region_keys()?;
        self.find_owners(suspects)
    }

    /// Marks the blocks of valid extents. Reports the invalid ones, once, in the first window.
    fn mark_extents(
        &mut self,
        used: &mut UsedBlocks,
        zone: &SystemZone,
        suspects: &mut Vec<Suspect>,
    ) -> Result<(), Error> {
        let is_first = used.window.start == 0;
        let mut inodes = InodeCursor::new(self.catalog);
        let (mut file, mut end, mut done) = (None, 0, 0);
        // The current file's inode and its number of blocks.
        let (mut inode, mut has, mut holds_bytes) = (None, 0, true);
        for found in RecordIter::new(self.catalog, Table::Extents) {
            let Some((number, extent)) = extent_of(&found?, self.total) else { continue };
            done += 1;
            if done % 1024 == 0 {
                (self.progress)(CheckStep::Blocks, done)?;
            }
            if file != Some(number) {
                if is_first {
                    self.compare_blocks(inode.take(), has)?;
                }
                (file, end, has) = (Some(number), 0, 0);
                inode = self.advance_to(&mut inodes, number, is_first)?;
                let kind = inode.as_ref().map(|(_, inode)| inode.kind);
                if is_first && kind.is_none() && !self.findings.is_known_lost(number) {
                    self.recreate_inode(number)?;
                }
                holds_bytes = kind.is_none_or(|kind| kind == FileType::File);
            }
            let flaw = if !holds_bytes {
                Some("it has blocks, but is not a regular file")
            } else if extent.offset < end {
                Some("it has two blocks for the same bytes")
            } else if zone.overlaps(extent.run()) {
                Some("it has blocks of the superblock, the catalog or its log")
            } else {
                None
            };
            end = end.max(extent.end());
            match flaw {
                Some(flaw) if is_first => self.drop_extent(number, &extent, flaw),
                Some(_) => {}
                None => {
                    has += extent.length;
                    let twice = used.mark(extent.run());
                    let shared = |run| Suspect { run, fault: BlockFault::Shared };
                    let capacity = MAX_SUSPECTS - suspects.len();
                    self.findings.unfixable_unlisted(twice.len().saturating_sub(capacity));
                    suspects.extend(twice.into_iter().take(capacity).map(shared));
                    self.report.used_blocks += if is_first { extent.length } else { 0 };
                }
            }
        }
        if is_first {
            self.compare_blocks(inode, has)?;
            self.advance_to(&mut inodes, u64::MAX, true)?;
        }
        (self.progress)(CheckStep::Blocks, done)?;
        Ok(())
    }

    /// Moves to an inode by number. The inodes before it have no extents.
    fn advance_to(
        &mut self,
        inodes: &mut InodeCursor<'_>,
        number: u64,
        is_first: bool,
    ) -> Result<Option<(u64, Inode)>, Error> {
        while let Some(found) = inodes.next_up_to(number)? {
            if found.0 == number {
                return Ok(Some(found));
            }
            if is_first {
                self.compare_blocks(Some(found), 0)?;
            }
        }
        Ok(None)
    }

    /// Compares a file's count of blocks with its extents. If the extents have fewer, the file has lost blocks.
    fn compare_blocks(&mut self, inode: Option<(u64, Inode)>, has: u64) -> Result<(), Error> {
        let Some((number, mut inode)) = inode else { return Ok(()) };
        if inode.kind != FileType::File || inode.blocks == has {
            return Ok(());
        }
        // An orphan loses its extents in several commits.
        if self.get_sound(Key::Orphan(number))?.is_some() {
            return Ok(());
        }
        let (what, cure) = match inode.blocks.checked_sub(has) {
            Some(lost) => {
                let bytes = lost.saturating_mul(BLOCK);
                (format!("{bytes} bytes that it had on the device are lost"), "they read as zeros")
            }
            None => (
                format!("its inode counts {} blocks, its extents have {has}", inode.blocks),
                "corrected",
            ),
        };
        inode.blocks = has;
        let changes = vec![put(Key::Inode(number), inode.to_record())];
        self.findings.fixable(FindingTarget::Inode(number), what, cure, changes);
        Ok(())
    }

    fn drop_extent(&mut self, number: u64, extent: &Extent, flaw: &str) {
        let changes = vec![delete(Key::Extent(number, extent.offset))];
        let what = format!(
            "{flaw}: {} bytes from byte {} on, in blocks {:?}",
            extent.length * BLOCK,
            extent.offset.saturating_mul(BLOCK),
            extent.run()
        );
        self.findings.fixable(FindingTarget::Inode(number), what, "dropped", changes);
    }

    /// Compares the free blocks of a region with its record.
    fn check_region(
        &mut self,
        index: u32,
        free: &FreeBits,
        zone: &SystemZone,
        suspects: &mut Vec<Suspect>,
    ) -> Result<(), Error> {
        let (summary, record) = encode_free_bits(free);
        let right = encode_region(&ChangedRegion { index, summary, record });
        let changes = vec![put(Key::Region(index), right.clone())];
        let mut recorded = match self.read_region(index)? {
            Ok(recorded) => recorded,
            Err(flaw) => {
                let what = format!("the record of free blocks in region {index}: {flaw}");
                self.findings.fixable(FindingTarget::Volume, what, "rebuilt", changes);
                return Ok(());
            }
        };
        // Blocks that the superblock names are in use, even if the region does not count them yet: see commit.rs.
        let named = zone.runs().iter().filter(|run| run.start > 0);
        for block in named.flat_map(|run| within(index, *run)) {
            recorded[block as usize / 64] &= !(1 << (block % 64));
        }
        let (in_use, leaked) =
            (count(&recorded, |s, f| s & !f, free), count(&recorded, |s, f| !s & f, free));
        let at = |block: u64| u64::from(index) * REGION_BLOCKS + block;
        if let Some((block, blocks)) = in_use {
            let run = Run { start: at(block), length: 1 };
            let fault = BlockFault::CountsAsFree { region: index, blocks, record: right };
            let suspect = Suspect { run, fault };
            match suspects.len() < MAX_SUSPECTS {
                true => suspects.push(suspect),
                // The owner is not searched, but the record is repaired.
                false => self.report_suspect(FindingTarget::Volume, &suspect),
            }
        } else if let Some((block, blocks)) = leaked {
            let what = format!(
                "{blocks} blocks of region {index}, from block {} on, are neither free nor in use",
                at(block)
            );
            match self.leaked {
                LeakedBlocks::Free => {
                    self.findings.fixable(FindingTarget::Volume, what, "freed", changes);
                }
                LeakedBlocks::Keep => {
                    let advice = "they may belong to files whose extents could not be read; run --repair again to free them";
                    self.findings.unfixable(FindingTarget::Volume, format!("{what}; {advice}"));
                }
            }
        }
        Ok(())
    }

    /// The free blocks that a region's record has, or its flaw.
    fn read_region(&self, index: u32) -> Result<Result<Box<FreeBits>, String>, Error> {
        let length = region_length(index, self.total);
        let recorded = match self.catalog.get(Key::Region(index)) {
            Ok(Some(recorded)) => recorded,
            Ok(None) => return Ok(Ok(all_free(length))),
            Err(error) if error.kind() == ErrorKind::Damaged => return Ok(Err(error.to_string())),
            Err(error) => return Err(error),
        };
        let parsed = parse_region(&recorded).map_err(|error| error.to_string());
        Ok(parsed.and_then(|(summary, record)| {
            let mut bits = free_bits(record, length).map_err(|flaw| flaw.to_string())?;
            if encode_free_bits(&bits).0 != summary {
                return Err(InvalidRegion::Summary.to_string());
            }
            let grown = Run { start: self.known, length: self.total - self.known };
            let added = [Some(grown), self.superblock.previous_backup(self.known)];
            let added = added.into_iter().flatten().flat_map(|run| within(index, run));
            added.for_each(|block| bits[block as usize / 64] |= 1 << (block % 64));
            Ok(bits)
        }))
    }

    /// The records with which the regions cover the whole volume, and say the same as before: after a power cut while it
    /// grew they do not cover it yet. Nothing if they do. A damaged record stays as it is.
    pub(super) fn growth(&self) -> Result<Fixes, Error> {
        let mut changes = Fixes::new();
        if self.known == self.total {
            return Ok(changes);
        }
        let last = Run { start: self.known - 1, length: 1 };
        let grown = [Some(last), self.superblock.previous_backup(self.known)];
        for block in grown.into_iter().flatten().map(|run| run.start) {
            let index = (block / REGION_BLOCKS) as u32;
            if let Ok(free) = self.read_region(index)? {
                let (summary, record) = encode_free_bits(&free);
                let record = encode_region(&ChangedRegion { index, summary, record });
                changes.extend([put(Key::Region(index), record)]);
            }
        }
        changes.extend([put(Key::State(BLOCKS_KEY), self.total.to_be_bytes().to_vec())]);
        Ok(changes)
    }

    /// Reports records of regions that do not exist.
    fn check_region_keys(&mut self) -> Result<(), Error> {
        for found in RecordIter::new(self.catalog, Table::Regions) {
            let key = found?.key;
            let index = key.as_slice().try_into().map(u32::from_be_bytes).ok();
            if index.is_none_or(|index| region_length(index, self.total) == 0) {
                let what = "there is a record of free blocks for a region that does not exist";
                let changes = vec![((Table::Regions, key), None)];
                self.findings.fixable(FindingTarget::Volume, what, "dropped", changes);
            }
        }
        Ok(())
    }

    /// Reports each suspect with its owners.
    fn find_owners(&mut self, suspects: Vec<Suspect>) -> Result<(), Error> {
        if suspects.is_empty() {
            return Ok(());
        }
        let mut owned = vec![false; suspects.len()];
        for found in RecordIter::new(self.catalog, Table::Extents) {
            let Some((number, extent)) = extent_of(&found?, self.total) else { continue };
            for (suspect, owned) in suspects.iter().zip(&mut owned) {
                let run = suspect.run;
                if run.start < extent.run().end() && extent.start < run.end() {
                    *owned = true;
                    self.report_suspect(FindingTarget::Inode(number), suspect);
                }
            }
        }
        for (suspect, _) in suspects.iter().zip(owned).filter(|(_, owned)| !owned) {
            self.report_suspect(FindingTarget::Volume, suspect);
        }
        Ok(())
    }

    fn report_suspect(&mut self, owner: FindingTarget, suspect: &Suspect) {
        let Run { start, length } = suspect.run;
        match &suspect.fault {
            BlockFault::Shared => {
                let what = format!(
                    "{length} of its blocks, from block {start} on, also belong to another file: copy \
                     the right data, remove both, and check again"
                );
                self.findings.unfixable(owner, what);
            }
            BlockFault::CountsAsFree { region, blocks, record } => {
                let what = format!(
                    "{blocks} blocks in use, from block {start} on, count as free in region {region}"
                );
                let changes = vec![put(Key::Region(*region), record.clone())];
                self.findings.fixable(owner, what, "corrected", changes);
            }
        }
    }
}

/// The part of a run that is inside a region, as blocks of the region.
fn within(region: u32, run: Run) -> Range<u64> {
    let first = u64::from(region) * REGION_BLOCKS;
    let inside = |block: u64| block.clamp(first, first + REGION_BLOCKS) - first;
    inside(run.start)..inside(run.end())
}

fn all_free(length: u64) -> Box<FreeBits> {
    let mut bits = Box::new([0; REGION_BLOCKS as usize / 64]);
    (0..length).for_each(|block| bits[block as usize / 64] |= 1 << (block % 64));
    bits
}

/// Counts the blocks that `differ` selects, and returns the first and the count.
fn count(
    recorded: &FreeBits,
    differ: impl Fn(u64, u64) -> u64,
    right: &FreeBits,
) -> Option<(u64, u64)> {
    let words = || recorded.iter().zip(right).map(|(recorded, right)| differ(*recorded, *right));
    let (place, word) = words().enumerate().find(|(_, word)| *word != 0)?;
    let first = place as u64 * 64 + u64::from(word.trailing_zeros());
    Some((first, words().map(|word| u64::from(word.count_ones())).sum()))
}
