//! [`Allocator`]: which blocks of the device are free. Does no I/O.
//!
//! The device is cut into regions of 128 MiB. Two numbers of each region are always in memory; which of
//! its blocks are free is loaded when something is allocated or freed there, by a closure that every
//! call brings: it answers the region's record as it was last taken by [`Allocator::take_changed`],
//! `None` if it never was. Its error comes back with nothing done, so that it may as well say "not now".
//!
//! A block goes round: allocated, freed (pending: the free is to be committed, and reactors may still
//! be reading), released (free). A record counts what is pending as free, for after a crash nobody
//! reads: so [`Allocator::free`] belongs into the same step, under the committer's lock, as taking the
//! extents out of what the committer collects, and so do an allocation and putting them in.

mod free_map;
mod max_tree;
mod region;

use std::collections::{BTreeMap, BTreeSet};

use crate::blocks::Run;
pub(crate) use free_map::{FreeBits, free_bits, record_of};
use max_tree::MaxTree;
pub use region::{InvalidRegion, REGION_BLOCKS, RegionSummary};
use region::{Span, SpanSet};

/// Callers that have a region of their own; more share them.
const CALLER_SLOTS: usize = 64;

/// Which blocks of the device are free.
pub struct Allocator {
    blocks: u64,
    reserve: u64,
    free: u64,
    pending: u64,
    promised: u64,
    /// What can be allocated in each region.
    summaries: Vec<RegionSummary>,
    /// The longest run in each region; 0 in those that are somebody's home.
    longest: MaxTree,
    caller_regions: [Option<u32>; CALLER_SLOTS],
    loaded: BTreeMap<u32, Region>,
    changed: BTreeSet<u32>,
}

struct Region {
    free: SpanSet,
    pending: SpanSet,
}

/// What is to be allocated.
#[derive(Clone, Copy, Debug)]
pub struct Want {
    /// So many blocks, if there are as many in a row.
    pub blocks: u64,
    /// Not fewer than these; at most [`REGION_BLOCKS`].
    pub least: u64,
    /// Best here: where the file would go on.
    pub goal: Option<u64>,
    /// Who asks: a small number, the same for each thread. Callers with different numbers get blocks in
    /// different regions while there are enough, so that their files do not alternate on the device.
    pub caller: usize,
}

/// Blocks of the device, by what they are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Space {
    /// All that there are.
    pub total: u64,
    /// Those that can be allocated, with the reserve.
    pub free: u64,
    /// Those that are freed and not released.
    pub pending: u64,
    /// Those of the free that are kept for metadata.
    pub reserved: u64,
    /// Those of the free that are promised.
    pub promised: u64,
}

impl Space {
    /// Those that files can have.
    pub fn available(&self) -> u64 {
        (self.free - self.reserved).saturating_sub(self.promised)
    }
}

/// A region that has changed, for the catalog.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChangedRegion {
    /// Which one, counted from the device's beginning.
    pub index: u32,
    /// What [`Allocator::open`] wants to know of it.
    pub summary: RegionSummary,
    /// What is loaded again.
    pub record: Vec<u8>,
}

impl Allocator {
    /// The allocator of a device of `blocks`, of which the last `reserve` that are free are kept for
    /// metadata. Regions of which there is no summary are free.
    ///
    /// # Errors
    /// When a summary cannot be one.
    ///
    /// # Panics
    /// If the device has no blocks.
    pub fn open(
        blocks: u64,
        reserve: u64,
        known: impl IntoIterator<Item = (u32, RegionSummary)>,
    ) -> Result<Allocator, InvalidRegion> {
        assert!(blocks > 0, "a device without blocks");
        let regions = 0..region_count(blocks);
        let mut summaries: Vec<_> =
            regions.map(|region| RegionSummary::free(length_of(region, blocks))).collect();
        for (region, summary) in known {
            let place = summaries.get_mut(region as usize).ok_or(InvalidRegion::Bounds)?;
            if !summary.is_possible(length_of(region, blocks)) {
                return Err(InvalidRegion::Summary);
            }
            *place = summary;
        }
        Ok(Allocator {
            blocks,
            reserve,
            free: summaries.iter().map(|summary| u64::from(summary.free)).sum(),
            pending: 0,
            promised: 0,
            longest: MaxTree::new(summaries.iter().map(|summary| summary.longest)),
            summaries,
            caller_regions: [None; CALLER_SLOTS],
            loaded: BTreeMap::new(),
            changed: BTreeSet::new(),
        })
    }

