//! The frames and which of them are free, and the uses of their folios. Frames lie in chunks, which are mapped as they
//! are needed.

use std::sync::Arc;

use uringfs_buffer::{ExclusiveFrames, FrameState, Slab, Snapshot};

use crate::folio::{ACCESS_COUNT, DETACHED, DROPBEHIND, FOLIO, Folio, READAHEAD_MARKER};
use uringfs_sync::Mutex;
use uringfs_sync::atomic::{AtomicU32, Ordering};

/// Bound for chunks. Each chunk is registered with each ring, whose table is bounded.
const MAX_CHUNKS: u64 = 64;
/// Frames in a chunk if the cache is large enough: two megabytes, one huge page.
const HUGE_CHUNK: u64 = (2 << 20) / FOLIO;
/// Frames in the only chunk of a small cache: one word of bits. A smaller number under loom, which tracks each frame.
const MIN_CHUNK: u64 = if cfg!(loom) { 2 } else { 64 };

/// All frames of a cache.
pub(crate) struct Frames {
    slab: Arc<Slab<Folio>>,
    /// Frames in a chunk: a power of two.
    per_chunk: u32,
    free: Mutex<FreeFrames>,
    /// Frames that are not in use, mapped or not. Changed only under the lock of `free`.
    unused: AtomicU32,
    /// End of the frames that have ever had memory.
    high_water: AtomicU32,
}

/// The free frames of all mapped chunks.
struct FreeFrames {
    chunks: Box<[FreeMap]>,
    /// The frame at which the next search begins. Going on from there keeps runs together.
    cursor: u32,
    count: u32,
    /// Frames of mapped chunks, free or not.
    mapped: u32,
}

/// The free frames of a chunk, as a bitmap; empty while the chunk has no memory.
#[derive(Clone, Default)]
struct FreeMap {
    bits: Vec<u64>,
    count: u32,
    /// Frames in the chunk, or 0 while it has no memory.
    total: u32,
}

impl Frames {
    /// For at most `bound` folios.
    pub(crate) fn new(bound: u32) -> Frames {
        let per_chunk = u64::from(bound).div_ceil(MAX_CHUNKS).max(HUGE_CHUNK).next_power_of_two();
        let per_chunk = per_chunk.min(u64::from(bound).next_power_of_two().max(MIN_CHUNK)) as u32;
        let slab = Arc::new(Slab::new(bound, FOLIO as usize, per_chunk));
        let chunks =
            vec![FreeMap::default(); bound.div_ceil(per_chunk) as usize].into_boxed_slice();
        let free = Mutex::new(FreeFrames { chunks, cursor: 0, count: 0, mapped: 0 });
        let (unused, high_water) = (AtomicU32::new(bound), AtomicU32::new(0));
        Frames { slab, per_chunk, free, unused, high_water }
    }

    /// Upper bound for frames.
    pub(crate) fn bound(&self) -> u32 {
        self.slab.count()
    }

    /// End of the frames that have ever had memory.
    pub(crate) fn high_water(&self) -> u32 {
        self.high_water.load(Ordering::Acquire)
    }

    /// Frames of mapped chunks.
    pub(crate) fn mapped(&self) -> u32 {
        self.free.lock().mapped
    }

    /// Frames in use.
    pub(crate) fn allocated(&self) -> u32 {
        let free = self.free.lock();
        free.mapped - free.count
    }

    #[inline(always)]
    pub(crate) fn slab(&self) -> &Arc<Slab<Folio>> {
        &self.slab
    }

    /// One frame, if one is free or another chunk can be mapped.
    pub(crate) fn allocate_one(&self) -> Option<ExclusiveFrames<Folio>> {
        // Mostly a cache is full: that takes no lock.
        if self.unused.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let free = &mut *self.free.lock();
        if free.count == 0 && !self.map_chunk(free) {
            return None;
        }
        let (first, length) = free.take_run(self.per_chunk, 1)?;
        self.note_unused(free);
        let hold = self.slab.allocate(first, length);
        Some(hold.expect("a frame in the free map is free in the slab and has memory"))
    }

    /// Up to `count` frames, in as few runs as possible. The result is shorter when memory or the bound allows no more.
    pub(crate) fn allocate(&self, count: u32) -> Vec<ExclusiveFrames<Folio>> {
        let mut runs = Vec::new();
        let mut wanted = count;
        let free = &mut *self.free.lock();
        while wanted > 0 && (free.count > 0 || self.map_chunk(free)) {
            let Some((first, length)) = free.take_run(self.per_chunk, wanted) else { break };
            let hold = self.slab.allocate(first, length);
            runs.push(hold.expect("a frame in the free map is free in the slab and has memory"));
            wanted -= length;
        }
        self.note_unused(free);
        runs
    }

