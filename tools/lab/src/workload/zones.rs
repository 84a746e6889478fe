//! Zones of blocks, each with its percentage of the I/Os: `random_distribution=zoned`.

use crate::job::{SizeOrPercent, Zone};
use crate::random::Random;

/// Blocks in zones, uniform in each: percentage, first block and number of blocks.
#[derive(Debug, Clone)]
pub(super) struct Zones(Box<[(u8, u64, u64)]>);

impl Zones {
    /// The zones of a region of `blocks` blocks of `unit` bytes. A zone has at least one block.
    pub(super) fn new(zones: &[Zone], unit: u64, blocks: u64) -> Self {
        let mut percent = 0;
        let mut begin_bytes = 0u64;
        let end_of = |percent: u64| (u128::from(blocks) * u128::from(percent) / 100) as u64;
        let range = |zone: &Zone| {
            let (begin, end) = match zone.length {
                SizeOrPercent::Percent(length) => {
                    let begin = percent;
                    percent += u64::from(length);
                    (end_of(begin), end_of(percent))
                }
                SizeOrPercent::Bytes(length) => {
                    let begin = begin_bytes;
                    begin_bytes = begin_bytes.saturating_add(length);
                    (begin / unit, (begin_bytes / unit).min(blocks))
                }
            };
            let begin = begin.min(blocks - 1);
            (zone.percent, begin, end.max(begin + 1) - begin)
        };
        Self(zones.iter().map(range).collect())
    }

    /// A block.
    #[inline(never)]
    pub(super) fn draw(&self, random: &mut Random) -> u64 {
        let mut left = random.below(100);
        for (percent, begin, blocks) in &self.0 {
            match left.checked_sub((*percent).into()) {
                Some(rest) => left = rest,
                None => return begin + random.below(*blocks),
            }
        }
        unreachable!("the percentages add up to 100")
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::options;
    use super::super::{Amount, Region, Workload};
    use super::*;
    use crate::job::{Distribution, Options, Pattern};

    #[test]
    fn zones_have_their_percentages_and_are_uniform_inside() {
        let region = Region { begin: 8192, length: 1000 * 4096 };
        let zone = |percent, length| Zone { percent, length };
        let percent = SizeOrPercent::Percent;
        let bytes = |blocks: u64| SizeOrPercent::Bytes(blocks * 4096);
        // 60 % of the I/Os to the first 10 %, 30 % to the next 20 %, 10 % to the rest.
        let relative = vec![zone(60, percent(10)), zone(30, percent(20)), zone(10, percent(70))];
        let absolute = vec![zone(60, bytes(100)), zone(30, bytes(200)), zone(10, bytes(9000))];
        for zones in [relative, absolute] {
            let options = Options {
                distribution: Distribution::Zoned,
                zones: [zones.clone(), zones, Vec::new()],
                ..options(Pattern::RandRead)
            };
            let mut workload = Workload::new(&options, &[region], Amount::Endless, 1);
            let mut counts = [0u32; 1000];
            for step in (0..100_000).filter_map(|_| workload.next_io()) {
                counts[((step.offset - 8192) / 4096) as usize] += 1;
            }
            for (blocks, expected) in [(0..100, 60_000), (100..300, 30_000), (300..1000, 10_000)] {
                let length = blocks.len() as u32;
                let zone = &counts[blocks];
                let sum: u32 = zone.iter().sum();
                assert!(sum.abs_diff(expected) < 780, "{sum} of {expected}");
                // Six standard deviations.
                let mean = f64::from(expected / length);
                let near = |count: &u32| (f64::from(*count) - mean).abs() < 6.0 * mean.sqrt() + 1.0;
                assert!(zone.iter().all(near), "{zone:?}");
            }
        }
    }
}
