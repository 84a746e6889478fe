//! The orders in which the blocks of a file are visited, and the choice of one.

use super::free_set::FreeSet;
use super::io::Region;
use super::partly_random::PartlyRandom;
use super::random_blocks::RandomBlocks;
use super::zones::Zones;
use crate::job::{BlockRange, DIRECTIONS, Distribution, Options};
use crate::permutation::Permutation;
use crate::random::Random;
use crate::zipf::SkewedDistribution;

/// The order in which blocks of a file are visited.
#[derive(Debug, Clone)]
pub(super) enum AccessOrder {
    /// The next offset of each direction.
    Sequential([u64; DIRECTIONS]),
    /// Any block, also one that was visited before.
    Drawn { unit: u64, blocks: RandomBlocks },
    /// Each block once.
    Permuted { unit: u64, permutation: Permutation },
    /// Each byte once, in blocks of several sizes.
    Mapped { unit: u64, map: FreeSet },
    /// Some blocks at random, the others after the last one.
    Partly(Box<PartlyRandom>),
    /// Reads and writes have different sizes, and an order each.
    PerDirection(Box<[AccessOrder; 2]>),
}

/// The order in which a file's blocks are visited.
pub(super) fn order(options: &Options, region: Region, random: &mut Random) -> AccessOrder {
    if !options.pattern.random() {
        return AccessOrder::Sequential([region.begin; DIRECTIONS]);
    }
    let used = options.pattern.chosen();
    let sizes = |op: usize| {
        let Options { block, block_split, block_align, zones, .. } = options;
        (&block[op], &block_split[op], block_align[op], &zones[op])
    };
    // Blocks of one direction must not overlap, or a write would destroy the header of an earlier one. So
    // each size needs a grid of its own, and so do zones.
    if used == [true, true, false] && sizes(0) != sizes(1) {
        let orders = [0, 1].map(|op| random_order(options, op, region, random));
        return AccessOrder::PerDirection(Box::new(orders));
    }
    let first = used.iter().position(|used| *used).unwrap_or(0);
    random_order(options, first, region, random)
}

/// The unit of a direction's random offsets.
fn unit(options: &Options, op: usize) -> u64 {
    match options.block_align[op] {
        0 => options.block[op].min,
        align => align,
    }
}

/// The random order for the block sizes of one direction.
fn random_order(options: &Options, op: usize, region: Region, random: &mut Random) -> AccessOrder {
    let (unit, largest) = (unit(options, op), options.block[op].max);
    // An I/O of any size must fit at the last block that can be drawn.
    let blocks = region.length.saturating_sub(largest) / unit + 1;
    let seed = random.bits();
    let blocks = match options.distribution {
        Distribution::Uniform => RandomBlocks::Uniform(blocks),
        Distribution::Zipf(theta) => {
            RandomBlocks::Skewed(SkewedDistribution::zipf(theta, blocks, seed))
        }
        Distribution::Pareto(h) => {
            RandomBlocks::Skewed(SkewedDistribution::pareto(h, blocks, seed))
        }
        Distribution::Zoned => RandomBlocks::Zoned(Zones::new(&options.zones[op], unit, blocks)),
    };
    let mut percents = options.random_percentage.iter().zip(options.pattern.chosen());
    if percents.any(|(percent, used)| used && *percent < 100) {
        let percent = options.random_percentage;
        let partly = PartlyRandom { percent, next: [0; DIRECTIONS], unit, blocks };
        return AccessOrder::Partly(Box::new(partly));
    }
    match blocks {
        RandomBlocks::Uniform(blocks) if options.random_map && unit == largest => {
            AccessOrder::Permuted { unit, permutation: Permutation::new(blocks, seed) }
        }
        RandomBlocks::Uniform(_) if options.random_map => {
            AccessOrder::Mapped { unit, map: FreeSet::new((region.length / unit).max(1)) }
        }
        blocks => AccessOrder::Drawn { unit, blocks },
    }
}

