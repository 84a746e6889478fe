//! The sequence of I/Os of one thread of one job: file, direction, offset and length. Knows no clock
//! and no engine. It runs between any two I/Os, so that a step must cost only a few nanoseconds.

mod block_sizes;
mod budget;
mod file_turns;
mod free_set;
mod io;
mod order;
mod partly_random;
mod random_blocks;
mod replay;
mod zones;

#[cfg(test)]
mod testing;

pub use crate::job::IoOp;
pub use io::{Amount, NextIo, Region};
pub(crate) use order::check_order;
pub use replay::Replay;

use crate::job::{DIRECTIONS, Distribution, FileOrder, IoLog, Options, Pattern};
use crate::random::Random;
use block_sizes::{BlockSizes, BlockSplit};
use budget::Budget;
use file_turns::{FileTurns, TurnOrder};
use order::{AccessOrder, order};
use std::sync::Arc;

/// The I/Os of a thread, in passes. [`Workload::begin_pass`] begins the next pass.
#[derive(Debug, Clone)]
pub struct Workload {
    files: Vec<FileCursor>,
    turns: FileTurns,
    mix: ReadWriteMix,
    blocks: [BlockSizes; DIRECTIONS],
    splits: [BlockSplit; DIRECTIONS],
    seed: u64,
    random: Random,
    budget: Budget,
    /// A file whose blocks have all been visited waits for the other files.
    has_rounds: bool,
    /// Of all directions.
    smallest_block: u64,
    /// The trace whose steps take the place of all I/Os.
    replay: Option<Replay>,
}

/// The position in one file.
#[derive(Debug, Clone)]
struct FileCursor {
    region: Region,
    order: AccessOrder,
    /// Bytes not yet visited in this round, if there are rounds.
    left: u64,
}

#[derive(Debug, Clone, Copy)]
enum ReadWriteMix {
    Only(IoOp),
    /// Percentage of reads.
    Reads(u8),
}

impl Workload {
    /// The workload of one thread over `regions`, one per file. Threads of a job differ in `seed`.
    pub fn new(options: &Options, regions: &[Region], amount: Amount, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let cursor = |&region: &Region| {
            let order = order(options, region, &mut random);
            FileCursor { region, order, left: region.length }
        };
        let files = regions.iter().map(cursor).collect();
        let mix = match options.pattern {
            Pattern::Read | Pattern::RandRead => ReadWriteMix::Only(IoOp::Read),
            Pattern::Write | Pattern::RandWrite => ReadWriteMix::Only(IoOp::Write),
            Pattern::ReadWrite | Pattern::RandReadWrite => ReadWriteMix::Reads(options.mix_read),
            // Its steps come from the trace.
            Pattern::Replay { .. } => ReadWriteMix::Only(IoOp::Read),
            // The run loop adds the writes of a trimwrite: each waits for its trim.
            Pattern::Trim | Pattern::RandTrim | Pattern::TrimWrite | Pattern::RandTrimWrite => {
                ReadWriteMix::Only(IoOp::Trim)
            }
        };
        let blocks = std::array::from_fn(|op| {
            let range = options.block[op];
            match range.max - range.min {
                0 => BlockSizes::Fixed(range.max as u32),
                _ if !options.block_split[op].is_empty() => {
                    BlockSizes::Split { unit: range.min as u32 }
                }
                spread => BlockSizes::Between {
                    unit: range.min as u32,
                    steps: (spread / range.min + 1) as u32,
                },
            }
        });
        let splits = std::array::from_fn(|op| BlockSplit::new(&options.block_split[op]));
        let unit = options.smallest_block();
        let sum = |length: fn(&Region, u64) -> u64| {
            regions.iter().map(|region| length(region, unit)).fold(0, u64::saturating_add)
        };
        let once = sum(|region, unit| region.length / unit * unit);
        let whole = sum(|region, _| region.length);
        // Without io_size each file is done once, and its rest of less than a block is dropped.
        let amount = match amount {
            Amount::Bytes(bytes) if bytes == whole && options.io_size.is_none() => {
                Amount::Bytes(once)
            }
            given => given,
        };
        let budget = Budget::new(amount, once, options.largest_block());
        // As with fio: without a map, or with a time limit alone, no file is ever finished.
        let map = options.random_map && options.distribution == Distribution::Uniform;
        let ends = amount != Amount::Endless && (map || !options.pattern.random());
        let in_turn = options.file_service.order != FileOrder::Sequential;
        let finishes = map || !options.pattern.random();
        let has_rounds = regions.len() > 1 && (ends || !in_turn && finishes);
        let turns = FileTurns::new(options, regions.len(), &mut random);
        Self {
            files,
            turns,
            mix,
            blocks,
            splits,
            seed,
            random,
            budget,
            has_rounds,
            smallest_block: unit,
            replay: None,
        }
    }

