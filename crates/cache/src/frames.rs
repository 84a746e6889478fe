//! The frames, in chunks that get memory when it is needed: which of them are free.

use std::sync::Arc;

use uringfs_buffer::{Hold, Slab};

use crate::folio::{FOLIO, Folio};
use uringfs_sync::Mutex;
use uringfs_sync::atomic::{AtomicU32, Ordering};

/// Chunks at most: each is registered with each ring, whose table has a bound.
const MAX_CHUNKS: u64 = 64;
/// Frames of a chunk, where there may be as many: two megabytes, one huge page.
const HUGE_CHUNK: u64 = (2 << 20) / FOLIO;
/// Frames of the only chunk of a cache that has room for fewer: a word of bits; loom knows them one by one.
const MIN_CHUNK: u64 = if cfg!(loom) { 2 } else { 64 };

/// All frames there may be.
pub(crate) struct Frames {
    slab: Arc<Slab<Folio>>,
    /// Frames in a chunk: a power of two.
    per_chunk: u32,
    free: Mutex<Free>,
    /// Behind all frames that have ever had memory.
    reached: AtomicU32,
}

/// Frames that are vacant, in chunks that have memory.
struct Free {
    chunks: Box<[Vacant]>,
    /// Where the next are looked for: so that those in a row stay together.
    at: u32,
    count: u32,
    /// Frames of chunks with memory.
    mapped: u32,
}

/// The vacant frames of a chunk, a bit each; none while it has no memory.
#[derive(Clone, Default)]
struct Vacant {
    bits: Vec<u64>,
    count: u32,
    /// When all are.
    all: u32,
}

impl Frames {
    /// `bound` folios at most.
    pub(crate) fn new(bound: u32) -> Frames {
        let per_chunk = u64::from(bound).div_ceil(MAX_CHUNKS).max(HUGE_CHUNK).next_power_of_two();
        let per_chunk = per_chunk.min(u64::from(bound).next_power_of_two().max(MIN_CHUNK)) as u32;
        let slab = Arc::new(Slab::new(bound, FOLIO as usize, per_chunk));
        let chunks = vec![Vacant::default(); bound.div_ceil(per_chunk) as usize].into_boxed_slice();
        let free = Mutex::new(Free { chunks, at: 0, count: 0, mapped: 0 });
        Frames { slab, per_chunk, free, reached: AtomicU32::new(0) }
    }

    /// How many there may be.
    pub(crate) fn bound(&self) -> u32 {
        self.slab.count()
    }

    /// Behind all that have ever had memory.
    pub(crate) fn reached(&self) -> u32 {
        self.reached.load(Ordering::Acquire)
    }

    /// Frames that have memory.
    pub(crate) fn mapped(&self) -> u32 {
        self.free.lock().mapped
    }

    /// Frames that are taken.
    pub(crate) fn taken(&self) -> u32 {
        let free = self.free.lock();
        free.mapped - free.count
    }

    #[inline(always)]
    pub(crate) fn slab(&self) -> &Arc<Slab<Folio>> {
        &self.slab
    }

    /// One frame, if one is free or new memory gives one.
    pub(crate) fn take_one(&self) -> Option<Hold<Folio>> {
        let free = &mut *self.free.lock();
        if free.count == 0 && !self.map_another(free) {
            return None;
        }
        let (first, length) = free.row(self.per_chunk, 1)?;
        let hold = self.slab.occupy(first, length);
        Some(hold.expect("what is free is vacant and has memory"))
    }

    /// Up to `count` frames, in as few rows as there are; as many as are free, or as new memory gives.
    pub(crate) fn take(&self, count: u32) -> Vec<Hold<Folio>> {
        let mut rows = Vec::new();
        let mut wanted = count;
        let free = &mut *self.free.lock();
        while wanted > 0 && (free.count > 0 || self.map_another(free)) {
            let Some((first, length)) = free.row(self.per_chunk, wanted) else { break };
            let hold = self.slab.occupy(first, length);
            rows.push(hold.expect("what is free is vacant and has memory"));
            wanted -= length;
        }
        rows
    }

    /// Frames nobody has any more. Of the chunk that is vacant with them the system gets its memory back, if as many
    /// are vacant elsewhere: so that what comes and goes does not map and unmap.
    pub(crate) fn give_back(&self, hold: Hold<Folio>) {
        let (first, count) = (hold.first(), hold.count());
        let free = &mut *self.free.lock();
        hold.vacate();
        let at = (first / self.per_chunk) as usize;
        let vacant = &mut free.chunks[at];
        for frame in first % self.per_chunk..first % self.per_chunk + count {
            vacant.bits[frame as usize / 64] |= 1 << (frame % 64);
        }
        vacant.count += count;
        free.count += count;
        let Vacant { count, all, .. } = free.chunks[at];
        if count == all && free.count - all >= self.per_chunk {
            self.unmap(free, at);
        }
    }