/// Refuses a region with more blocks than the job's order can have.
pub(crate) fn check_order(options: &Options, region: Region) -> Result<(), String> {
    let used = (0..).zip(options.pattern.chosen()).filter(|(_, used)| *used);
    for (op, _) in used.filter(|_| options.pattern.random()) {
        let BlockRange { min, max } = options.block[op];
        let (most, hint) = match (options.distribution, options.random_map) {
            (Distribution::Uniform, true) if min < max => {
                (FreeSet::MAX_BOUND, "; with norandommap=1 there is no limit")
            }
            (Distribution::Uniform, false) | (Distribution::Zoned, _) => continue,
            _ => (Permutation::MAX_LENGTH, ""),
        };
        let unit = unit(options, op);
        let blocks = region.length / unit;
        if blocks > most {
            return Err(format!(
                "has {blocks} blocks of {unit} bytes, and a random order of them at most {most}; give larger blocks or a smaller size={hint}"
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::testing::{REGION, options, steps};
    use super::super::{Amount, NextIo, Workload};
    use super::*;
    use crate::job::{BlockShare, Pattern};
    use std::collections::HashSet;

    #[test]
    fn a_region_with_more_blocks_than_an_order_can_have_is_refused() {
        let region = Region { begin: 0, length: i64::MAX as u64 };
        let bytes = BlockRange { min: 1, max: 1 };
        let several = BlockRange { min: 512, max: 4096 };
        let random = |block, random_map, distribution| {
            let block = [block; DIRECTIONS];
            Options { block, random_map, distribution, ..options(Pattern::RandRead) }
        };
        for (options, hint) in [
            (random(bytes, true, Distribution::Uniform), false),
            (random(bytes, false, Distribution::Zipf(1.2)), false),
            (random(bytes, true, Distribution::Pareto(0.2)), false),
            (random(several, true, Distribution::Uniform), true),
        ] {
            let error = check_order(&options, region).unwrap_err();
            assert!(error.contains(" blocks of ") && error.contains("at most "), "{error}");
            assert_eq!(error.contains("norandommap"), hint, "{error}");
        }
        for options in [
            random(BlockRange { min: 2, max: 2 }, true, Distribution::Uniform),
            random(bytes, false, Distribution::Uniform),
            random(several, false, Distribution::Uniform),
            Options { block: [bytes; DIRECTIONS], ..self::options(Pattern::Read) },
        ] {
            check_order(&options, region).unwrap();
            order(&options, region, &mut Random::new(1));
        }
        // The largest map that is not refused; its memory is not touched.
        let region = Region { begin: 0, length: FreeSet::MAX_BOUND * 512 };
        check_order(&random(several, true, Distribution::Uniform), region).unwrap();
    }

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

    #[test]
    fn a_split_without_a_map_has_its_percentages() {
        let region = Region { begin: 8192, length: 300 * 49 * 4096 };
        for (pattern, random_map) in [(Pattern::Read, true), (Pattern::RandRead, false)] {
            let options = Options { random_map, ..split(pattern) };
            let mut workload = Workload::new(&options, &[region], Amount::Endless, 1);
            let all: Vec<NextIo> = (0..10_000).filter_map(|_| workload.next_io()).collect();
            for (length, expected) in [(4096, 5000usize), (16_384, 3000), (65_536, 2000)] {
                let count = all.iter().filter(|step| step.length == length).count();
                // Five standard deviations.
                assert!(count.abs_diff(expected) < 250, "{pattern:?}: {count} of {expected}");
            }
            let end = region.begin + region.length;
            assert!(all.iter().all(|s| s.offset >= 8192 && s.offset + u64::from(s.length) <= end));
        }
    }

    #[test]
    fn a_split_with_a_map_begins_with_its_percentages() {
        // While the map is nearly free, few I/Os are shortened.
        let region = Region { begin: 8192, length: 16 << 30 };
        let mut workload = Workload::new(&split(Pattern::RandRead), &[region], Amount::Endless, 1);
        let all: Vec<NextIo> = (0..10_000).filter_map(|_| workload.next_io()).collect();
        for (length, expected) in [(4096, 5000usize), (16_384, 3000), (65_536, 2000)] {
            let count = all.iter().filter(|step| step.length == length).count();
            // Five standard deviations, and those that are shortened.
            assert!(count.abs_diff(expected) < 300, "{length}: {count} of {expected}");
        }
    }

    #[test]
    fn a_split_with_a_map_visits_each_byte_once_in_each_pass() {
        for blocks in [16, 31, 1000] {
            let region = Region { begin: 8192, length: blocks * 4096 };
            let options = split(Pattern::RandWrite);
            let mut workload = Workload::new(&options, &[region], Amount::Bytes(region.length), 1);
            for _pass in 0..2 {
                let mut seen = HashSet::new();
                while let Some(step) = workload.next_io() {
                    for block in (step.offset..step.offset + u64::from(step.length)).step_by(4096) {
                        assert!(seen.insert(block), "{blocks}: {step:?}");
                    }
                }
                assert_eq!(seen.len() as u64, blocks);
                workload.begin_pass();
            }
        }
    }

    #[test]
    fn a_pass_that_ends_inside_the_map_leaves_no_unit_out() {
        // Blocks of 1 to 16 units; passes of 50 of the 64 units.
        let options = Options {
            block: [BlockRange { min: 4096, max: 65_536 }; 3],
            ..options(Pattern::RandRead)
        };
        let mut workload = Workload::new(&options, &[REGION], Amount::Bytes(50 * 4096), 1);
        let mut visits = [0u32; 64];
        for _pass in 0..32 {
            while let Some(step) = workload.next_io() {
                let begin = ((step.offset - REGION.begin) / 4096) as usize;
                visits[begin..][..step.length as usize / 4096].iter_mut().for_each(|n| *n += 1);
            }
            workload.begin_pass();
        }
        assert_eq!(visits, [25; 64]);
    }
}