    /// Allocates blocks in a row: at the goal if it is free, else in its region or the caller's own,
    /// else in one with much room. There may be fewer than wanted, but at least `least`; `None` if
    /// there are not as many in a row in any region, or only in the reserve.
    ///
    /// # Errors
    /// What `load` says, or that a record is not as it should be.
    ///
    /// # Panics
    /// If `least` is 0 or above what is wanted or what a region has.
    pub fn allocate<E: From<InvalidRegion>>(
        &mut self,
        want: Want,
        load: impl FnMut(u32) -> Result<Option<Vec<u8>>, E>,
    ) -> Result<Option<Run>, E> {
        self.allocate_within(self.space().available(), want, load)
    }

    /// The same from all that is free and not promised: for metadata.
    ///
    /// # Errors
    /// As [`Self::allocate`].
    ///
    /// # Panics
    /// As [`Self::allocate`].
    pub fn allocate_reserved<E: From<InvalidRegion>>(
        &mut self,
        want: Want,
        load: impl FnMut(u32) -> Result<Option<Vec<u8>>, E>,
    ) -> Result<Option<Run>, E> {
        self.allocate_within(self.free.saturating_sub(self.promised), want, load)
    }

    /// Keeps free blocks, of those that are [`available`](Space::available), for somebody who will say later where:
    /// [`Self::redeem`].
    pub fn promise(&mut self, blocks: u64) {
        self.promised += blocks;
    }

    /// Ends a promise of so many blocks, which are among those that are promised: they can be allocated, by
    /// [`Self::allocate_reserved`] at once. Does not panic, since promises are dropped, too.
    pub fn redeem(&mut self, blocks: u64) {
        self.promised = self.promised.saturating_sub(blocks);
    }

    /// Takes just these blocks, from the reserve if need be.
    ///
    /// # Errors
    /// When one of them is not free: then none is taken. What `load` says, or that a record is not as
    /// it should be.
    pub fn claim<E: From<InvalidRegion>>(
        &mut self,
        run: Run,
        mut load: impl FnMut(u32) -> Result<Option<Vec<u8>>, E>,
    ) -> Result<(), E> {
        let spans = self.spans_by_region(run).ok_or(InvalidRegion::NotFree)?;
        for (region, span) in spans.clone() {
            if !self.load(region, &mut load)?.free.contains(span) {
                return Err(InvalidRegion::NotFree.into());
            }
        }
        spans.for_each(|(region, span)| self.take(region, span));
        Ok(())
    }

    /// Takes those of these blocks that are free.
    ///
    /// # Errors
    /// When they do not all lie on the device. What `load` says, or that a record is not as it should
    /// be.
    pub fn take_free<E: From<InvalidRegion>>(
        &mut self,
        run: Run,
        mut load: impl FnMut(u32) -> Result<Option<Vec<u8>>, E>,
    ) -> Result<(), E> {
        for (index, span) in self.spans_by_region(run).ok_or(InvalidRegion::Bounds)? {
            let free = self.load(index, &mut load)?.free.intersection(span);
            free.into_iter().for_each(|span| self.take(index, span));
        }
        Ok(())
    }

    /// Frees blocks: they are pending until [`Self::release`].
    ///
    /// # Errors
    /// When one of them is not allocated, which only what was read from the device can have said: then
    /// none is freed. What `load` says, or that a record is not as it should be.
    pub fn free<E: From<InvalidRegion>>(
        &mut self,
        run: Run,
        mut load: impl FnMut(u32) -> Result<Option<Vec<u8>>, E>,
    ) -> Result<(), E> {
        let spans = self.spans_by_region(run).ok_or(InvalidRegion::NotAllocated)?;
        for (region, span) in spans.clone() {
            let region = self.load(region, &mut load)?;
            if region.free.overlaps(span) || region.pending.overlaps(span) {
                return Err(InvalidRegion::NotAllocated.into());
            }
        }
        for (index, span) in spans {
            self.region(index).pending.insert(span);
            self.pending += u64::from(span.length);
            self.changed.insert(index);
        }
        Ok(())
    }

    /// Loads the regions that these blocks lie in, so that freeing them needs nothing more.
    ///
    /// # Errors
    /// What `load` says, or that a record is not as it should be; when they do not all lie on the device.
    pub fn load_for<E: From<InvalidRegion>>(
        &mut self,
        run: Run,
        mut load: impl FnMut(u32) -> Result<Option<Vec<u8>>, E>,
    ) -> Result<(), E> {
        let mut spans = self.spans_by_region(run).ok_or(InvalidRegion::NotAllocated)?;
        spans.try_for_each(|(region, _)| self.load(region, &mut load).map(drop))
    }

