//! A resizable map in memory, one entry a block: what a volume does, without names, commits or privileges.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;
use uringfs_device::Errno;
use uringfs_file::{
    AllocOutcome, CommitFuture, File, HotExtentReader, Map, Mapping, MappingState,
    OutOfPlaceExtents, Refusal, ResizableMap, SpaceReservation, SyncScope, TruncateGeneration,
    WriteOrigin,
};

pub const BLOCK: u64 = 4096;

/// The order in which blocks of the device are allocated.
#[derive(Clone, Copy)]
pub enum Layout {
    /// Offset and address are equal.
    Identity,
    /// From the last of so many blocks to the first, so that no two blocks of a file are adjacent.
    Descending(u64),
}

/// Called in the middle of a look-up.
type Hook = Box<dyn FnOnce() + Send>;

#[derive(Clone)]
pub struct BlockMap {
    layout: Layout,
    state: Arc<Mutex<State>>,
    /// Its size is recorded before and after the map's own size changes.
    observed: Arc<Mutex<Option<File>>>,
    /// The look-ups before the one in which it is called, and the hook.
    hook: Arc<Mutex<Option<(u32, Hook)>>>,
    /// Called once after the size has changed.
    resized: Arc<Mutex<Option<Hook>>>,
}

#[derive(Default)]
struct State {
    size: u64,
    blocks: BTreeMap<u64, MappingState>,
    generation: TruncateGeneration,
    sizes_seen: Vec<u64>,
}

impl BlockMap {
    pub fn new(layout: Layout) -> BlockMap {
        BlockMap {
            layout,
            state: Arc::default(),
            observed: Arc::default(),
            hook: Arc::default(),
            resized: Arc::default(),
        }
    }

    /// Calls `hook` in the next `set_size`, after the size has changed.
    pub fn call_when_resized(&self, hook: impl FnOnce() + Send + 'static) {
        *self.resized.lock() = Some(Box::new(hook));
    }

    /// After so many look-ups, calls `hook` in the next one: the answer is from before the call.
    pub fn call_in_lookup(&self, lookups: u32, hook: impl FnOnce() + Send + 'static) {
        *self.hook.lock() = Some((lookups, Box::new(hook)));
    }

    /// Whether a hook has not been called yet.
    pub fn has_hook(&self) -> bool {
        self.hook.lock().is_some()
    }

    fn count_lookup(&self) {
        let due = {
            let hook = &mut *self.hook.lock();
            match hook {
                Some((0, _)) => hook.take(),
                Some((lookups, _)) => {
                    *lookups -= 1;
                    None
                }
                None => None,
            }
        };
        if let Some((_, hook)) = due {
            hook();
        }
    }

    /// Truncates to 0 without excluding writers.
    pub fn truncate(&self) {
        let state = &mut *self.state.lock();
        (state.size, state.generation) = (0, state.generation + 1);
        state.blocks.clear();
    }

    /// Records the sizes that `file` has while this map's size changes.
    pub fn observe(&self, file: &File) {
        *self.observed.lock() = Some(file.clone());
    }

    /// The recorded sizes. Ends the observation, in which the file and this map hold each other.
    pub fn sizes_seen(&self) -> Vec<u64> {
        self.observed.lock().take();
        self.state.lock().sizes_seen.clone()
    }

    fn record_size(&self) {
        if let Some(file) = &*self.observed.lock() {
            let size = file.len();
            self.state.lock().sizes_seen.push(size);
        }
    }
}

impl Map for BlockMap {
    fn map(&self, offset: u64) -> Mapping {
        let state = self.state.lock().blocks.get(&(offset / BLOCK)).copied();
        self.count_lookup();
        let into = offset % BLOCK;
        let state = match state.unwrap_or(MappingState::Hole) {
            MappingState::Hole => MappingState::Hole,
            MappingState::Unwritten(address) => MappingState::Unwritten(address + into),
            MappingState::Written(address) => MappingState::Written(address + into),
        };
        Mapping { length: BLOCK - into, state }
    }

    fn size(&self) -> u64 {
        self.state.lock().size
    }
}

impl ResizableMap for BlockMap {
    fn block_size(&self) -> u64 {
        BLOCK
    }