    /// The same files, with the steps of a trace in place of all I/Os: [`Workload::replay`].
    pub fn replaying(self, log: Arc<IoLog>) -> Self {
        Self { replay: Some(Replay::new(log)), ..self }
    }

    /// The position in the trace, if there is one.
    pub fn replay(&mut self) -> Option<&mut Replay> {
        self.replay.as_mut()
    }

    /// The number of files.
    pub fn files(&self) -> u32 {
        self.files.len() as u32
    }

    /// The seed that it was made with.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Whether the workload reads and writes.
    pub fn is_mixed(&self) -> bool {
        matches!(self.mix, ReadWriteMix::Reads(_))
    }

    /// Begins the next pass, at the position where the last one ended, as fio's loops do.
    pub fn begin_pass(&mut self) {
        self.budget.begin_pass();
        self.replay.iter_mut().for_each(Replay::begin_pass);
    }

    /// The next I/O; `None` at the end of the pass.
    #[inline]
    pub fn next_io(&mut self) -> Option<NextIo> {
        let op = self.next_direction();
        self.next_io_in(op)
    }

    /// The next write of the pass, turned into a read of the same range. A trim counts as the write that follows it.
    pub fn next_read_back(&mut self) -> Option<NextIo> {
        loop {
            let step = self.next_io()?;
            if step.op != IoOp::Read {
                return Some(NextIo { op: IoOp::Read, ..step });
            }
        }
    }

    /// Draws the direction of the next I/O, for [`Workload::next_io_in`].
    #[inline]
    pub fn next_direction(&mut self) -> IoOp {
        match self.mix {
            ReadWriteMix::Only(op) => op,
            ReadWriteMix::Reads(share) if self.random.below(100) < u64::from(share) => IoOp::Read,
            ReadWriteMix::Reads(_) => IoOp::Write,
        }
    }