    /// Makes blocks free that were freed: that is committed, and nobody reads them any more.
    ///
    /// # Panics
    /// If one of them is not pending.
    pub fn release(&mut self, run: Run) {
        let spans = self.spans_by_region(run).expect("what is released is on the device");
        for (index, span) in spans {
            let region = self.region(index);
            region.pending.remove(span);
            region.free.insert(span);
            self.pending -= u64::from(span.length);
            self.free += u64::from(span.length);
            self.update_summary(index);
        }
    }

    /// Takes blocks back that were freed and are not released.
    ///
    /// # Panics
    /// If one of them is not pending.
    pub fn take_back(&mut self, run: Run) {
        let spans = self.spans_by_region(run).expect("what was freed is on the device");
        for (index, span) in spans {
            self.region(index).pending.remove(span);
            self.pending -= u64::from(span.length);
            self.changed.insert(index);
        }
    }

    /// Adds blocks behind the last, all free: from now on there are `blocks`.
    ///
    /// The records taken from now on fit this size only. Who commits them commits the size with them,
    /// opens with that one, and grows again to what the device has.
    ///
    /// # Errors
    /// What `load` says, or that a record is not as it should be.
    ///
    /// # Panics
    /// If there are more already.
    pub fn grow<E: From<InvalidRegion>>(
        &mut self,
        blocks: u64,
        mut load: impl FnMut(u32) -> Result<Option<Vec<u8>>, E>,
    ) -> Result<(), E> {
        assert!(blocks >= self.blocks, "a device of {} blocks grows to {blocks}", self.blocks);
        let (last, _) = region_and_block(self.blocks - 1);
        let (old, new) = (length_of(last, self.blocks), length_of(last, blocks));
        if old < new {
            self.load(last, &mut load)?.free.insert(Span::new(old, new - old));
            self.changed.insert(last);
            self.summaries[last as usize] = self.region(last).free.summary();
        }
        let added = last + 1..region_count(blocks);
        self.summaries.extend(added.map(|region| RegionSummary::free(length_of(region, blocks))));
        self.free += blocks - self.blocks;
        self.blocks = blocks;
        self.longest = MaxTree::new(self.summaries.iter().map(|summary| summary.longest));
        self.caller_regions.into_iter().flatten().for_each(|region| self.longest.set(region, 0));
        Ok(())
    }

    /// How much there is.
    pub fn space(&self) -> Space {
        let reserved = self.reserve.min(self.free);
        let Allocator { blocks: total, free, pending, promised, .. } = *self;
        Space { total, free, pending, reserved, promised }
    }

    /// The regions in which something was allocated or freed since this was last asked.
    pub fn take_changed(&mut self) -> Vec<ChangedRegion> {
        let changed = std::mem::take(&mut self.changed).into_iter();
        changed
            .map(|index| {
                let region = &self.loaded[&index];
                let mut free = region.free.clone();
                region.pending.iter_from(0).for_each(|span| free.insert(span));
                ChangedRegion { index, summary: free.summary(), record: free.to_record() }
            })
            .collect()
    }

    /// Forgets which blocks are free in the regions where nothing has changed and nothing is pending,
    /// if more than `most` are loaded. The memory of a loaded one is 4 bytes for each free run: mostly
    /// a few, at the worst 64 KiB.
    pub fn unload(&mut self, most: usize) {
        if self.loaded.len() > most {
            let changed = &self.changed;
            self.loaded.retain(|index, region| {
                changed.contains(index) || region.pending.summary().free > 0
            });
        }
    }

    fn allocate_within<E: From<InvalidRegion>>(
        &mut self,
        available: u64,
        want: Want,
        mut load: impl FnMut(u32) -> Result<Option<Vec<u8>>, E>,
    ) -> Result<Option<Run>, E> {
        assert!((1..=want.blocks.min(REGION_BLOCKS)).contains(&want.least), "{want:?}");
        let most = want.blocks.min(REGION_BLOCKS).min(available);
        if most < want.least {
            return Ok(None);
        }
        let goal = want.goal.filter(|goal| *goal < self.blocks).map(region_and_block);
        if let Some((region, block)) = goal
            && self.longest_in(region) >= want.least
            && let Some(rest) = self.load(region, &mut load)?.free.run_at(block)
            && u64::from(rest.length) >= want.least
        {
            return Ok(Some(self.take_first(region, rest, most)));
        }
        let Some(region) = self.choose_region(goal.map(|(region, _)| region), most, &want) else {
            return Ok(None);
        };
        let longest = self.longest_in(region);
        let free = &self.load(region, &mut load)?.free;
        let from = goal.filter(|goal| goal.0 == region).map_or(0, |(_, block)| block);
        let span = free.find_first(most.min(longest), from).expect("a run as long as the longest");
        self.assign_region(region, &want);
        Ok(Some(self.take_first(region, span, most)))
    }

