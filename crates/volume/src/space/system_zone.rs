//! [`SystemZone`]: the blocks that no file may map, as in ext4's `block_validity`. An extent there
//! is damaged or forged: a write to its file would overwrite metadata.

use crate::blocks::Run;
use crate::superblock::Superblock;

/// The reserved blocks with the superblocks, the backup superblock, the catalog and its log.
#[derive(Debug)]
pub(crate) struct SystemZone {
    /// In order, without overlaps.
    runs: Vec<Run>,
}

impl SystemZone {
    /// The zone of a volume whose catalog and log lie in these runs, whatever its superblock says.
    pub(crate) fn new(
        superblock: &Superblock,
        catalog: impl IntoIterator<Item = Run>,
    ) -> SystemZone {
        SystemZone::of_runs(superblock.system_runs().chain(catalog))
    }

    fn of_runs(runs: impl Iterator<Item = Run>) -> SystemZone {
        let mut runs: Vec<Run> = runs.filter(|run| run.length > 0).collect();
        runs.sort_unstable();
        SystemZone { runs }
    }

    /// The zone of a volume, by its superblock.
    pub(crate) fn from_superblock(superblock: &Superblock) -> SystemZone {
        SystemZone::new(superblock, superblock.catalog.iter().copied().chain([superblock.log]))
    }

    pub(crate) fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// Whether a block of a run lies in the zone.
    pub(crate) fn overlaps(&self, run: Run) -> bool {
        let behind = self.runs.partition_point(|zone| zone.start < run.end());
        behind > 0 && run.start < self.runs[behind - 1].end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_overlaps_if_one_of_its_blocks_does() {
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
