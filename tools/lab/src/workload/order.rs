//! The orders in which the blocks of a file are visited, and the choice of one.

use super::io::Region;
use super::partly_random::{PartlyRandom, RandomBlocks};
use super::pieces::RandomPieces;
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
    /// Any block, uniformly.
    Uniform { unit: u64, blocks: u64 },
    /// Some blocks more often than others: zipf or pareto.
    Skewed { unit: u64, distribution: SkewedDistribution },
    /// Each zone of blocks with its percentage.
    Zoned { unit: u64, zones: Zones },
    /// Each block once.
    Permuted { unit: u64, permutation: Permutation },
    /// Each block once, in pieces of several sizes.
    Pieces { unit: u64, pieces: RandomPieces },
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

/// The random order for the block sizes of one direction.
fn random_order(options: &Options, op: usize, region: Region, random: &mut Random) -> AccessOrder {
    let BlockRange { min, max: largest } = options.block[op];
    let unit = match options.block_align[op] {
        0 => min,
        align => align,
    };
    // An I/O of any size must fit at the last block that can be drawn.
    let blocks = region.length.saturating_sub(largest) / unit + 1;
    let seed = random.bits();
    let random_blocks = match options.distribution {
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
        let partly = PartlyRandom { percent, next: [0; DIRECTIONS], unit, blocks: random_blocks };
        return AccessOrder::Partly(Box::new(partly));
    }
    let split = &options.block_split[op];
    match random_blocks {
        RandomBlocks::Skewed(distribution) => AccessOrder::Skewed { unit, distribution },
        RandomBlocks::Zoned(zones) => AccessOrder::Zoned { unit, zones },
        RandomBlocks::Uniform(blocks) if !options.random_map => {
            AccessOrder::Uniform { unit, blocks }
        }
        RandomBlocks::Uniform(blocks) if unit == largest => {
            AccessOrder::Permuted { unit, permutation: Permutation::new(blocks, seed) }
        }
        RandomBlocks::Uniform(_) => {
            let units = (region.length / unit).max(1);
            let pieces = match split.is_empty() {
                true => RandomPieces::in_pairs(units, largest / unit, seed),
                false => RandomPieces::in_rows(units, unit, split, seed),
            };
            AccessOrder::Pieces { unit, pieces }
        }
    }
}
