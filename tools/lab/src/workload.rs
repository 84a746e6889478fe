//! The sequence of I/Os of one thread of one job: file, direction, offset and length. Knows no clock
//! and no engine. It runs between any two I/Os, so that a step must cost only a few nanoseconds.

use crate::job::{BlockRange, Distribution, Options, Pattern};
use crate::permutation::Permutation;
use crate::random::Random;
use crate::zipf::SkewedDistribution;

/// Read or write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IoOp {
    /// From the target into the slot's buffer.
    Read,
    /// From the slot's buffer to the target.
    Write,
}

/// The next I/O to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NextIo {
    /// Index of the file among the job's files.
    pub file: u32,
    /// Read or write.
    pub op: IoOp,
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub length: u32,
}

/// The part of one file that the job works on, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Region {
    /// First byte.
    pub begin: u64,
    /// Length in bytes.
    pub length: u64,
}

/// The I/Os of a thread, in passes. [`Workload::begin_pass`] begins the next pass.
#[derive(Debug, Clone)]
pub struct Workload {
    files: Vec<FileCursor>,
    next_turn: usize,
    mix: ReadWriteMix,
    blocks: [BlockSizes; 2],
    random: Random,
    budget: Budget,
    /// A file whose blocks have all been visited waits for the other files.
    has_rounds: bool,
}

/// The position in one file.
#[derive(Debug, Clone)]
struct FileCursor {
    region: Region,
    order: AccessOrder,
    /// Bytes not yet visited in this round, if there are rounds.
    left: u64,
}

#[derive(Debug, Clone)]
enum AccessOrder {
    /// The next offset of reads and of writes.
    Sequential([u64; 2]),
    /// Any block, uniformly.
    Uniform { unit: u64, blocks: u64 },
    /// Some blocks more often than others: zipf or pareto.
    Skewed { unit: u64, distribution: SkewedDistribution },
    /// Each block once.
    Permuted { unit: u64, permutation: Permutation },
    /// Each block once, in pieces of several sizes.
    Pieces { unit: u64, pieces: RandomPieces },
    /// Reads and writes have different sizes, and an order each.
    PerDirection(Box<[AccessOrder; 2]>),
}

#[derive(Debug, Clone, Copy)]
enum ReadWriteMix {
    Only(IoOp),
    /// Percentage of reads.
    Reads(u8),
}

#[derive(Debug, Clone, Copy)]
enum BlockSizes {
    Fixed(u32),
    Between { unit: u32, steps: u32 },
}

/// The length of a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Amount {
    /// No end: the clock ends the run.
    Endless,
    /// A number of bytes.
    Bytes(u64),
}

/// The bytes of a pass. The last I/O may exceed them; the next pass is shorter by the excess.
#[derive(Debug, Clone)]
struct Budget {
    pass: u64,
    /// Bytes left in this pass; `u64::MAX` is endless.
    left: u64,
    overshoot: u64,
}

impl Budget {
    /// `once` is the bytes in whole blocks of all files.
    fn new(amount: Amount, once: u64, block: u64) -> Self {
        let pass = match amount {
            Amount::Endless => u64::MAX,
            // As with fio: at the end of the files a rest of less than a block is dropped.
            Amount::Bytes(bytes) => match bytes.checked_rem(once) {
                Some(rest) if bytes >= once && rest < block => bytes - rest,
                _ => bytes,
            },
        };
        Self { pass, left: pass, overshoot: 0 }
    }

    fn begin_pass(&mut self) {
        self.left = self.pass.saturating_sub(self.overshoot);
        self.overshoot = self.overshoot.saturating_sub(self.pass);
    }

