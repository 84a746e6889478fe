//! Random blocks mixed with sequential ones: `percentage_random`.

use super::random_blocks::RandomBlocks;
use crate::job::{DIRECTIONS, IoOp};
use crate::random::Random;

/// Random blocks mixed with blocks that follow the last one: `percentage_random`. Offsets are relative to
/// the region.
#[derive(Debug, Clone)]
pub(super) struct PartlyRandom {
    /// Percentage of random blocks of each direction.
    pub(super) percent: [u8; DIRECTIONS],
    /// The end of the last I/O of each direction.
    pub(super) next: [u64; DIRECTIONS],
    pub(super) unit: u64,
    pub(super) blocks: RandomBlocks,
}

impl PartlyRandom {
    /// The next offset of an I/O that fits at each block and into `region` bytes.
    #[inline(never)]
    pub(super) fn next(&mut self, op: IoOp, length: u64, region: u64, random: &mut Random) -> u64 {
        let next = &mut self.next[op as usize];
        let offset = if random.below(100) < u64::from(self.percent[op as usize]) {
            self.blocks.draw(random) * self.unit
        } else if *next + length <= region {
            *next
        } else {
            0
        };
        *next = offset + length;
        offset
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{options, steps};
    use super::super::{Amount, NextIo, Region, Workload};
    use super::*;
    use crate::job::{Distribution, Options, Pattern};

    #[test]
    fn a_percentage_of_random_blocks_leaves_the_others_sequential() {
        let region = Region { begin: 8192, length: 64 << 20 };
        for (percent, distribution) in
            [(0, Distribution::Uniform), (30, Distribution::Uniform), (30, Distribution::Zipf(1.2))]
        {
            let options = Options {
                random_percentage: [percent, 100, 100],
                random_map: false,
                distribution,
                ..options(Pattern::RandRead)
            };
            let mut workload = Workload::new(&options, &[region], Amount::Endless, 1);
            let all: Vec<NextIo> = (0..10_000).filter_map(|_| workload.next_io()).collect();
            let follows = |pair: &&[NextIo]| pair[1].offset == pair[0].offset + 4096;
            let sequential = all.windows(2).filter(follows).count();
            let expected = 9_999 * (100 - usize::from(percent)) / 100;
            // Five standard deviations; a random block may follow by chance, too.
            let most = if percent == 0 { 0 } else { 230 };
            assert!(sequential.abs_diff(expected) <= most, "{percent}: {sequential}");
            assert!(all.iter().all(|s| (8192..8192 + (64 << 20)).contains(&s.offset)));
        }
    }

    #[test]
    fn each_direction_continues_after_its_own_last_block() {
        let options = Options {
            random_percentage: [0; DIRECTIONS],
            random_map: false,
            ..options(Pattern::RandReadWrite)
        };
        let all = steps(&options, 64 * 4096);
        for op in [IoOp::Read, IoOp::Write] {
            let offsets = all.iter().filter(|step| step.op == op).map(|step| step.offset);
            let expected: Vec<u64> =
                (0..).map(|n| 8192 + n * 4096).take(offsets.clone().count()).collect();
            assert_eq!(offsets.collect::<Vec<_>>(), expected);
        }
    }
}
