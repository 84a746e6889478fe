//! The frames, in slabs that get memory when it is needed: which of them are free.

use std::sync::{Arc, OnceLock};

use uringfs_buffer::{Hold, Slab};

use crate::folio::{FOLIO, Folio};
use crate::sync::Mutex;

/// Slabs at most: each is registered with each ring, whose table has a bound.
const MOST_SLABS: u64 = 64;
/// Frames of a slab, where there may be as many: two megabytes, one huge page.
const FEWEST: u64 = (2 << 20) / FOLIO;
/// Frames of the only slab of a cache that has room for fewer: a word of bits; loom knows them one by one.
const LEAST: u64 = if cfg!(loom) { 2 } else { 64 };

/// All frames there may be, by places: one number for slab and frame.
pub(crate) struct Memory {
    slabs: Box<[OnceLock<Arc<Slab<Folio>>>]>,
    per_slab: u32,
    /// From a place to its slab.
    shift: u32,
    free: Mutex<Free>,
    bound: u32,
}

/// Frames that are vacant, in slabs that have memory.
struct Free {
    slabs: Box<[Vacant]>,
    /// Where the next are looked for: so that those in a row stay together.
    at: usize,
    count: u32,
    /// Frames of slabs with memory, that the bound allows.
    mapped: u32,
}

/// The vacant frames of a slab, a bit each; none while it has no memory.
#[derive(Clone, Default)]
struct Vacant {
    bits: Vec<u64>,
    count: u32,
    /// When all are.
    all: u32,
}

impl Memory {
    /// `bound` folios at most.
    pub(crate) fn new(bound: u32) -> Memory {
        let per_slab = u64::from(bound).div_ceil(MOST_SLABS).max(FEWEST).next_power_of_two();
        let per_slab = per_slab.min(u64::from(bound).next_power_of_two().max(LEAST)) as u32;
        let count = bound.div_ceil(per_slab) as usize;
        let slabs: Box<[_]> = std::iter::repeat_with(OnceLock::new).take(count).collect();
        let vacant = vec![Vacant::default(); count].into_boxed_slice();
        let free = Mutex::new(Free { slabs: vacant, at: 0, count: 0, mapped: 0 });
        Memory { slabs, per_slab, shift: per_slab.trailing_zeros(), free, bound }
    }

    /// How many there may be.
    pub(crate) fn bound(&self) -> u32 {
        self.bound
    }

    /// Behind all places.
    pub(crate) fn places(&self) -> u32 {
        (self.slabs.len() as u32) << self.shift
    }

