//! [`Allocator`]: the free blocks of the device. Does no I/O.
//!
//! The device is divided into regions of 128 MiB. A summary of each region is always in memory. The
//! free blocks of a region are loaded when the first block is allocated or freed there. Each call
//! brings a closure for that, `load`. It returns the region's record as [`Allocator::take_changed`]
//! last returned it, or `None` if it never did. If the closure fails, the call changes nothing and
//! returns the error. So the error may mean "not now".
//!
//! A block is allocated, then freed (pending: the free is not committed yet, and reactors may still
//! read the block), then released (free). A record counts pending blocks as free, because after a
//! crash nothing reads them. So freeing blocks ([`Allocator::free`]) and removing their extents
//! must be one step under the volume's lock, so that a commit sees both or neither; likewise
//! allocating blocks and adding their extents.

mod free_map;
mod max_tree;
mod region;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::blocks::Run;
pub(crate) use free_map::{FreeBits, encode_free_bits, free_bits};
use max_tree::MaxTree;
pub use region::{InvalidRegion, REGION_BLOCKS, RegionSummary};
use region::{Span, SpanSet};

/// Callers with a region of their own. More callers share these.
const CALLER_SLOTS: usize = 64;

/// The free blocks of the device.
pub struct Allocator {
    blocks: u64,
    reserve: u64,
    free: u64,
    pending: u64,
    delayed: u64,
    /// The free blocks of each region in brief.
    summaries: Vec<RegionSummary>,
    /// The longest free run of each region. 0 for a region that belongs to a caller.
    longest: MaxTree,
    caller_regions: [Option<u32>; CALLER_SLOTS],
    loaded: BTreeMap<u32, Region>,
    changed: BTreeSet<u32>,
}

impl fmt::Debug for Allocator {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_struct("Allocator").field("free", &self.free).finish_non_exhaustive()
    }
}

struct Region {
    free: SpanSet,
    pending: SpanSet,
}

/// A request for adjacent blocks.
#[derive(Clone, Copy, Debug)]
pub struct AllocationRequest {
    /// Number of blocks wanted.
    pub blocks: u64,
    /// The fewest adjacent blocks to accept; at most [`REGION_BLOCKS`].
    pub min_blocks: u64,
    /// The preferred first block: mostly the one after the file's last extent.
    pub goal: Option<u64>,
    /// A small number that identifies the caller, such as one for each thread. Callers with
    /// different numbers get blocks in different regions while there are enough, so that their
    /// files do not interleave on the device.
    pub caller: usize,
}

/// Numbers of blocks of the device, by use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SpaceUsage {
    /// All blocks.
    pub total: u64,
    /// Free blocks, including the reserve.
    pub free: u64,
    /// Blocks that are freed and not released yet.
    pub pending: u64,
    /// Free blocks reserved for metadata.
    pub reserved: u64,
    /// Free blocks reserved for delayed allocation.
    pub delayed: u64,
}

impl SpaceUsage {
    /// Free blocks that files can use.
    pub fn available(&self) -> u64 {
        (self.free - self.reserved).saturating_sub(self.delayed)
    }
}

/// A changed region, for the catalog.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChangedRegion {
    /// Index of the region, counted from the beginning of the device.
    pub index: u32,
    /// The summary, for [`Allocator::open`].
    pub summary: RegionSummary,
    /// The record, for loading the region.
    pub record: Vec<u8>,
}