    /// Gives a chunk memory, if there may be more.
    fn map_another(&self, free: &mut Free) -> bool {
        if free.mapped == self.bound() {
            return false;
        }
        let Some(at) = free.chunks.iter().position(|chunk| chunk.all == 0) else { return false };
        if self.slab.map_memory(at as u32).is_err() {
            return false;
        }
        let frames = self.slab.frames_of(at as u32);
        let all = frames.len() as u32;
        let word = |word: u32| match all.saturating_sub(word * 64) {
            0 => 0,
            bits @ 1..64 => (1 << bits) - 1,
            _ => u64::MAX,
        };
        let bits = (0..all.div_ceil(64)).map(word).collect();
        free.chunks[at] = Vacant { bits, count: all, all };
        (free.count, free.mapped) = (free.count + all, free.mapped + all);
        free.at = frames.start;
        self.reached.fetch_max(frames.end, Ordering::AcqRel);
        true
    }

    /// Gives back to the system what chunks have that are vacant as a whole.
    pub(crate) fn unmap_vacant(&self) {
        let free = &mut *self.free.lock();
        for at in 0..free.chunks.len() {
            let Vacant { count, all, .. } = free.chunks[at];
            if all > 0 && count == all {
                self.unmap(free, at);
            }
        }
    }

    /// Gives back what a chunk has whose frames are vacant.
    fn unmap(&self, free: &mut Free, at: usize) {
        if self.slab.unmap_memory(at as u32) {
            let Vacant { all, .. } = std::mem::take(&mut free.chunks[at]);
            (free.count, free.mapped) = (free.count - all, free.mapped - all);
        }
    }
}

impl Free {
    /// Vacant frames in a row, up to `most`, from where the last ones were on: the first, and how many.
    fn row(&mut self, per_chunk: u32, most: u32) -> Option<(u32, u32)> {
        let places = self.chunks.len() as u32 * per_chunk;
        let mut at = self.at % places;
        // One word may be looked at twice: at the beginning, and again at the end.
        for _ in 0..places / per_chunk.min(64) + 2 {
            let (chunk, frame) = ((at / per_chunk) as usize, at % per_chunk);
            let Vacant { bits, count, .. } = &mut self.chunks[chunk];
            if *count == 0 {
                at = ((chunk as u32 + 1) * per_chunk) % places;
                continue;
            }
            let word = bits.get(frame as usize / 64).map_or(0, |word| word >> (frame % 64));
            if word == 0 {
                at = (at / 64 * 64 + 64) % places;
                continue;
            }
            let first = frame + word.trailing_zeros();
            let mut end = first;
            let is_free = |bits: &[u64], frame: u32| {
                bits.get(frame as usize / 64).is_some_and(|word| word >> (frame % 64) & 1 == 1)
            };
            while end < per_chunk && end - first < most && is_free(bits, end) {
                bits[end as usize / 64] &= !(1 << (end % 64));
                end += 1;
            }
            let length = end - first;
            *count -= length;
            self.count -= length;
            let first = chunk as u32 * per_chunk + first;
            self.at = first + length;
            return Some((first, length));
        }
        None
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn lengths(rows: &[Hold<Folio>]) -> Vec<u32> {
        rows.iter().map(Hold::count).collect()
    }

    #[test]
    fn frames_come_in_rows_and_no_more_than_the_bound() {
        let frames = Frames::new(1000);
        let first = frames.take(32);
        assert_eq!(lengths(&first), [32]);
        let rest = frames.take(2000);
        assert_eq!(lengths(&rest).iter().sum::<u32>(), 968);
        assert!(frames.take(1).is_empty());
        assert_eq!((frames.taken(), frames.mapped()), (1000, 1000));
        first.into_iter().for_each(|hold| frames.give_back(hold));
        assert_eq!(lengths(&frames.take(40)), [32]);
        rest.into_iter().for_each(|hold| frames.give_back(hold));
    }

    #[test]
    fn memory_is_taken_slab_by_slab_and_given_back() {
        let frames = Frames::new(4096);
        assert_eq!(frames.mapped(), 0);
        let rows = frames.take(1);
        assert_eq!(frames.mapped(), HUGE_CHUNK as u32);
        frames.unmap_vacant();
        assert_eq!(frames.mapped(), HUGE_CHUNK as u32);
        rows.into_iter().for_each(|hold| frames.give_back(hold));
        frames.unmap_vacant();
        assert_eq!((frames.mapped(), frames.taken()), (0, 0));
        assert_eq!(lengths(&frames.take(600)), [512, 88]);
    }

    #[test]
    fn of_chunks_that_are_vacant_one_keeps_its_memory() {
        let frames = Frames::new(4096);
        let (first, rest) = (frames.take(512), frames.take(1536));
        assert_eq!(frames.mapped(), 2048);
        first.into_iter().for_each(|hold| frames.give_back(hold));
        assert_eq!((frames.mapped(), frames.taken()), (2048, 1536));
        rest.into_iter().for_each(|hold| frames.give_back(hold));
        assert_eq!((frames.mapped(), frames.taken()), (512, 0));
        assert_eq!(frames.take(4096).iter().map(Hold::count).sum::<u32>(), 4096);
    }

    #[test]
    fn a_few_frames_are_enough() {
        for bound in [1, 3, 64, 65] {
            let frames = Frames::new(bound);
            assert_eq!(frames.take(100).iter().map(Hold::count).sum::<u32>(), bound);
        }
    }
}