    fn note_unused(&self, free: &FreeFrames) {
        self.unused.store(self.bound() - (free.mapped - free.count), Ordering::Relaxed);
    }

    /// Frees frames. When their chunk is entirely free and another chunk's worth of frames is free elsewhere, unmaps
    /// the chunk. The reserve avoids mapping and unmapping the same chunk again and again.
    pub(crate) fn free(&self, hold: ExclusiveFrames<Folio>) {
        let (first, count) = (hold.first(), hold.count());
        let free = &mut *self.free.lock();
        hold.free();
        let chunk = (first / self.per_chunk) as usize;
        let map = &mut free.chunks[chunk];
        for frame in first % self.per_chunk..first % self.per_chunk + count {
            map.bits[frame as usize / 64] |= 1 << (frame % 64);
        }
        map.count += count;
        free.count += count;
        self.note_unused(free);
        let FreeMap { count, total, .. } = free.chunks[chunk];
        if count == total && free.count - total >= self.per_chunk {
            self.unmap_chunk(free, chunk);
        }
    }

    /// Releases a snapshot. The last share of a detached folio also frees its frame.
    #[inline]
    pub(crate) fn release(&self, snapshot: Snapshot) {
        let frame = snapshot.frame();
        if is_last_share(self.slab.release(snapshot)) {
            self.reclaim(frame);
        }
    }

    /// Frees the frame of a detached folio without shares.
    #[cold]
    #[inline(never)]
    pub(crate) fn reclaim(&self, frame: u32) {
        let is_detached = |flags| (flags & DETACHED != 0).then_some(flags);
        if let Some(hold) = self.slab.try_exclusive(frame, is_detached) {
            self.free(hold);
        }
    }

    /// Counts an access to a folio with these flags, and clears its dropbehind flag.
    pub(crate) fn touch(&self, frame: u32, flags: u32) {
        if let Some(next) = ACCESS_COUNT.into_iter().find(|access| flags & access == 0) {
            self.slab.set_flags(frame, next);
        }
        if self.slab.state(frame).flags() & DROPBEHIND != 0 {
            self.slab.clear_flags(frame, DROPBEHIND);
        }
    }

    /// Clears the readahead marker; true for the one caller that found it set.
    pub(crate) fn take_readahead_marker(&self, frame: u32) -> bool {
        self.slab.clear_flags(frame, READAHEAD_MARKER).flags() & READAHEAD_MARKER != 0
    }

    /// Maps another chunk; false when all are mapped or there is no memory.
    fn map_chunk(&self, free: &mut FreeFrames) -> bool {
        if free.mapped == self.bound() {
            return false;
        }
        let Some(chunk) = free.chunks.iter().position(|map| map.total == 0) else { return false };
        if self.slab.map_memory(chunk as u32).is_err() {
            return false;
        }
        let frames = self.slab.frames_of(chunk as u32);
        let total = frames.len() as u32;
        let word = |word: u32| match total.saturating_sub(word * 64) {
            0 => 0,
            bits @ 1..64 => (1 << bits) - 1,
            _ => u64::MAX,
        };
        let bits = (0..total.div_ceil(64)).map(word).collect();
        free.chunks[chunk] = FreeMap { bits, count: total, total };
        (free.count, free.mapped) = (free.count + total, free.mapped + total);
        free.cursor = frames.start;
        self.high_water.fetch_max(frames.end, Ordering::AcqRel);
        true
    }

    /// Unmaps all chunks that are entirely free.
    pub(crate) fn unmap_free_chunks(&self) {
        let free = &mut *self.free.lock();
        for chunk in 0..free.chunks.len() {
            let FreeMap { count, total, .. } = free.chunks[chunk];
            if total > 0 && count == total {
                self.unmap_chunk(free, chunk);
            }
        }
    }

    /// Unmaps a chunk that is entirely free.
    fn unmap_chunk(&self, free: &mut FreeFrames, chunk: usize) {
        if self.slab.unmap_memory(chunk as u32) {
            let FreeMap { total, .. } = std::mem::take(&mut free.chunks[chunk]);
            (free.count, free.mapped) = (free.count - total, free.mapped - total);
        }
    }
}

/// Whether the share that was released was the last one of a detached folio. `before` is the state before that.
#[inline(always)]
pub(crate) fn is_last_share(before: FrameState) -> bool {
    before.flags() & DETACHED != 0 && before.shares() == 1
}

