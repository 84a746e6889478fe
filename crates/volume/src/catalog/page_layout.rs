//! The blocks of the storage's pages. The catalog's runs form one sequence of blocks, cut into
//! groups of one block of checksums and the pages that it covers.

use crate::blocks::Run;

/// Pages that one block of checksums covers, with four bytes each.
pub(super) const GROUP_PAGES: u64 = 1024;
/// Blocks of a group.
const GROUP_BLOCKS: u64 = GROUP_PAGES + 1;

/// The catalog's runs in their order.
#[derive(Clone, Default)]
pub(super) struct PageLayout {
    /// Each run with the number of blocks before it.
    runs: Vec<(u64, Run)>,
}

/// Pages in adjacent blocks of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PageRun {
    pub(super) page: u64,
    pub(super) block: u64,
    pub(super) count: u64,
}

impl PageLayout {
    pub(super) fn new(runs: &[Run]) -> PageLayout {
        let mut layout = PageLayout::default();
        layout.add(runs);
        layout
    }

    pub(super) fn add(&mut self, runs: &[Run]) {
        for run in runs {
            self.runs.push((self.blocks(), *run));
        }
    }

    fn blocks(&self) -> u64 {
        self.runs.last().map_or(0, |(before, run)| before + run.length)
    }

    /// Number of pages that have a block.
    pub(super) fn pages(&self) -> u64 {
        let blocks = self.blocks();
        blocks / GROUP_BLOCKS * GROUP_PAGES + (blocks % GROUP_BLOCKS).saturating_sub(1)
    }

    /// The block on the device of the `index`-th block of the catalog, and the number of adjacent
    /// blocks from there.
    fn locate(&self, index: u64) -> Option<(u64, u64)> {
        let at = self.runs.partition_point(|(before, _)| *before <= index).checked_sub(1)?;
        let (before, run) = self.runs[at];
        let inside = index - before;
        (inside < run.length).then(|| (run.start + inside, run.length - inside))
    }

    /// The block of a group's checksums.
    pub(super) fn checksum_block(&self, group: u64) -> Option<u64> {
        self.locate(group * GROUP_BLOCKS).map(|(block, _)| block)
    }

    /// The block of a page.
    pub(super) fn block_of(&self, page: u64) -> Option<u64> {
        self.locate(page + page / GROUP_PAGES + 1).map(|(block, _)| block)
    }

    /// `count` pages from `page` on, split where their blocks are not adjacent. Pages without a
    /// block are left out.
    pub(super) fn page_runs(&self, page: u64, count: u64) -> Vec<PageRun> {
        let (mut page, end) = (page, (page + count).min(self.pages()));
        let mut page_runs = Vec::new();
        while page < end {
            let (block, adjacent) = self
                .locate(page + page / GROUP_PAGES + 1)
                .expect("a page below the end has a block");
            let count = adjacent.min(end - page).min(GROUP_PAGES - page % GROUP_PAGES);
            page_runs.push(PageRun { page, block, count });
            page += count;
        }
        page_runs
    }

    /// The blocks of checksums that adding `runs` will add.
    pub(super) fn new_checksum_blocks(&self, runs: &[Run]) -> Vec<u64> {
        let mut grown = self.clone();
        grown.add(runs);
        let groups = self.blocks().div_ceil(GROUP_BLOCKS)..grown.blocks().div_ceil(GROUP_BLOCKS);
        groups.filter_map(|group| grown.checksum_block(group)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(start: u64, length: u64) -> Run {
        Run { start, length }
    }

    #[test]
    fn pages_follow_their_checksums() {
        let layout = PageLayout::new(&[run(100, 10), run(50, 3), run(2000, 3000)]);
        assert_eq!(layout.pages(), 3013 - 3);
        assert_eq!((layout.checksum_block(0), layout.block_of(0)), (Some(100), Some(101)));
        assert_eq!(layout.block_of(8), Some(109));
        assert_eq!(layout.block_of(9), Some(50));
        assert_eq!(layout.block_of(12), Some(2000));
        assert_eq!(layout.checksum_block(1), Some(2000 + 1025 - 13));
        assert_eq!(layout.block_of(1024), Some(2000 + 1026 - 13));
        assert_eq!(layout.block_of(3009), Some(4999));
        assert_eq!(layout.block_of(3010), None);
    }

    #[test]
    fn page_runs_are_split_at_runs_and_groups() {
        let layout = PageLayout::new(&[run(100, 10), run(2000, 3000)]);
        let page_run = |page, block, count| PageRun { page, block, count };
        assert_eq!(layout.page_runs(7, 4), [page_run(7, 108, 2), page_run(9, 2000, 2)]);
        assert_eq!(layout.page_runs(1023, 2), [page_run(1023, 3014, 1), page_run(1024, 3016, 1)]);
        let last = layout.pages() - 1;
        assert_eq!(layout.page_runs(last, 5), [page_run(last, 4999, 1)]);
    }

    #[test]
    fn every_block_holds_one_page_or_checksums() {
        let mut layout = PageLayout::new(&[run(40, 1), run(90, 1024)]);
        let more = [run(3000, 1), run(10, 5), run(4000, 1500)];
        let mut seen: Vec<u64> = layout.new_checksum_blocks(&more);
        seen.extend((0..1).filter_map(|group| layout.checksum_block(group)));
        layout.add(&more);
        seen.extend((0..layout.pages()).filter_map(|page| layout.block_of(page)));
        seen.sort_unstable();
        let mut all: Vec<u64> = (10..15).chain(90..1114).chain(4000..5500).collect();
        all.extend([40, 3000]);
        all.sort_unstable();
        assert_eq!(seen, all);
    }
}