    /// The length of the last I/O, a multiple of `unit`, when the drawn length exceeds what is left.
    #[cold]
    fn last_length(&mut self, unit: u64) -> Option<u64> {
        if self.left == 0 {
            return None;
        }
        let length = self.left.next_multiple_of(unit);
        self.overshoot += length - self.left;
        self.left = length;
        Some(length)
    }
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
        };
        let blocks = options.block.map(|range| match range.max - range.min {
            0 => BlockSizes::Fixed(range.max as u32),
            spread => BlockSizes::Between {
                unit: range.min as u32,
                steps: (spread / range.min + 1) as u32,
            },
        });
        let unit = options.smallest_block();
        let once = regions.iter().map(|region| region.length / unit * unit).sum();
        let whole: u64 = regions.iter().map(|region| region.length).sum();
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
        let has_rounds = regions.len() > 1 && ends;
        Self { files, next_turn: 0, mix, blocks, random, budget, has_rounds }
    }

    /// The number of files.
    pub fn files(&self) -> u32 {
        self.files.len() as u32
    }

    /// Whether the workload reads and writes.
    pub fn is_mixed(&self) -> bool {
        matches!(self.mix, ReadWriteMix::Reads(_))
    }

    /// Begins the next pass, at the position where the last one ended, as fio's loops do.
    pub fn begin_pass(&mut self) {
        self.budget.begin_pass();
    }

    /// The next I/O; `None` at the end of the pass.
    #[inline]
    pub fn next_io(&mut self) -> Option<NextIo> {
        let op = self.next_direction();
        self.next_io_in(op)
    }

    /// The next write of the pass, turned into a read of the same range.
    pub fn next_read_back(&mut self) -> Option<NextIo> {
        loop {
            let step = self.next_io()?;
            if step.op == IoOp::Write {
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
        let mut length = match blocks {
            BlockSizes::Fixed(length) => length.into(),
            BlockSizes::Between { unit, steps } => {
                u64::from(unit) * (self.random.below(steps.into()) + 1)
            }
        };
        if self.budget.left < length {
            length = self.budget.last_length(blocks.unit())?;
        }
        let file = if self.files.len() == 1 { 0 } else { self.next_file(blocks.unit()) };
        let FileCursor { region, order, left } = &mut self.files[file];
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
            AccessOrder::Uniform { unit, blocks } => {
                region.begin + self.random.below(*blocks) * *unit
            }
            AccessOrder::Skewed { unit, distribution } => {
                region.begin + distribution.draw(&mut self.random) * *unit
            }
            AccessOrder::Pieces { unit, pieces } => {
                let (at, units) = pieces.next();
                length = units * *unit;
                if self.budget.left < length {
                    length = self.budget.last_length(*unit)?;
                }
                region.begin + at * *unit
            }
            AccessOrder::Sequential(next) => {
                let next = &mut next[op as usize];
                let end = region.begin + region.length;
                if *next + length > end {
                    match blocks.largest_fitting(end - *next) {
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
        }
        if self.budget.left != u64::MAX {
            self.budget.left -= length;
        }
        Some(NextIo { file: file as u32, op, offset, length: length as u32 })
    }

    /// The next file, round robin, that has a block left. When none has, a new round begins.
    #[inline(never)]
    fn next_file(&mut self, unit: u64) -> usize {
        let count = self.files.len();
        let mut in_turn = (self.next_turn..count).chain(0..self.next_turn);
        let file = in_turn.find(|file| self.files[*file].left >= unit);
        let file = file.unwrap_or_else(|| {
            self.files.iter_mut().for_each(|file| file.left = file.region.length);
            self.next_turn
        });
        self.next_turn = if file + 1 == count { 0 } else { file + 1 };
        file
    }
}

impl BlockSizes {
    /// All sizes are multiples of this.
    fn unit(self) -> u64 {
        match self {
            Self::Fixed(unit) | Self::Between { unit, .. } => unit.into(),
        }
    }

    /// The largest block that fits into `room` bytes, when the drawn one does not.
    #[cold]
    fn largest_fitting(self, room: u64) -> Option<u64> {
        match self {
            Self::Fixed(_) => None,
            Self::Between { unit, .. } => {
                let fitting = room / u64::from(unit) * u64::from(unit);
                (fitting > 0).then_some(fitting)
            }
        }
    }
}

/// The order in which a file's blocks are visited.
fn order(options: &Options, region: Region, random: &mut Random) -> AccessOrder {
    if !options.pattern.random() {
        return AccessOrder::Sequential([region.begin; 2]);
    }
    let mut ranges = options.blocks_in_use();
    match (ranges.next(), ranges.next()) {
        // Blocks of one direction must not overlap, or a write would destroy the header of an earlier
        // one. So each size needs a grid of its own.
        (Some(reads), Some(writes)) if reads != writes => {
            let orders = [reads, writes].map(|range| random_order(options, range, region, random));
            AccessOrder::PerDirection(Box::new(orders))
        }
        (range, _) => random_order(options, range.expect("a job reads or writes"), region, random),
    }
}

/// The random order for one range of block sizes.
fn random_order(
    options: &Options,
    range: &BlockRange,
    region: Region,
    random: &mut Random,
) -> AccessOrder {
    let BlockRange { min: unit, max: largest } = *range;
    // An I/O of any size must fit at the last block that can be drawn.
    let blocks = region.length.saturating_sub(largest) / unit + 1;
    let seed = random.bits();
    match options.distribution {
        Distribution::Zipf(theta) => AccessOrder::Skewed {
            unit,
            distribution: SkewedDistribution::zipf(theta, blocks, seed),
        },
        Distribution::Pareto(h) => {
            AccessOrder::Skewed { unit, distribution: SkewedDistribution::pareto(h, blocks, seed) }
        }
        Distribution::Uniform if !options.random_map => AccessOrder::Uniform { unit, blocks },
        Distribution::Uniform if unit == largest => {
            AccessOrder::Permuted { unit, permutation: Permutation::new(blocks, seed) }
        }
        Distribution::Uniform => {
            let units = (region.length / unit).max(1);
            AccessOrder::Pieces { unit, pieces: RandomPieces::new(units, largest / unit, seed) }
        }
    }
}

/// A range of units, cut into pieces of 1 to `max_units` units, all sizes equally likely; each piece is
/// drawn once. Pieces come in pairs of `max_units + 1` units, cut at random. The cut is computed from
/// the pair's position, so that the memory is fixed.
#[derive(Debug, Clone)]
struct RandomPieces {
    units: u64,
    max_units: u64,
    permutation: Permutation,
    seed: u64,
}

impl RandomPieces {
    fn new(units: u64, max_units: u64, seed: u64) -> Self {
        // The rest after the last pair is a piece.
        let rest = u64::from(!units.is_multiple_of(max_units + 1));
        let count = units / (max_units + 1) * 2 + rest;
        Self { units, max_units, permutation: Permutation::new(count, seed), seed }
    }

    /// The next piece: its first unit and its length in units.
    fn next(&mut self) -> (u64, u64) {
        let pair = self.max_units + 1;
        let piece = self.permutation.next();
        let begin = piece / 2 * pair;
        if begin + pair > self.units {
            return (begin, self.units - begin);
        }
        let cut = Random::new(self.seed ^ begin).below(self.max_units) + 1;
        if piece.is_multiple_of(2) { (begin, cut) } else { (begin + cut, pair - cut) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    const REGION: Region = Region { begin: 8192, length: 64 * 4096 + 100 };

    fn steps(options: &Options, amount: u64) -> Vec<NextIo> {
        let mut workload = Workload::new(options, &[REGION], Amount::Bytes(amount), 1);
        std::iter::from_fn(|| workload.next_io()).collect()
    }

    fn options(pattern: Pattern) -> Options {
        Options { pattern, ..Options::default() }
    }

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
            Options { block: [range; 2], random_map: false, ..options(Pattern::RandRead) };
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
                let options = Options { block: [range; 2], ..options(pattern) };
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
