//! A region cut into pieces of several sizes, each visited once: a map with `bsrange` or `bssplit`.

use crate::job::BlockShare;
use crate::permutation::Permutation;
use crate::random::Random;

/// A range of units, cut into pieces; each piece is drawn once. The cut is computed from the piece's
/// number, so that the memory is fixed.
#[derive(Debug, Clone)]
pub(super) struct RandomPieces {
    units: u64,
    cut: Cut,
    permutation: Permutation,
}

#[derive(Debug, Clone)]
enum Cut {
    /// Pairs of `max_units + 1` units, each cut at random into 1 to `max_units` units: all sizes are equally
    /// likely.
    Pairs { max_units: u64, seed: u64 },
    /// A row of pieces, repeated: the ends of its pieces in units.
    Rows(Box<[u64]>),
}

impl RandomPieces {
    /// Pieces of 1 to `max_units` units.
    pub(super) fn in_pairs(units: u64, max_units: u64, seed: u64) -> Self {
        // The rest after the last pair is a piece.
        let rest = u64::from(!units.is_multiple_of(max_units + 1));
        let count = units / (max_units + 1) * 2 + rest;
        let cut = Cut::Pairs { max_units, seed };
        Self { units, cut, permutation: Permutation::new(count, seed) }
    }

    /// Pieces of the sizes of a split, each as often as its percentage says.
    pub(super) fn in_rows(units: u64, unit: u64, split: &[BlockShare], seed: u64) -> Self {
        fn common_divisor(a: u8, b: u8) -> u8 {
            if b == 0 { a } else { common_divisor(b, a % b) }
        }
        let common = split.iter().fold(0, |common, share| common_divisor(common, share.percent));
        let mut row: Vec<u64> = Vec::new();
        for share in split {
            let count = usize::from(share.percent / common);
            row.extend(std::iter::repeat_n(share.bytes / unit, count));
        }
        let mut random = Random::new(seed);
        for last in (1..row.len()).rev() {
            row.swap(last, random.below(last as u64 + 1) as usize);
        }
        let mut end = 0;
        for piece in &mut row {
            end += *piece;
            *piece = end;
        }
        let tail = units % end;
        let in_tail = row.iter().filter(|end| **end < tail).count() + usize::from(tail > 0);
        let count = units / end * row.len() as u64 + in_tail as u64;
        let cut = Cut::Rows(row.into());
        Self { units, cut, permutation: Permutation::new(count, seed) }
    }

    /// The next piece: its first unit and its length in units.
    pub(super) fn next(&mut self) -> (u64, u64) {
        let piece = self.permutation.next();
        match &self.cut {
            Cut::Pairs { max_units, seed } => {
                let pair = max_units + 1;
                let begin = piece / 2 * pair;
                if begin + pair > self.units {
                    return (begin, self.units - begin);
                }
                let cut = Random::new(seed ^ begin).below(*max_units) + 1;
                if piece.is_multiple_of(2) { (begin, cut) } else { (begin + cut, pair - cut) }
            }
            Cut::Rows(ends) => {
                let (row, index) =
                    (piece / ends.len() as u64, (piece % ends.len() as u64) as usize);
                let row_begin = row * ends[ends.len() - 1];
                let begin = row_begin + if index == 0 { 0 } else { ends[index - 1] };
                // The last piece may be cut at the end of the region.
                let end = (row_begin + ends[index]).min(self.units);
                (begin, end - begin)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{REGION, options, steps};
    use super::super::{Amount, NextIo, Region, Workload};
    use super::*;
    use crate::job::{BlockRange, Options, Pattern};
    use std::collections::HashSet;

    /// How often each 512 bytes of the region were visited.
    fn visits(steps: &[NextIo]) -> Vec<u32> {
        let mut visits = vec![0; (REGION.length / 512) as usize];
        for step in steps {
            let begin = ((step.offset - REGION.begin) / 512) as usize;
            visits[begin..begin + step.length as usize / 512].iter_mut().for_each(|n| *n += 1);
        }
        visits
    }

    #[test]
    fn bsrange_with_a_map_visits_each_byte_once_in_all_sizes() {
        for (min, max) in [(512, 4096), (512, 65_536), (1024, 3072), (512, 1000)] {
            let range = BlockRange { min, max };
            let once = REGION.length / min * min;
            for pattern in [Pattern::RandWrite, Pattern::Read] {
                let options = Options { block: [range; 3], ..options(pattern) };
                let all = steps(&options, once);
                let visited = visits(&all);
                assert!(visited[..(once / 512) as usize].iter().all(|n| *n == 1), "{options:?}");
                assert!(all.iter().all(|s| (min..=max).contains(&s.length.into())), "{options:?}");
                if max <= 4096 {
                    let sizes: HashSet<u32> = all.iter().map(|step| step.length).collect();
                    assert_eq!(sizes.len() as u64, max / min, "{pattern:?} {min} {max}");
                }
            }
        }
    }

    /// 4k, 16k and 64k for 50, 30 and 20 percent of the I/Os.
    fn split(pattern: Pattern) -> Options {
        let share = |bytes, percent| BlockShare { bytes, percent };
        let shares = vec![share(4096, 50), share(16_384, 30), share(65_536, 20)];
        Options {
            block: [BlockRange { min: 4096, max: 65_536 }; 3],
            block_split: [shares.clone(), shares, Vec::new()],
            ..options(pattern)
        }
    }

    /// The number of I/Os of 4k, 16k and 64k; no other length is allowed.
    fn lengths(steps: &[NextIo]) -> [usize; 3] {
        let count = |length| steps.iter().filter(|step| step.length == length).count();
        let counts = [4096, 16_384, 65_536].map(count);
        assert_eq!(counts.iter().sum::<usize>(), steps.len());
        counts
    }

    #[test]
    fn a_split_has_its_percentages_in_every_order() {
        // Rows of five, three and two pieces: 49 blocks.
        let region = Region { begin: 8192, length: 300 * 49 * 4096 };
        for (pattern, random_map) in
            [(Pattern::Read, true), (Pattern::RandRead, false), (Pattern::RandWrite, true)]
        {
            let options = Options { random_map, ..split(pattern) };
            let mut workload = Workload::new(&options, &[region], Amount::Endless, 1);
            let all: Vec<NextIo> = (0..10_000).filter_map(|_| workload.next_io()).collect();
            for (count, expected) in lengths(&all).into_iter().zip([5000, 3000, 2000]) {
                // Five standard deviations.
                assert!(count.abs_diff(expected) < 250, "{pattern:?}: {count} of {expected}");
            }
            let end = region.begin + region.length;
            assert!(all.iter().all(|s| s.offset >= 8192 && s.offset + u64::from(s.length) <= end));
        }
    }

    #[test]
    fn a_split_with_a_map_visits_each_byte_once() {
        // Whole rows, and rows with pieces that the end cuts.
        for blocks in [1, 3, 31, 10 * (5 + 3 * 4 + 2 * 16), 1000] {
            let region = Region { begin: 8192, length: blocks * 4096 };
            let options = split(Pattern::RandWrite);
            let mut workload = Workload::new(&options, &[region], Amount::Bytes(region.length), 1);
            let mut seen = HashSet::new();
            while let Some(step) = workload.next_io() {
                for block in (step.offset..step.offset + u64::from(step.length)).step_by(4096) {
                    assert!(seen.insert(block), "{blocks}: {step:?}");
                }
            }
            assert_eq!(seen.len() as u64, blocks);
        }
    }
}
