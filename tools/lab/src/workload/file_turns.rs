//! The choice of the next of several files: `file_service_type`.

use super::free_set::FreeSet;
use crate::job::{Distribution, FileOrder, Options};
use crate::random::Random;
use crate::zipf::SkewedDistribution;

/// The choice of the next of several files.
#[derive(Debug, Clone)]
pub(super) struct FileTurns {
    pub(super) order: TurnOrder,
    /// I/Os of a turn, and those left of the current one.
    pub(super) ios: u32,
    pub(super) left: u32,
    pub(super) current: usize,
    /// The files that have blocks left in this round.
    pub(super) unfinished: FreeSet,
}

#[derive(Debug, Clone)]
pub(super) enum TurnOrder {
    RoundRobin,
    Sequential,
    Random,
    Skewed(SkewedDistribution),
}

impl FileTurns {
    /// The turns of a job with this number of files.
    pub(super) fn new(options: &Options, files: usize, random: &mut Random) -> Self {
        let count = files as u64;
        // Jobs with the default order draw no number here: their offsets stay what they are.
        let order = match options.file_service.order {
            FileOrder::RoundRobin => TurnOrder::RoundRobin,
            FileOrder::Sequential => TurnOrder::Sequential,
            // Files have no zones.
            FileOrder::Random(Distribution::Uniform | Distribution::Zoned) => TurnOrder::Random,
            FileOrder::Random(Distribution::Zipf(theta)) => {
                TurnOrder::Skewed(SkewedDistribution::zipf(theta, count, random.bits()))
            }
            FileOrder::Random(Distribution::Pareto(h)) => {
                TurnOrder::Skewed(SkewedDistribution::pareto(h, count, random.bits()))
            }
        };
        // The first turn in a row is that of the first file.
        let current = match order {
            TurnOrder::RoundRobin => files.saturating_sub(1),
            _ => 0,
        };
        let unfinished = FreeSet::new(count.max(1));
        Self { order, ios: options.file_service.ios, left: 0, current, unfinished }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::options;
    use super::super::{Amount, Region, Workload};
    use super::*;
    use crate::job::{FileService, Pattern};

    /// The files of the first I/Os to three files of 16 blocks.
    fn files(order: FileOrder, ios: u32, count: usize) -> Vec<u32> {
        let region = Region { begin: 0, length: 16 * 4096 };
        let file_service = FileService { order, ios };
        let options = Options { file_service, ..options(Pattern::Read) };
        let mut workload = Workload::new(&options, &[region; 3], Amount::Endless, 1);
        (0..count).filter_map(|_| workload.next_io()).map(|step| step.file).collect()
    }

    #[test]
    fn a_turn_has_as_many_ios_as_given() {
        assert_eq!(files(FileOrder::RoundRobin, 2, 8), [0, 0, 1, 1, 2, 2, 0, 0]);
        let random = files(FileOrder::Random(Distribution::Uniform), 4, 40);
        assert!(random.chunks(4).all(|turn| turn.iter().all(|file| *file == turn[0])));
        assert!((0..3).all(|file| random.contains(&file)), "{random:?}");
    }

    #[test]
    fn sequential_service_finishes_a_file_before_the_next() {
        let expected: Vec<u32> = (0..64).map(|io| io / 16 % 3).collect();
        assert_eq!(files(FileOrder::Sequential, 1, 64), expected);
    }

    #[test]
    fn files_are_as_popular_as_their_distribution_says() {
        let count = |order| {
            let mut counts = [0u32; 3];
            files(order, 1, 9000).iter().for_each(|file| counts[*file as usize] += 1);
            counts.sort_unstable();
            counts
        };
        let uniform = count(FileOrder::Random(Distribution::Uniform));
        assert!(uniform.iter().all(|n| n.abs_diff(3000) < 240), "{uniform:?}");
        // 1/1, 1/2^2 and 1/3^2 of 9000, divided by their sum.
        let skewed = count(FileOrder::Random(Distribution::Zipf(2.0)));
        for (found, expected) in skewed.into_iter().zip([735, 1653, 6612]) {
            assert!(found.abs_diff(expected) < 240, "{skewed:?}");
        }
    }
}