    /// The region to allocate `most` blocks in, or as many as there are.
    fn choose_region(&self, goal: Option<u32>, most: u64, want: &Want) -> Option<u32> {
        let own = self.caller_regions[want.caller % CALLER_SLOTS];
        // Near the goal is good, but not in the way of somebody else's file.
        let goal =
            goal.filter(|goal| own == Some(*goal) || !self.caller_regions.contains(&Some(*goal)));
        let first = goal.into_iter().chain(own).chain([self.longest.largest()]);
        let regions = first.chain(self.caller_regions.into_iter().flatten());
        let enough = regions.clone().find(|region| self.longest_in(*region) >= most);
        // From behind, since of several that are the longest the last is answered.
        let longest = || regions.rev().max_by_key(|region| self.longest_in(*region));
        enough.or_else(longest).filter(|region| self.longest_in(*region) >= want.least)
    }

    /// Makes a region the caller's own, unless it is somebody's already or was chosen for its goal.
    fn assign_region(&mut self, region: u32, want: &Want) {
        let chosen_for_goal =
            want.goal.is_some_and(|goal| goal / REGION_BLOCKS == u64::from(region));
        if chosen_for_goal || self.caller_regions.contains(&Some(region)) {
            return;
        }
        let left = self.caller_regions[want.caller % CALLER_SLOTS].replace(region);
        self.longest.set(region, 0);
        if let Some(left) = left {
            self.longest.set(left, self.summaries[left as usize].longest);
        }
    }

    /// Takes at most `most` blocks from the beginning of a free span.
    fn take_first(&mut self, region: u32, span: Span, most: u64) -> Run {
        let span = Span { length: most.min(u64::from(span.length)) as u16, ..span };
        self.take(region, span);
        let start = u64::from(region) * REGION_BLOCKS + u64::from(span.start);
        Run { start, length: u64::from(span.length) }
    }

    fn take(&mut self, index: u32, span: Span) {
        self.region(index).free.remove(span);
        self.free -= u64::from(span.length);
        self.changed.insert(index);
        self.update_summary(index);
    }

    fn update_summary(&mut self, index: u32) {
        let summary = self.region(index).free.summary();
        self.summaries[index as usize] = summary;
        if !self.caller_regions.contains(&Some(index)) {
            self.longest.set(index, summary.longest);
        }
    }

    fn longest_in(&self, region: u32) -> u64 {
        u64::from(self.summaries[region as usize].longest)
    }

    fn region(&mut self, index: u32) -> &mut Region {
        self.loaded.get_mut(&index).expect("a region that is used or pending is loaded")
    }

    fn load<E: From<InvalidRegion>>(
        &mut self,
        index: u32,
        load: &mut impl FnMut(u32) -> Result<Option<Vec<u8>>, E>,
    ) -> Result<&mut Region, E> {
        if !self.loaded.contains_key(&index) {
            let length = length_of(index, self.blocks);
            let free = match load(index)? {
                Some(record) => SpanSet::parse(&record, length)?,
                None => SpanSet::full(length),
            };
            if free.summary() != self.summaries[index as usize] {
                return Err(InvalidRegion::Summary.into());
            }
            self.loaded.insert(index, Region { free, pending: SpanSet::default() });
        }
        Ok(self.region(index))
    }

    /// A run by regions; `None` if it does not lie on the device or has no blocks.
    fn spans_by_region(
        &self,
        run: Run,
    ) -> Option<impl Iterator<Item = (u32, Span)> + Clone + use<>> {
        let end = run.start.checked_add(run.length)?;
        let lies_here = run.length > 0 && end <= self.blocks;
        let mut start = run.start;
        lies_here.then(|| {
            std::iter::from_fn(move || {
                let (region, block) = region_and_block(start);
                let length = (REGION_BLOCKS - u64::from(block)).min(end - start);
                start += length;
                (length > 0).then(|| (region, Span::new(u64::from(block), length)))
            })
        })
    }
}

/// The region of a block, and which one it is there.
fn region_and_block(block: u64) -> (u32, u16) {
    ((block / REGION_BLOCKS) as u32, (block % REGION_BLOCKS) as u16)
}

fn region_count(device_blocks: u64) -> u32 {
    device_blocks.div_ceil(REGION_BLOCKS) as u32
}

/// The blocks of a region; the device's last may be short, and behind it there are none.
pub(crate) fn length_of(region: u32, device_blocks: u64) -> u64 {
    device_blocks.saturating_sub(u64::from(region) * REGION_BLOCKS).min(REGION_BLOCKS)
}