    /// The next I/O in this direction; `None` at the end of the pass.
    #[inline]
    pub fn next_io_in(&mut self, op: IoOp) -> Option<NextIo> {
        let blocks = self.blocks[op as usize];
        let mut length = blocks.draw(u64::MAX, &self.splits[op as usize], &mut self.random);
        if self.budget.left < length {
            length = self.budget.last_length(blocks.unit())?;
        }
        let file = if self.files.len() == 1 { 0 } else { self.next_file(blocks.unit()) };
        let FileCursor { region, order, left } = &mut self.files[file];
        let split = &self.splits[op as usize];
        let order = match order {
            AccessOrder::PerDirection(orders) => &mut orders[op as usize],
            shared => shared,
        };
        let offset = match order {
            AccessOrder::PerDirection(_) => {
                unreachable!("the order of one direction is not split again")
            }
            AccessOrder::Permuted { unit, permutation } => {
                region.begin + permutation.next() * *unit
            }
            AccessOrder::Drawn { unit, blocks } => {
                region.begin + blocks.draw(&mut self.random) * *unit
            }
            AccessOrder::Partly(partly) => {
                region.begin + partly.next(op, length, region.length, &mut self.random)
            }
            AccessOrder::Mapped { unit, map } => {
                let at = map.draw(&mut self.random);
                length = blocks.draw(map.room(at) * *unit, split, &mut self.random);
                if self.budget.left < length {
                    length = self.budget.last_length(*unit)?;
                }
                // As with fio, an I/O that meets visited blocks ends before them.
                length = map.take(at, length / *unit) * *unit;
                region.begin + at * *unit
            }
            AccessOrder::Sequential(next) => {
                let next = &mut next[op as usize];
                let end = region.begin + region.length;
                if *next + length > end {
                    match blocks.largest_fitting(end - *next, split) {
                        Some(rest) => length = rest,
                        None => *next = region.begin,
                    }
                }
                let offset = *next;
                *next += length;
                offset
            }
        };
        if self.has_rounds {
            *left = left.saturating_sub(length);
            if *left < self.smallest_block {
                self.turns.unfinished.take(file as u64, 1);
            }
        }
        if self.budget.left != u64::MAX {
            self.budget.left -= length;
        }
        Some(NextIo { file: file as u32, op, offset, length: length as u32 })
    }

    /// The file whose turn it is, for a sync, which takes the turn.
    pub fn take_turn(&mut self) -> u32 {
        if self.files.len() == 1 { 0 } else { self.next_file(self.smallest_block) as u32 }
    }

    /// The next file that has a block left. When none has, a new round begins.
    #[inline(never)]
    fn next_file(&mut self, unit: u64) -> usize {
        let (count, turns) = (self.files.len(), &mut self.turns);
        if turns.left > 0 && self.files[turns.current].left >= unit {
            turns.left -= 1;
            return turns.current;
        }
        let begin = match &turns.order {
            TurnOrder::RoundRobin => (turns.current + 1) % count,
            TurnOrder::Sequential => turns.current,
            TurnOrder::Random => self.random.below(count as u64) as usize,
            TurnOrder::Skewed(distribution) => distribution.draw(&mut self.random) as usize,
        };
        let mut at = begin;
        // A file may have a block of the other direction left, but none of this one.
        let mut in_turn = (0..count).map_while(|_| {
            let file = turns.unfinished.next_free(at as u64)? as usize;
            at = file + 1;
            Some(file)
        });
        let file = in_turn.find(|file| self.files[*file].left >= unit);
        let file = file.unwrap_or_else(|| {
            self.files.iter_mut().for_each(|file| file.left = file.region.length);
            turns.unfinished.clear();
            if matches!(turns.order, TurnOrder::Sequential) { 0 } else { begin }
        });
        turns.current = file;
        turns.left = turns.ios - 1;
        file
    }
}

#[cfg(test)]
mod tests {
    use super::testing::{REGION, options, steps};
    use super::*;
    use crate::job::BlockRange;
    use std::collections::HashSet;

    #[test]
    fn sequential_reads_wrap_before_a_partial_block() {
        let all = steps(&options(Pattern::Read), 65 * 4096);
        assert_eq!(all.len(), 65);
        for (index, step) in all.iter().enumerate() {
            let expected = 8192 + (index as u64 % 64) * 4096;
            assert_eq!((step.op, step.offset, step.length), (IoOp::Read, expected, 4096));
        }
    }

    #[test]
    fn random_writes_with_a_map_visit_every_block_once() {
        let all = steps(&options(Pattern::RandWrite), 64 * 4096);
        let offsets: HashSet<u64> = all.iter().map(|step| step.offset).collect();
        assert_eq!(offsets, (0..64).map(|block| 8192 + block * 4096).collect());
    }

