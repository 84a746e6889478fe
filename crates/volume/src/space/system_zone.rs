//! [`SystemZone`]: the blocks that no file can have, in one place, as ext4's `block_validity` keeps them. An extent
//! there was damaged or forged: a write to its file would change what says where files lie.

use crate::blocks::Run;
use crate::superblock::Superblock;

/// The blocks of the superblocks and what is reserved beside them, the catalog and its log.
#[derive(Debug)]
pub(crate) struct SystemZone {
    /// In order, apart from each other.
    runs: Vec<Run>,
}

impl SystemZone {
    /// That of a volume whose catalog and log lie in these runs, whatever its superblock says of them.
    pub(crate) fn new(
        superblock: &Superblock,
        catalog: impl IntoIterator<Item = Run>,
    ) -> SystemZone {
        SystemZone::of_runs(superblock.takes().chain(catalog))
    }

    fn of_runs(runs: impl Iterator<Item = Run>) -> SystemZone {
        let mut runs: Vec<Run> = runs.filter(|run| run.length > 0).collect();
        runs.sort_unstable();
        SystemZone { runs }
    }

    /// That of a volume.
    pub(crate) fn of(superblock: &Superblock) -> SystemZone {
        SystemZone::new(superblock, superblock.catalog.iter().copied().chain([superblock.log]))
    }

    /// Where it lies.
    pub(crate) fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// Whether one of the blocks of a run is in it.
    pub(crate) fn overlaps(&self, run: Run) -> bool {
        let behind = self.runs.partition_point(|zone| zone.start < run.end());
        behind > 0 && run.start < self.runs[behind - 1].end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_overlaps_where_one_of_its_blocks_does() {
        let of = |runs: &[(u64, u64)]| {
            SystemZone::of_runs(runs.iter().map(|&(start, length)| Run { start, length }))
        };
        let zone = of(&[(200, 10), (100, 50), (0, 32), (0, 0)]);
        for start in 0..300 {
            for length in 1..120 {
                let in_zone = |block| {
                    block < 32 || (100..150).contains(&block) || (200..210).contains(&block)
                };
                let expected = (start..start + length).any(in_zone);
                assert_eq!(zone.overlaps(Run { start, length }), expected, "{start}+{length}");
            }
        }
    }
}