impl FreeFrames {
    /// Takes the next run of up to `max` free frames, searching from the cursor: its first frame, and its length.
    fn take_run(&mut self, per_chunk: u32, max: u32) -> Option<(u32, u32)> {
        let frames = self.chunks.len() as u32 * per_chunk;
        let mut at = self.cursor % frames;
        // The first word may be visited again at the end.
        for _ in 0..frames / per_chunk.min(64) + 2 {
            let (chunk, frame) = ((at / per_chunk) as usize, at % per_chunk);
            let FreeMap { bits, count, .. } = &mut self.chunks[chunk];
            if *count == 0 {
                at = ((chunk as u32 + 1) * per_chunk) % frames;
                continue;
            }
            let word = bits.get(frame as usize / 64).map_or(0, |word| word >> (frame % 64));
            if word == 0 {
                at = (at / 64 * 64 + 64) % frames;
                continue;
            }
            let first = frame + word.trailing_zeros();
            let mut end = first;
            let is_free = |bits: &[u64], frame: u32| {
                bits.get(frame as usize / 64).is_some_and(|word| word >> (frame % 64) & 1 == 1)
            };
            while end < per_chunk && end - first < max && is_free(bits, end) {
                bits[end as usize / 64] &= !(1 << (end % 64));
                end += 1;
            }
            let length = end - first;
            *count -= length;
            self.count -= length;
            let first = chunk as u32 * per_chunk + first;
            self.cursor = first + length;
            return Some((first, length));
        }
        None
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn lengths(runs: &[ExclusiveFrames<Folio>]) -> Vec<u32> {
        runs.iter().map(ExclusiveFrames::count).collect()
    }

    #[test]
    fn frames_come_in_runs_up_to_the_bound() {
        let frames = Frames::new(1000);
        let first = frames.allocate(32);
        assert_eq!(lengths(&first), [32]);
        let rest = frames.allocate(2000);
        assert_eq!(lengths(&rest).iter().sum::<u32>(), 968);
        assert!(frames.allocate(1).is_empty());
        assert_eq!((frames.allocated(), frames.mapped()), (1000, 1000));
        first.into_iter().for_each(|hold| frames.free(hold));
        assert_eq!(lengths(&frames.allocate(40)), [32]);
        rest.into_iter().for_each(|hold| frames.free(hold));
    }

    #[test]
    fn chunks_are_mapped_and_unmapped_one_by_one() {
        let frames = Frames::new(4096);
        assert_eq!(frames.mapped(), 0);
        let runs = frames.allocate(1);
        assert_eq!(frames.mapped(), HUGE_CHUNK as u32);
        frames.unmap_free_chunks();
        assert_eq!(frames.mapped(), HUGE_CHUNK as u32);
        runs.into_iter().for_each(|hold| frames.free(hold));
        frames.unmap_free_chunks();
        assert_eq!((frames.mapped(), frames.allocated()), (0, 0));
        assert_eq!(lengths(&frames.allocate(600)), [512, 88]);
    }

    #[test]
    fn one_free_chunk_stays_mapped() {
        let frames = Frames::new(4096);
        let (first, rest) = (frames.allocate(512), frames.allocate(1536));
        assert_eq!(frames.mapped(), 2048);
        first.into_iter().for_each(|hold| frames.free(hold));
        assert_eq!((frames.mapped(), frames.allocated()), (2048, 1536));
        rest.into_iter().for_each(|hold| frames.free(hold));
        assert_eq!((frames.mapped(), frames.allocated()), (512, 0));
        assert_eq!(frames.allocate(4096).iter().map(ExclusiveFrames::count).sum::<u32>(), 4096);
    }

    #[test]
    fn one_frame_is_allocated_while_one_is_unused() {
        let frames = Frames::new(65);
        let mut taken: Vec<_> = std::iter::from_fn(|| frames.allocate_one()).collect();
        assert_eq!(taken.len(), 65);
        frames.free(taken.remove(7));
        let again = frames.allocate_one().expect("one was freed");
        assert!(again.first() == 7 && frames.allocate_one().is_none());
        frames.free(again);
        taken.into_iter().for_each(|hold| frames.free(hold));
        frames.unmap_free_chunks();
        assert_eq!(frames.allocate_one().map(|hold| frames.free(hold)), Some(()));
    }

    #[test]
    fn a_cache_may_have_only_a_few_frames() {
        for bound in [1, 3, 64, 65] {
            let frames = Frames::new(bound);
            assert_eq!(frames.allocate(100).iter().map(ExclusiveFrames::count).sum::<u32>(), bound);
        }
    }
}