    #[test]
    fn trims_visit_every_block_once_in_the_sizes_of_trims() {
        for pattern in [Pattern::Trim, Pattern::RandTrim, Pattern::TrimWrite] {
            let mut options = options(pattern);
            options.block[2] = BlockRange { min: 8192, max: 8192 };
            let all = steps(&options, 64 * 4096);
            assert!(all.iter().all(|step| (step.op, step.length) == (IoOp::Trim, 8192)));
            let offsets: HashSet<u64> = all.iter().map(|step| step.offset).collect();
            assert_eq!(offsets, (0..32).map(|block| 8192 + block * 8192).collect(), "{pattern:?}");
        }
    }

    #[test]
    fn norandommap_draws_aligned_blocks_inside_the_region() {
        let all = steps(&Options { random_map: false, ..options(Pattern::RandRead) }, 1000 * 4096);
        assert_eq!(all.len(), 1000);
        assert!(
            all.iter()
                .all(|s| s.offset % 4096 == 0 && (8192..8192 + 64 * 4096).contains(&s.offset))
        );
        assert!(all.iter().any(|s| s.offset == 8192 + 63 * 4096));
    }

    #[test]
    fn a_mix_keeps_its_share_and_both_block_sizes() {
        let mut options = Options { mix_read: 70, ..options(Pattern::RandReadWrite) };
        options.block[1] = BlockRange { min: 8192, max: 8192 };
        let mut workload = Workload::new(&options, &[REGION], Amount::Endless, 1);
        let all: Vec<NextIo> = (0..10_000).filter_map(|_| workload.next_io()).collect();
        let reads = all.iter().filter(|s| s.op == IoOp::Read).count();
        assert!(reads.abs_diff(7000) < 230, "{reads}");
        assert!(all.iter().all(|s| s.length == if s.op == IoOp::Read { 4096 } else { 8192 }));
    }

    #[test]
    fn bsrange_stays_inside_the_region() {
        let range = BlockRange { min: 512, max: 65_536 };
        let options =
            Options { block: [range; 3], random_map: false, ..options(Pattern::RandRead) };
        let mut workload = Workload::new(&options, &[REGION], Amount::Endless, 1);
        let mut lengths = HashSet::new();
        for _ in 0..10_000 {
            let step = workload.next_io().unwrap();
            assert!(
                step.offset >= 8192 && step.offset + u64::from(step.length) <= 8192 + REGION.length
            );
            lengths.insert(step.length);
        }
        assert_eq!(lengths.len(), 128);
    }

    #[test]
    fn reads_and_writes_of_different_sizes_use_a_grid_each() {
        let mut options = Options { mix_read: 40, ..options(Pattern::RandReadWrite) };
        options.block[1] = BlockRange { min: 8192, max: 8192 };
        let mut seen = HashSet::new();
        for step in steps(&options, 64 * 4096) {
            assert!((step.offset - REGION.begin).is_multiple_of(step.length.into()), "{step:?}");
            assert!(seen.insert((step.offset, step.length)), "{step:?}");
        }
        assert!(seen.len() > 32);
    }

    #[test]
    fn a_pass_continues_where_the_last_one_ended() {
        // The last I/O exceeds the first pass; the second pass is shorter by the excess.
        let amount = Amount::Bytes(3 * 4096 + 100);
        let mut workload = Workload::new(&options(Pattern::Read), &[REGION], amount, 1);
        for blocks in [0..4, 4..7] {
            let offsets: Vec<u64> =
                std::iter::from_fn(|| workload.next_io()).map(|step| step.offset).collect();
            assert_eq!(offsets, blocks.map(|n| 8192 + n * 4096).collect::<Vec<u64>>());
            workload.begin_pass();
        }
    }

    #[test]
    fn read_back_repeats_the_writes_in_their_order() {
        let mut workload =
            Workload::new(&options(Pattern::RandReadWrite), &[REGION], Amount::Bytes(64 * 4096), 1);
        let mut again = workload.clone();
        let written: Vec<_> = std::iter::from_fn(|| workload.next_io())
            .filter(|step| step.op == IoOp::Write)
            .map(|step| NextIo { op: IoOp::Read, ..step })
            .collect();
        assert!((10..54).contains(&written.len()));
        let read: Vec<_> = std::iter::from_fn(|| again.next_read_back()).collect();
        assert_eq!(written, read);
    }