impl Allocator {
    /// The allocator of a device of `blocks` blocks. When only `reserve` free blocks are left, only
    /// metadata may use them. A region without a summary in `known` is free.
    ///
    /// # Errors
    /// When a summary is invalid.
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
            regions.map(|region| RegionSummary::free(region_length(region, blocks))).collect();
        for (region, summary) in known {
            let place = summaries.get_mut(region as usize).ok_or(InvalidRegion::Bounds)?;
            if !summary.is_possible(region_length(region, blocks)) {
                return Err(InvalidRegion::Summary);
            }
            *place = summary;
        }
        Ok(Allocator {
            blocks,
            reserve,
            free: summaries.iter().map(|summary| u64::from(summary.free)).sum(),
            pending: 0,
            delayed: 0,
            longest: MaxTree::new(summaries.iter().map(|summary| summary.longest)),
            summaries,
            caller_regions: [None; CALLER_SLOTS],
            loaded: BTreeMap::new(),
            changed: BTreeSet::new(),
        })
    }

    /// Allocates adjacent blocks: at the goal if it is free; otherwise in the goal's region, in the
    /// caller's own, or in one with a long free run. Returns at most the wanted number and at least
    /// `min_blocks`. Returns `None` if no region has `min_blocks` adjacent free blocks, or if only the
    /// reserve is left.
    ///
    /// # Errors
    /// Those of `load`; an invalid record.
    ///
    /// # Panics
    /// If `min_blocks` is 0, or more than what is wanted or than a region has.
    pub fn allocate<E: From<InvalidRegion>>(
        &mut self,
        want: AllocationRequest,
        load: impl FnMut(u32) -> Result<Option<Vec<u8>>, E>,
    ) -> Result<Option<Run>, E> {
        self.allocate_within(self.space().available(), want, load)
    }

    /// As [`Self::allocate`], from all free blocks that are not reserved for delayed allocation:
    /// for metadata.
    ///
    /// # Errors
    /// As [`Self::allocate`].
    ///
    /// # Panics
    /// As [`Self::allocate`].
    pub fn allocate_reserved<E: From<InvalidRegion>>(
        &mut self,
        want: AllocationRequest,
        load: impl FnMut(u32) -> Result<Option<Vec<u8>>, E>,
    ) -> Result<Option<Run>, E> {
        self.allocate_within(self.free.saturating_sub(self.delayed), want, load)
    }

    /// Reserves blocks for delayed allocation, out of those that are
    /// [`available`](SpaceUsage::available). [`Self::release_delayed`] ends the reservation.
    pub fn reserve_delayed(&mut self, blocks: u64) {
        self.delayed += blocks;
    }

    /// Ends the reservation of `blocks` blocks. [`Self::allocate_reserved`] can then allocate them
    /// at once. Does not panic, since destructors call this.
    pub fn release_delayed(&mut self, blocks: u64) {
        self.delayed = self.delayed.saturating_sub(blocks);
    }

    /// Allocates exactly these blocks, from the reserve if needed.
    ///
    /// # Errors
    /// When one of them is not free; then none is allocated. Those of `load`; an invalid record.
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

    /// Allocates those of these blocks that are free.
    ///
    /// # Errors
    /// When a block is past the end of the device. Those of `load`; an invalid record.
    pub fn claim_free<E: From<InvalidRegion>>(
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

    /// Frees blocks. They are pending until [`Self::release`].
    ///
    /// # Errors
    /// When one of them is not allocated, which happens only if the device's metadata are wrong;
    /// then none is freed. Those of `load`; an invalid record.
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

    /// Loads the regions of these blocks, so that freeing them loads nothing more.
    ///
    /// # Errors
    /// Those of `load`; an invalid record; when a block is past the end of the device.
    pub fn load_regions<E: From<InvalidRegion>>(
        &mut self,
        run: Run,
        mut load: impl FnMut(u32) -> Result<Option<Vec<u8>>, E>,
    ) -> Result<(), E> {
        let mut spans = self.spans_by_region(run).ok_or(InvalidRegion::NotAllocated)?;
        spans.try_for_each(|(region, _)| self.load(region, &mut load).map(drop))
    }

    /// Makes pending blocks free. Call it when the commit that frees them is durable and no reactor
    /// reads them any more.
    ///
    /// # Panics
    /// If one of them is not pending.
    pub fn release(&mut self, run: Run) {
        let spans = self.spans_by_region(run).expect("released blocks are on the device");
        for (index, span) in spans {
            let region = self.region(index);
            region.pending.remove(span);
            region.free.insert(span);
            self.pending -= u64::from(span.length);
            self.free += u64::from(span.length);
            self.update_summary(index);
        }
    }

    /// Makes pending blocks allocated again.
    ///
    /// # Panics
    /// If one of them is not pending.
    pub fn cancel_free(&mut self, run: Run) {
        let spans = self.spans_by_region(run).expect("freed blocks are on the device");
        for (index, span) in spans {
            self.region(index).pending.remove(span);
            self.pending -= u64::from(span.length);
            self.changed.insert(index);
        }
    }

    /// Loads the last region if it is incomplete: [`Self::grow`] needs it.
    ///
    /// # Errors
    /// Those of `load`; an invalid record.
    pub fn load_incomplete_region<E: From<InvalidRegion>>(
        &mut self,
        mut load: impl FnMut(u32) -> Result<Option<Vec<u8>>, E>,
    ) -> Result<(), E> {
        let (last, _) = region_and_block(self.blocks - 1);
        match region_length(last, self.blocks) < region_length(last, u64::MAX) {
            true => self.load(last, &mut load).map(drop),
            false => Ok(()),
        }
    }

    /// Extends the device to `blocks` blocks. The new blocks are free.
    ///
    /// Records taken from now on are valid for this size only. Commit the size together with them.
    /// Open the allocator with the committed size, and grow it again to the size of the device.
    ///
    /// # Errors
    /// Those of `load`; an invalid record.
    ///
    /// # Panics
    /// If the device has more blocks already.
    pub fn grow<E: From<InvalidRegion>>(
        &mut self,
        blocks: u64,
        mut load: impl FnMut(u32) -> Result<Option<Vec<u8>>, E>,
    ) -> Result<(), E> {
        assert!(blocks >= self.blocks, "a device of {} blocks grows to {blocks}", self.blocks);
        let (last, _) = region_and_block(self.blocks - 1);
        let (old, new) = (region_length(last, self.blocks), region_length(last, blocks));
        if old < new {
            self.load(last, &mut load)?.free.insert(Span::new(old, new - old));
            self.changed.insert(last);
            self.summaries[last as usize] = self.region(last).free.summary();
        }
        let added = last + 1..region_count(blocks);
        self.summaries
            .extend(added.map(|region| RegionSummary::free(region_length(region, blocks))));
        self.free += blocks - self.blocks;
        self.blocks = blocks;
        self.longest = MaxTree::new(self.summaries.iter().map(|summary| summary.longest));
        self.caller_regions.into_iter().flatten().for_each(|region| self.longest.set(region, 0));
        Ok(())
    }

    /// The numbers of blocks, by use.
    pub fn space(&self) -> SpaceUsage {
        let reserved = self.reserve.min(self.free);
        let Allocator { blocks: total, free, pending, delayed, .. } = *self;
        SpaceUsage { total, free, pending, reserved, delayed }
    }

    /// Takes the records of all regions that changed since the last call.
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

    /// Unloads regions without changes and pending blocks, if more than `max_loaded` are loaded. A loaded
    /// region takes 4 bytes for each free run: mostly a few runs, at most 64 KiB.
    pub fn unload(&mut self, max_loaded: usize) {
        if self.loaded.len() > max_loaded {
            let changed = &self.changed;
            self.loaded.retain(|index, region| {
                changed.contains(index) || region.pending.summary().free > 0
            });
        }
    }

    fn allocate_within<E: From<InvalidRegion>>(
        &mut self,
        available: u64,
        want: AllocationRequest,
        mut load: impl FnMut(u32) -> Result<Option<Vec<u8>>, E>,
    ) -> Result<Option<Run>, E> {
        assert!((1..=want.blocks.min(REGION_BLOCKS)).contains(&want.min_blocks), "{want:?}");
        let max_blocks = want.blocks.min(REGION_BLOCKS).min(available);
        if max_blocks < want.min_blocks {
            return Ok(None);
        }
        let goal = want.goal.filter(|goal| *goal < self.blocks).map(region_and_block);
        if let Some((region, block)) = goal
            && self.longest_in(region) >= want.min_blocks
            && let Some(rest) = self.load(region, &mut load)?.free.run_at(block)
            && u64::from(rest.length) >= want.min_blocks
        {
            return Ok(Some(self.take_first(region, rest, max_blocks)));
        }
        let Some(region) = self.choose_region(goal.map(|(region, _)| region), max_blocks, &want)
        else {
            return Ok(None);
        };
        let longest = self.longest_in(region);
        let free = &self.load(region, &mut load)?.free;
        let from = goal.filter(|goal| goal.0 == region).map_or(0, |(_, block)| block);
        let span = free
            .find_first(max_blocks.min(longest), from)
            .expect("the region has a run of this length");
        self.assign_region(region, &want);
        Ok(Some(self.take_first(region, span, max_blocks)))
    }

    /// The region in which to allocate `max_blocks` blocks, or as many as there are.
    fn choose_region(
        &self,
        goal: Option<u32>,
        max_blocks: u64,
        want: &AllocationRequest,
    ) -> Option<u32> {
        let own = self.caller_regions[want.caller % CALLER_SLOTS];
        // Near the goal, unless the region belongs to another caller.
        let goal =
            goal.filter(|goal| own == Some(*goal) || !self.caller_regions.contains(&Some(*goal)));
        let first = goal.into_iter().chain(own).chain([self.longest.largest()]);
        let regions = first.chain(self.caller_regions.into_iter().flatten());
        let enough = regions.clone().find(|region| self.longest_in(*region) >= max_blocks);
        // Reversed, since `max_by_key` returns the last of equal elements.
        let longest = || regions.rev().max_by_key(|region| self.longest_in(*region));
        enough.or_else(longest).filter(|region| self.longest_in(*region) >= want.min_blocks)
    }

    /// Makes a region the caller's own, unless it belongs to a caller already or was chosen for the
    /// goal.
    fn assign_region(&mut self, region: u32, want: &AllocationRequest) {
        let is_goal_region =
            want.goal.is_some_and(|goal| goal / REGION_BLOCKS == u64::from(region));
        if is_goal_region || self.caller_regions.contains(&Some(region)) {
            return;
        }
        let left = self.caller_regions[want.caller % CALLER_SLOTS].replace(region);
        self.longest.set(region, 0);
        if let Some(left) = left {
            self.longest.set(left, self.summaries[left as usize].longest);
        }
    }

    /// Allocates at most `max_blocks` blocks from the beginning of a free span.
    fn take_first(&mut self, region: u32, span: Span, max_blocks: u64) -> Run {
        let span = Span { length: max_blocks.min(u64::from(span.length)) as u16, ..span };
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
        self.loaded.get_mut(&index).expect("a region with changes or pending blocks is loaded")
    }

    fn load<E: From<InvalidRegion>>(
        &mut self,
        index: u32,
        load: &mut impl FnMut(u32) -> Result<Option<Vec<u8>>, E>,
    ) -> Result<&mut Region, E> {
        if !self.loaded.contains_key(&index) {
            let length = region_length(index, self.blocks);
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

    /// Splits a run at the borders of regions. `None` if the run is empty or exceeds the device.
    fn spans_by_region(
        &self,
        run: Run,
    ) -> Option<impl Iterator<Item = (u32, Span)> + Clone + use<>> {
        let end = run.start.checked_add(run.length)?;
        let is_valid = run.length > 0 && end <= self.blocks;
        let mut start = run.start;
        is_valid.then(|| {
            std::iter::from_fn(move || {
                let (region, block) = region_and_block(start);
                let length = (REGION_BLOCKS - u64::from(block)).min(end - start);
                start += length;
                (length > 0).then(|| (region, Span::new(u64::from(block), length)))
            })
        })
    }
}

/// The region of a block, and the block's number in the region.
fn region_and_block(block: u64) -> (u32, u16) {
    ((block / REGION_BLOCKS) as u32, (block % REGION_BLOCKS) as u16)
}

fn region_count(device_blocks: u64) -> u32 {
    device_blocks.div_ceil(REGION_BLOCKS) as u32
}

/// Blocks of a region. The last region of a device may be short, and the ones after it have none.
pub(crate) fn region_length(region: u32, device_blocks: u64) -> u64 {
    device_blocks.saturating_sub(u64::from(region) * REGION_BLOCKS).min(REGION_BLOCKS)
}