    /// Behind all places that have ever had memory.
    pub(crate) fn reached(&self) -> u32 {
        let has_been = |slab: &OnceLock<_>| slab.get().is_some();
        let last = self.slabs.iter().rposition(has_been).map_or(0, |slab| slab as u32 + 1);
        last << self.shift
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
    pub(crate) fn frame(&self, place: u32) -> (&Arc<Slab<Folio>>, u32) {
        let frame = place & ((1 << self.shift) - 1);
        (self.slab((place >> self.shift) as usize), frame)
    }

    #[inline(always)]
    fn slab(&self, at: usize) -> &Arc<Slab<Folio>> {
        self.slabs[at].get_or_init(|| Arc::new(Slab::new(self.per_slab, FOLIO as usize)))
    }

    /// The same, if any folio was ever in its slab.
    pub(crate) fn frame_if_any(&self, place: u32) -> Option<(&Arc<Slab<Folio>>, u32)> {
        self.slabs[(place >> self.shift) as usize].get().map(|_| self.frame(place))
    }

    pub(crate) fn place_of(&self, hold: &Hold<Folio>) -> u32 {
        let is_it = |slab: &OnceLock<Arc<Slab<Folio>>>| {
            slab.get().is_some_and(|slab| Arc::ptr_eq(slab, hold.slab()))
        };
        let slab = self.slabs.iter().position(is_it).expect("one of these slabs");
        ((slab as u32) << self.shift) + hold.first()
    }

    /// Up to `count` frames, in as few rows as there are; as many as are free, or as new memory gives.
    pub(crate) fn take(&self, count: u32) -> Vec<Hold<Folio>> {
        let mut rows = Vec::new();
        let mut wanted = count;
        let free = &mut *self.free.lock();
        while wanted > 0 {
            if free.count == 0 && !self.map_another(free) {
                break;
            }
            let Some((slab, first, length)) = free.row(wanted) else { break };
            let hold = self.slab(slab).occupy(first, length);
            rows.push(hold.expect("what is free is vacant and has memory"));
            wanted -= length;
        }
        rows
    }

    /// Frames nobody has any more.
    pub(crate) fn give_back(&self, hold: Hold<Folio>) {
        let place = self.place_of(&hold);
        let (slab, first, count) = ((place >> self.shift) as usize, hold.first(), hold.count());
        let free = &mut *self.free.lock();
        hold.vacate();
        let vacant = &mut free.slabs[slab];
        for frame in first..first + count {
            vacant.bits[frame as usize / 64] |= 1 << (frame % 64);
        }
        vacant.count += count;
        free.count += count;
    }

    /// Gives a slab memory, if there may be more.
    fn map_another(&self, free: &mut Free) -> bool {
        let Some(at) = free.slabs.iter().position(|slab| slab.all == 0) else { return false };
        let left = self.bound - free.mapped;
        if left == 0 || self.slab(at).map_memory().is_err() {
            return false;
        }
        // The last one may have more frames than there may be.
        let count = self.per_slab.min(left);
        let word = |word: u32| match count.saturating_sub(word * 64) {
            0 => 0,
            bits @ 1..64 => (1 << bits) - 1,
            _ => u64::MAX,
        };
        let bits = (0..self.per_slab.div_ceil(64)).map(word).collect();
        free.slabs[at] = Vacant { bits, count, all: count };
        (free.count, free.mapped) = (free.count + count, free.mapped + count);
        free.at = at << self.shift;
        true
    }

    /// Gives back to the system what slabs have that are vacant as a whole; answers how many bytes that were.
    pub(crate) fn unmap_vacant(&self) -> u64 {
        let free = &mut *self.free.lock();
        let mut bytes = 0;
        for at in 0..self.slabs.len() {
            let Vacant { count, all, .. } = free.slabs[at];
            if all > 0 && count == all && self.slab(at).unmap_memory() {
                free.slabs[at] = Vacant::default();
                (free.count, free.mapped) = (free.count - all, free.mapped - all);
                bytes += u64::from(all) * FOLIO;
            }
        }
        bytes
    }
}

impl Free {
    /// Vacant frames in a row, up to `most`, from where the last ones were on: their slab, the first, and how
    /// many.
    fn row(&mut self, most: u32) -> Option<(usize, u32, u32)> {
        let words = self.slabs.iter().map(|slab| slab.bits.len()).max()?;
        let per_slab = words * 64;
        let mut at = self.at;
        // One word may be looked at twice: at the beginning, and again at the end.
        for _ in 0..self.slabs.len() * words + 2 {
            let (slab, frame) = (at / per_slab % self.slabs.len(), at % per_slab);
            if self.slabs[slab].count == 0 {
                at = (slab + 1) * per_slab;
                continue;
            }
            let bits = &mut self.slabs[slab].bits;
            let found = bits[frame / 64] >> (frame % 64);
            if found == 0 {
                at = at / 64 * 64 + 64;
                continue;
            }
            let first = frame + found.trailing_zeros() as usize;
            let mut end = first;
            while end < per_slab
                && end - first < most as usize
                && bits[end / 64] >> (end % 64) & 1 == 1
            {
                bits[end / 64] &= !(1 << (end % 64));
                end += 1;
            }
            let length = (end - first) as u32;
            self.slabs[slab].count -= length;
            self.count -= length;
            self.at = slab * per_slab + end;
            return Some((slab, first as u32, length));
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
        let memory = Memory::new(1000);
        let first = memory.take(32);
        assert_eq!(lengths(&first), [32]);
        let rest = memory.take(2000);
        assert_eq!(lengths(&rest).iter().sum::<u32>(), 968);
        assert!(memory.take(1).is_empty());
        assert_eq!((memory.taken(), memory.mapped()), (1000, 1000));
        first.into_iter().for_each(|hold| memory.give_back(hold));
        assert_eq!(lengths(&memory.take(40)), [32]);
        rest.into_iter().for_each(|hold| memory.give_back(hold));
    }

    #[test]
    fn memory_is_taken_slab_by_slab_and_given_back() {
        let memory = Memory::new(4096);
        assert_eq!(memory.mapped(), 0);
        let rows = memory.take(1);
        assert_eq!(memory.mapped(), FEWEST as u32);
        assert_eq!(memory.unmap_vacant(), 0);
        rows.into_iter().for_each(|hold| memory.give_back(hold));
        assert_eq!(memory.unmap_vacant(), 2 << 20);
        assert_eq!((memory.mapped(), memory.taken()), (0, 0));
        assert_eq!(lengths(&memory.take(600)), [512, 88]);
    }

    #[test]
    fn a_few_frames_are_enough() {
        for bound in [1, 3, 64, 65] {
            let memory = Memory::new(bound);
            assert_eq!(memory.take(100).iter().map(Hold::count).sum::<u32>(), bound);
        }
    }
}