    #[test]
    fn skewed_distributions_stay_inside_the_region() {
        for distribution in [Distribution::Zipf(1.2), Distribution::Pareto(0.2)] {
            let options = Options { distribution, ..options(Pattern::RandRead) };
            let all = steps(&options, 10_000 * 4096);
            assert_eq!(all.len(), 10_000);
            let mut counts = [0u32; 64];
            all.iter().for_each(|step| counts[((step.offset - 8192) / 4096) as usize] += 1);
            counts.sort_unstable();
            assert!(counts[63] > 4 * counts[32], "{distribution:?} {counts:?}");
        }
    }

    #[test]
    fn files_of_unequal_length_are_visited_once_a_round() {
        let regions = [64, 16, 21].map(|kib| Region { begin: 0, length: kib << 10 });
        for pattern in [Pattern::Read, Pattern::RandRead] {
            let amount = Amount::Bytes(101 << 10);
            let mut workload = Workload::new(&options(pattern), &regions, amount, 1);
            for _round in 0..3 {
                let mut seen = HashSet::new();
                while let Some(step) = workload.next_io() {
                    assert!(seen.insert((step.file, step.offset)), "{step:?}");
                }
                assert_eq!(seen.len(), 16 + 4 + 5);
                workload.begin_pass();
            }
        }
    }

    /// A step that looked at each finished file would make this take hours.
    #[test]
    fn a_large_file_among_many_small_ones_is_finished_too() {
        const FILES: usize = 200_000;
        let mut regions = vec![Region { begin: 0, length: 4096 }; FILES];
        regions.push(Region { begin: 0, length: FILES as u64 * 4096 });
        let amount = Amount::Bytes(2 * FILES as u64 * 4096);
        let mut workload = Workload::new(&options(Pattern::Read), &regions, amount, 1);
        for _round in 0..2 {
            let mut visits = vec![0; FILES + 1];
            while let Some(step) = workload.next_io() {
                visits[step.file as usize] += 1;
            }
            assert_eq!(visits.pop(), Some(FILES));
            assert!(visits.iter().all(|count| *count == 1));
            workload.begin_pass();
        }
    }

    #[test]
    fn files_are_finished_in_blocks_of_either_direction() {
        // The rest of a file may be a block of reads, but none of writes.
        let mut options = Options { mix_read: 50, ..options(Pattern::ReadWrite) };
        options.block[1] = BlockRange { min: 8192, max: 8192 };
        let regions = [Region { begin: 0, length: 5 * 4096 }; 40];
        let mut workload = Workload::new(&options, &regions, Amount::Bytes(40 * 5 * 4096), 1);
        let mut bytes = [0u64; 40];
        while let Some(step) = workload.next_io() {
            bytes[step.file as usize] += u64::from(step.length);
        }
        // The last turns may begin the next round.
        assert!(bytes.iter().all(|bytes| *bytes >= 4 * 4096), "{bytes:?}");
    }

    #[test]
    fn several_files_take_turns_and_each_is_visited_once() {
        let mut workload = Workload::new(&options(Pattern::Read), &[REGION; 3], Amount::Endless, 1);
        let files: Vec<u32> = (0..6).filter_map(|_| workload.next_io()).map(|s| s.file).collect();
        assert_eq!(files, [0, 1, 2, 0, 1, 2]);
        let amount = Amount::Bytes(3 * 64 * 4096);
        let mut workload = Workload::new(&options(Pattern::RandRead), &[REGION; 3], amount, 1);
        let all: HashSet<(u32, u64)> =
            std::iter::from_fn(|| workload.next_io()).map(|s| (s.file, s.offset)).collect();
        assert_eq!(all.len(), 3 * 64);
    }
}
