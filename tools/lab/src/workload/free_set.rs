//! The free numbers below a bound, one bit each, and a 63rd of that to find the next free one. Jobs with blocks of
//! several sizes have a set of each file's blocks: fio's random map.

use crate::random::Random;

/// The numbers below a bound that are free.
#[derive(Debug, Clone)]
pub(super) struct FreeSet {
    bound: u64,
    free: u64,
    /// A bit of the first level is a number, set if it is taken. A bit of each further one is a word of the level before, set if
    /// that is full. The last level is one word.
    levels: Vec<Box<[u64]>>,
}

impl FreeSet {
    /// The greatest bound: 4 GiB of memory.
    pub(super) const MAX_BOUND: u64 = 1 << 35;

    /// All numbers below `bound` are free.
    ///
    /// # Panics
    /// If `bound` is 0 or above [`Self::MAX_BOUND`].
    pub(super) fn new(bound: u64) -> Self {
        assert!((1..=Self::MAX_BOUND).contains(&bound), "{bound} is 0 or above 2^35");
        let mut levels = Vec::new();
        let mut bits = bound;
        while levels.is_empty() || bits > 1 {
            bits = bits.div_ceil(64);
            levels.push(vec![0; bits as usize].into());
        }
        let mut set = Self { bound, free: bound, levels };
        set.close_ends();
        set
    }

    /// Frees all numbers.
    pub(super) fn clear(&mut self) {
        self.levels.iter_mut().for_each(|words| words.fill(0));
        self.close_ends();
        self.free = self.bound;
    }

    /// The bits behind the last one of each level are never free.
    fn close_ends(&mut self) {
        let mut bits = self.bound;
        for words in &mut self.levels {
            if !bits.is_multiple_of(64) {
                words[(bits / 64) as usize] = u64::MAX << (bits % 64);
            }
            bits = bits.div_ceil(64);
        }
    }

    /// A free number. As with fio, any number is drawn, and the next free one is the answer if it is taken; so numbers after taken ones
    /// are more likely. If all are taken, all are free again.
    pub(super) fn draw(&mut self, random: &mut Random) -> u64 {
        if self.free == 0 {
            self.clear();
        }
        let drawn = random.below(self.bound);
        self.next_free(drawn).expect("a number is free")
    }

    /// The distance from a number to the bound.
    pub(super) fn room(&self, number: u64) -> u64 {
        self.bound - number
    }

    /// The first free number from this one on, and from 0 on after the bound.
    pub(super) fn next_free(&self, from: u64) -> Option<u64> {
        self.first_free(from).or_else(|| self.first_free(0))
    }

    /// The first free number from this one on.
    fn first_free(&self, from: u64) -> Option<u64> {
        let mut at = from;
        for (level, words) in self.levels.iter().enumerate() {
            let word = at / 64;
            let free = words.get(word as usize).map_or(0, |bits| !bits & (u64::MAX << (at % 64)));
            if free != 0 {
                // Down again, to the first free bit of each word.
                let below = self.levels[..level].iter().rev();
                let first = |bits: u64| u64::from(bits.trailing_zeros());
                let found = word * 64 + first(free);
                return Some(below.fold(found, |at, words| at * 64 + first(!words[at as usize])));
            }
            at = word + 1;
        }
        None
    }

    /// Takes the numbers from a free one on, at most as many as given, up to the first that is taken. Returns how many.
    pub(super) fn take(&mut self, from: u64, most: u64) -> u64 {
        let end = from + most.min(self.room(from));
        let mut at = from;
        while at < end {
            let (word, bit) = ((at / 64) as usize, at % 64);
            let bits = &mut self.levels[0][word];
            let in_row = u64::from((*bits >> bit).trailing_zeros());
            let count = in_row.min(64 - bit).min(end - at);
            if count == 0 {
                break;
            }
            *bits |= (u64::MAX >> (64 - count)) << bit;
            if *bits == u64::MAX {
                self.mark_full(word);
            }
            at += count;
        }
        self.free -= at - from;
        at - from
    }

    /// Marks a word of the first level as full.
    fn mark_full(&mut self, mut word: usize) {
        for words in &mut self.levels[1..] {
            let bits = &mut words[word / 64];
            *bits |= 1 << (word % 64);
            if *bits != u64::MAX {
                return;
            }
            word /= 64;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_set_finds_and_takes_what_a_list_of_flags_does(
            bound in 1u64..10_000,
            takes in proptest::collection::vec((any::<u64>(), 1u64..300), 1..400),
        ) {
            let mut set = FreeSet::new(bound);
            let mut taken = vec![false; bound as usize];
            for (from, most) in takes {
                let from = from % bound;
                let expected = (from..bound).chain(0..from).find(|number| !taken[*number as usize]);
                prop_assert_eq!(set.next_free(from), expected);
                let Some(from) = expected else { continue };
                let row = taken[from as usize..].iter().take_while(|taken| !**taken);
                let count = (row.count() as u64).min(most);
                prop_assert_eq!(set.take(from, most), count);
                taken[from as usize..][..count as usize].fill(true);
                let free = taken.iter().filter(|taken| !**taken).count();
                prop_assert_eq!(set.free, free as u64);
            }
        }
    }

    #[test]
    fn each_round_of_a_large_set_draws_every_number_once() {
        let bound = 64 * 64 * 64 + 7;
        let mut set = FreeSet::new(bound);
        assert_eq!(set.levels.len(), 4);
        let mut random = Random::new(3);
        for _round in 0..2 {
            let mut drawn = vec![false; bound as usize];
            let mut left = bound;
            while left > 0 {
                let at = set.draw(&mut random);
                let count = set.take(at, 5);
                let row = &mut drawn[at as usize..][..count as usize];
                assert!(count > 0 && row.iter().all(|drawn| !*drawn));
                row.fill(true);
                left -= count;
            }
        }
    }

    #[test]
    fn a_take_ends_before_taken_numbers_and_at_the_bound() {
        let mut set = FreeSet::new(100);
        assert_eq!(set.take(70, 10), 10);
        assert_eq!(set.take(60, 32), 10, "across two words");
        assert_eq!((set.next_free(60), set.next_free(85)), (Some(80), Some(85)));
        assert_eq!(set.take(90, 32), 10);
        assert_eq!(set.next_free(90), Some(0));
        assert_eq!([set.take(0, 99), set.take(80, 99)], [60, 10]);
        assert_eq!(set.next_free(0), None);
        set.clear();
        assert_eq!(set.take(0, 200), 100);
    }
}