    fn allocated(&self) -> u64 {
        self.state.lock().blocks.len() as u64 * BLOCK
    }

    fn read_refusal(&self) -> Option<Errno> {
        None
    }

    fn write_refusal(&self) -> Option<Errno> {
        None
    }

    fn generation(&self) -> TruncateGeneration {
        self.state.lock().generation
    }

    fn generation_and_size(&self) -> (TruncateGeneration, u64) {
        let state = self.state.lock();
        (state.generation, state.size)
    }

    fn allocate(
        &self,
        range: Range<u64>,
        _: &mut SpaceReservation,
        _: TruncateGeneration,
    ) -> Result<AllocOutcome, Errno> {
        let blocks = &mut self.state.lock().blocks;
        for block in range.start / BLOCK..range.end.div_ceil(BLOCK) {
            if !blocks.contains_key(&block) {
                let on_device = match self.layout {
                    Layout::Identity => block,
                    Layout::Descending(count) => {
                        count.checked_sub(blocks.len() as u64 + 1).ok_or(Errno::NOSPC)?
                    }
                };
                blocks.insert(block, MappingState::Unwritten(on_device * BLOCK));
            }
        }
        Ok(AllocOutcome::Ready(()))
    }

    fn reserve_space(&self, _: u64) -> Result<AllocOutcome<SpaceReservation>, Errno> {
        Ok(AllocOutcome::Ready(SpaceReservation::default()))
    }

    fn allocate_out_of_place(
        &self,
        _: Range<u64>,
    ) -> Result<AllocOutcome<OutOfPlaceExtents>, Errno> {
        Err(Errno::OPNOTSUPP)
    }

    fn swap_extents(
        &self,
        _: Range<u64>,
        _: &mut Option<OutOfPlaceExtents>,
        _: TruncateGeneration,
    ) -> Result<AllocOutcome, Errno> {
        Err(Errno::OPNOTSUPP)
    }

    fn set_size(&self, size: u64) {
        self.record_size();
        {
            let state = &mut *self.state.lock();
            if size <= state.size {
                state.blocks.split_off(&size.div_ceil(BLOCK));
            }
            state.size = size;
        }
        self.record_size();
        let resized = self.resized.lock().take();
        resized.into_iter().for_each(|hook| hook());
    }

    fn punch_hole(&self, range: Range<u64>) {
        let gone = range.start / BLOCK..range.end / BLOCK;
        self.state.lock().blocks.retain(|block, _| !gone.contains(block));
    }

    fn mark_unwritten(&self, range: Range<u64>) {
        let blocks = &mut self.state.lock().blocks;
        for (_, place) in blocks.range_mut(range.start / BLOCK..range.end / BLOCK) {
            if let MappingState::Written(address) = *place {
                *place = MappingState::Unwritten(address);
            }
        }
    }

    fn mark_written(&self, range: Range<u64>, generation: TruncateGeneration, _: WriteOrigin) {
        let state = &mut *self.state.lock();
        if state.generation != generation {
            return;
        }
        for (_, place) in state.blocks.range_mut(range.start / BLOCK..range.end.div_ceil(BLOCK)) {
            if let MappingState::Unwritten(address) = *place {
                *place = MappingState::Written(address);
            }
        }
        state.size = state.size.max(range.end);
    }

    fn commit(&self, _: SyncScope) -> Option<CommitFuture> {
        None
    }

    fn note_flush_failure(&self) {}

    fn has_flush_failed(&self) -> bool {
        false
    }

    fn note_lost_writes(&self) {}

    fn take_lost_writes(&self) -> bool {
        false
    }

    fn retire_if_unlinked(&self) -> bool {
        false
    }

    fn hot_extent(&self) -> HotExtentReader {
        HotExtentReader::default()
    }

    fn fast_read_address(&self, offset: u64, length: u64) -> Result<u64, Refusal> {
        self.written_address(offset, length).ok_or(Refusal::Extent)
    }

    fn fast_write_address(&self, offset: u64, length: u64) -> Option<u64> {
        self.written_address(offset, length)
    }

    fn touch_atime(&self) {}

    fn prepare_write(&self) -> Option<CommitFuture> {
        None
    }
}
