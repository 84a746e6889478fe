//! The sequence of I/Os of one thread of one job: file, direction, offset and length. Knows no clock
//! and no engine. It runs between any two I/Os, so that a step must cost only a few nanoseconds.

use crate::job::{
    BlockRange, BlockShare, Distribution, FileOrder, Options, Pattern, SizeOrPercent, Zone,
};
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
    turns: FileTurns,
    mix: ReadWriteMix,
    blocks: [BlockSizes; 2],
    splits: [BlockSplit; 2],
    random: Random,
    budget: Budget,
    /// A file whose blocks have all been visited waits for the other files.
    has_rounds: bool,
}

/// The choice of the next of several files.
#[derive(Debug, Clone)]
struct FileTurns {
    order: TurnOrder,
    /// I/Os of a turn, and those left of the current one.
    ios: u32,
    left: u32,
    current: usize,
}

#[derive(Debug, Clone)]
enum TurnOrder {
    RoundRobin,
    Sequential,
    Random,
    Skewed(SkewedDistribution),
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

/// Random blocks mixed with blocks that follow the last one: `percentage_random`. Offsets are relative to
/// the region.
#[derive(Debug, Clone)]
struct PartlyRandom {
    /// Percentage of random blocks of reads and of writes.
    percent: [u8; 2],
    /// The end of the last read and of the last write.
    next: [u64; 2],
    unit: u64,
    blocks: RandomBlocks,
}

/// Random blocks without a map.
#[derive(Debug, Clone)]
enum RandomBlocks {
    Uniform(u64),
    Skewed(SkewedDistribution),
    Zoned(Zones),
}

impl RandomBlocks {
    fn draw(&self, random: &mut Random) -> u64 {
        match self {
            Self::Uniform(blocks) => random.below(*blocks),
            Self::Skewed(distribution) => distribution.draw(random),
            Self::Zoned(zones) => zones.draw(random),
        }
    }
}

/// Blocks in zones, uniform in each: percentage, first block and number of blocks.
#[derive(Debug, Clone)]
struct Zones(Box<[(u8, u64, u64)]>);

impl Zones {
    /// The zones of a region of `blocks` blocks of `unit` bytes. A zone has at least one block.
    fn new(zones: &[Zone], unit: u64, blocks: u64) -> Self {
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

    #[inline(never)]
    fn draw(&self, random: &mut Random) -> u64 {
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

impl PartlyRandom {
    /// The next offset of an I/O that fits at each block and into `region` bytes.
    #[inline(never)]
    fn next(&mut self, op: IoOp, length: u64, region: u64, random: &mut Random) -> u64 {
        let next = &mut self.next[op as usize];
        let offset = if random.below(100) < u64::from(self.percent[op as usize]) {
            self.blocks.draw(random) * self.unit
        } else if *next + length <= region {
            *next
        } else {
            0
        };
        *next = offset + length;
        offset
    }
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
    Between {
        unit: u32,
        steps: u32,
    },
    /// The sizes of the direction's [`BlockSplit`], all multiples of `unit`.
    Split {
        unit: u32,
    },
}

/// Block sizes with weights: `bssplit`. Empty for a direction without.
#[derive(Debug, Clone)]
struct BlockSplit(Box<[BlockShare]>);

impl BlockSplit {
    #[inline(never)]
    fn draw(&self, random: &mut Random) -> u64 {
        let mut left = random.below(100);
        for share in &self.0 {
            match left.checked_sub(share.percent.into()) {
                Some(rest) => left = rest,
                None => return share.bytes,
            }
        }
        unreachable!("the percentages add up to 100")
    }

    /// The largest size that fits into `room` bytes.
    fn largest_fitting(&self, room: u64) -> Option<u64> {
        self.0.iter().map(|share| share.bytes).filter(|bytes| *bytes <= room).max()
    }
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
        let blocks = [0, 1].map(|op: usize| {
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
        let splits = options.block_split.clone().map(|shares| BlockSplit(shares.into()));
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
        let in_turn = options.file_service.order != FileOrder::Sequential;
        let finishes = map || !options.pattern.random();
        let has_rounds = regions.len() > 1 && (ends || !in_turn && finishes);
        let turns = FileTurns::new(options, regions.len(), &mut random);
        Self { files, turns, mix, blocks, splits, random, budget, has_rounds }
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
            BlockSizes::Split { .. } => self.splits[op as usize].draw(&mut self.random),
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
            AccessOrder::Zoned { unit, zones } => {
                region.begin + zones.draw(&mut self.random) * *unit
            }
            AccessOrder::Partly(partly) => {
                region.begin + partly.next(op, length, region.length, &mut self.random)
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
                    match blocks.largest_fitting(end - *next, &self.splits[op as usize]) {
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
        let mut in_turn = (begin..count).chain(0..begin);
        let file = in_turn.find(|file| self.files[*file].left >= unit);
        let file = file.unwrap_or_else(|| {
            self.files.iter_mut().for_each(|file| file.left = file.region.length);
            if matches!(turns.order, TurnOrder::Sequential) { 0 } else { begin }
        });
        turns.current = file;
        turns.left = turns.ios - 1;
        file
    }
}

impl FileTurns {
    fn new(options: &Options, files: usize, random: &mut Random) -> Self {
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
        Self { order, ios: options.file_service.ios, left: 0, current }
    }
}

impl BlockSizes {
    /// All sizes are multiples of this.
    fn unit(self) -> u64 {
        match self {
            Self::Fixed(unit) | Self::Between { unit, .. } | Self::Split { unit } => unit.into(),
        }
    }

    /// The largest block that fits into `room` bytes, when the drawn one does not.
    #[cold]
    fn largest_fitting(self, room: u64, split: &BlockSplit) -> Option<u64> {
        match self {
            Self::Fixed(_) => None,
            Self::Split { .. } => split.largest_fitting(room),
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
    let used = [options.pattern.reads(), options.pattern.writes()];
    let sizes = |op: usize| (&options.block[op], &options.block_split[op], &options.zones[op]);
    // Blocks of one direction must not overlap, or a write would destroy the header of an earlier one. So
    // each size needs a grid of its own, and so do zones.
    if used == [true; 2] && sizes(0) != sizes(1) {
        let orders = [0, 1].map(|op| random_order(options, op, region, random));
        return AccessOrder::PerDirection(Box::new(orders));
    }
    random_order(options, usize::from(!used[0]), region, random)
}

/// The random order for the block sizes of one direction.
fn random_order(options: &Options, op: usize, region: Region, random: &mut Random) -> AccessOrder {
    let BlockRange { min: unit, max: largest } = options.block[op];
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
    let used = [options.pattern.reads(), options.pattern.writes()];
    let mut percents = options.random_percentage.iter().zip(used);
    if percents.any(|(percent, used)| used && *percent < 100) {
        let percent = options.random_percentage;
        let partly = PartlyRandom { percent, next: [0; 2], unit, blocks: random_blocks };
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

/// A range of units, cut into pieces; each piece is drawn once. The cut is computed from the piece's
/// number, so that the memory is fixed.
#[derive(Debug, Clone)]
struct RandomPieces {
    units: u64,
    cut: Cut,
    permutation: Permutation,
}

#[derive(Debug, Clone)]
enum Cut {
    /// Pairs of `max_units + 1` units, each cut at random into 1 to `max_units` units: all sizes are equally
    /// likely.
    Pairs { max_units: u64, seed: u64 },
    /// A row of pieces, repeated: the ends of its pieces in units.
    Rows(Box<[u64]>),
}

impl RandomPieces {
    /// Pieces of 1 to `max_units` units.
    fn in_pairs(units: u64, max_units: u64, seed: u64) -> Self {
        // The rest after the last pair is a piece.
        let rest = u64::from(!units.is_multiple_of(max_units + 1));
        let count = units / (max_units + 1) * 2 + rest;
        let cut = Cut::Pairs { max_units, seed };
        Self { units, cut, permutation: Permutation::new(count, seed) }
    }

    /// Pieces of the sizes of a split, each as often as its percentage says.
    fn in_rows(units: u64, unit: u64, split: &[BlockShare], seed: u64) -> Self {
        fn common_divisor(a: u8, b: u8) -> u8 {
            if b == 0 { a } else { common_divisor(b, a % b) }
        }
        let common = split.iter().fold(0, |common, share| common_divisor(common, share.percent));
        let mut row: Vec<u64> = Vec::new();
        for share in split {
            let count = usize::from(share.percent / common);
            row.extend(std::iter::repeat_n(share.bytes / unit, count));
        }
        let mut random = Random::new(seed);
        for last in (1..row.len()).rev() {
            row.swap(last, random.below(last as u64 + 1) as usize);
        }
        let mut end = 0;
        for piece in &mut row {
            end += *piece;
            *piece = end;
        }
        let tail = units % end;
        let in_tail = row.iter().filter(|end| **end < tail).count() + usize::from(tail > 0);
        let count = units / end * row.len() as u64 + in_tail as u64;
        let cut = Cut::Rows(row.into());
        Self { units, cut, permutation: Permutation::new(count, seed) }
    }

    /// The next piece: its first unit and its length in units.
    fn next(&mut self) -> (u64, u64) {
        let piece = self.permutation.next();
        match &self.cut {
            Cut::Pairs { max_units, seed } => {
                let pair = max_units + 1;
                let begin = piece / 2 * pair;
                if begin + pair > self.units {
                    return (begin, self.units - begin);
                }
                let cut = Random::new(seed ^ begin).below(*max_units) + 1;
                if piece.is_multiple_of(2) { (begin, cut) } else { (begin + cut, pair - cut) }
            }
            Cut::Rows(ends) => {
                let (row, index) =
                    (piece / ends.len() as u64, (piece % ends.len() as u64) as usize);
                let row_begin = row * ends[ends.len() - 1];
                let begin = row_begin + if index == 0 { 0 } else { ends[index - 1] };
                // The last piece may be cut at the end of the region.
                let end = (row_begin + ends[index]).min(self.units);
                (begin, end - begin)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::FileService;
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

    /// 4k, 16k and 64k for 50, 30 and 20 percent of the I/Os.
    fn split(pattern: Pattern) -> Options {
        let share = |bytes, percent| BlockShare { bytes, percent };
        let shares = vec![share(4096, 50), share(16_384, 30), share(65_536, 20)];
        Options {
            block: [BlockRange { min: 4096, max: 65_536 }; 2],
            block_split: [shares.clone(), shares],
            ..options(pattern)
        }
    }

    /// The number of I/Os of 4k, 16k and 64k; no other length is allowed.
    fn lengths(steps: &[NextIo]) -> [usize; 3] {
        let count = |length| steps.iter().filter(|step| step.length == length).count();
        let counts = [4096, 16_384, 65_536].map(count);
        assert_eq!(counts.iter().sum::<usize>(), steps.len());
        counts
    }

    #[test]
    fn a_split_has_its_percentages_in_every_order() {
        // Rows of five, three and two pieces: 49 blocks.
        let region = Region { begin: 8192, length: 300 * 49 * 4096 };
        for (pattern, random_map) in
            [(Pattern::Read, true), (Pattern::RandRead, false), (Pattern::RandWrite, true)]
        {
            let options = Options { random_map, ..split(pattern) };
            let mut workload = Workload::new(&options, &[region], Amount::Endless, 1);
            let all: Vec<NextIo> = (0..10_000).filter_map(|_| workload.next_io()).collect();
            for (count, expected) in lengths(&all).into_iter().zip([5000, 3000, 2000]) {
                // Five standard deviations.
                assert!(count.abs_diff(expected) < 250, "{pattern:?}: {count} of {expected}");
            }
            let end = region.begin + region.length;
            assert!(all.iter().all(|s| s.offset >= 8192 && s.offset + u64::from(s.length) <= end));
        }
    }

    #[test]
    fn a_split_with_a_map_visits_each_byte_once() {
        // Whole rows, and rows with pieces that the end cuts.
        for blocks in [1, 3, 31, 10 * (5 + 3 * 4 + 2 * 16), 1000] {
            let region = Region { begin: 8192, length: blocks * 4096 };
            let options = split(Pattern::RandWrite);
            let mut workload = Workload::new(&options, &[region], Amount::Bytes(region.length), 1);
            let mut seen = HashSet::new();
            while let Some(step) = workload.next_io() {
                for block in (step.offset..step.offset + u64::from(step.length)).step_by(4096) {
                    assert!(seen.insert(block), "{blocks}: {step:?}");
                }
            }
            assert_eq!(seen.len() as u64, blocks);
        }
    }

    #[test]
    fn a_percentage_of_random_blocks_leaves_the_others_sequential() {
        let region = Region { begin: 8192, length: 64 << 20 };
        for (percent, distribution) in
            [(0, Distribution::Uniform), (30, Distribution::Uniform), (30, Distribution::Zipf(1.2))]
        {
            let options = Options {
                random_percentage: [percent, 100],
                random_map: false,
                distribution,
                ..options(Pattern::RandRead)
            };
            let mut workload = Workload::new(&options, &[region], Amount::Endless, 1);
            let all: Vec<NextIo> = (0..10_000).filter_map(|_| workload.next_io()).collect();
            let follows = |pair: &&[NextIo]| pair[1].offset == pair[0].offset + 4096;
            let sequential = all.windows(2).filter(follows).count();
            let expected = 9_999 * (100 - usize::from(percent)) / 100;
            // Five standard deviations; a random block may follow by chance, too.
            let most = if percent == 0 { 0 } else { 230 };
            assert!(sequential.abs_diff(expected) <= most, "{percent}: {sequential}");
            assert!(all.iter().all(|s| (8192..8192 + (64 << 20)).contains(&s.offset)));
        }
    }

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
                zones: [zones.clone(), zones],
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

    #[test]
    fn each_direction_continues_after_its_own_last_block() {
        let options = Options {
            random_percentage: [0; 2],
            random_map: false,
            ..options(Pattern::RandReadWrite)
        };
        let all = steps(&options, 64 * 4096);
        for op in [IoOp::Read, IoOp::Write] {
            let offsets = all.iter().filter(|step| step.op == op).map(|step| step.offset);
            let expected: Vec<u64> =
                (0..).map(|n| 8192 + n * 4096).take(offsets.clone().count()).collect();
            assert_eq!(offsets.collect::<Vec<_>>(), expected);
        }
    }

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
