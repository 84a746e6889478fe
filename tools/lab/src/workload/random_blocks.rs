//! Random blocks without a map: each draw is independent of those before it.

use super::zones::Zones;
use crate::random::Random;
use crate::zipf::SkewedDistribution;

/// Random blocks without a map.
#[derive(Debug, Clone)]
pub(super) enum RandomBlocks {
    /// Any block, uniformly: their number.
    Uniform(u64),
    /// Some blocks more often than others: zipf or pareto.
    Skewed(SkewedDistribution),
    /// Each zone of blocks with its percentage.
    Zoned(Zones),
}

impl RandomBlocks {
    /// A block.
    #[inline]
    pub(super) fn draw(&self, random: &mut Random) -> u64 {
        match self {
            Self::Uniform(blocks) => random.below(*blocks),
            Self::Skewed(distribution) => distribution.draw(random),
            Self::Zoned(zones) => zones.draw(random),
        }
    }
}
