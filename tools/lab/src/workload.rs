//! Which I/O comes next: file, direction, offset and length, for one thread of one job. Knows no
//! clock and no engine. A few nanoseconds a step, as it runs between any two I/Os.

use crate::job::{Options, Pattern};
use crate::permutation::Permutation;
use crate::random::Random;

/// Read or write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IoOp {
    /// From the target into the slot's buffer.
    Read,
    /// From the slot's buffer to the target.
    Write,
}

/// One I/O to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// Which of the job's files, from 0.
    pub file: u32,
    /// The direction.
    pub op: IoOp,
    /// Where in the file, in bytes.
    pub offset: u64,
    /// How many bytes.
    pub length: u32,
}

/// The part of one file that the job works on, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Region {
    /// First byte.
    pub begin: u64,
    /// Bytes from there.
    pub length: u64,
}

/// The endless or bounded sequence of a thread's I/Os.
#[derive(Debug)]
pub struct Workload {
    files: Vec<Cursor>,
    turn: usize,
    mix: Mix,
    blocks: [Blocks; 2],
    random: Random,
    /// Bytes still to do; `u64::MAX` has no end.
    left: u64,
}

/// Where the next I/O of a file lies.
#[derive(Debug)]
struct Cursor {
    region: Region,
    order: Order,
}

#[derive(Debug)]
enum Order {
    /// The next offset of reads and of writes.
    Sequential([u64; 2]),
    /// Any block of this many.
    Drawn { unit: u64, blocks: u64 },
    /// Every block once.
    Permuted { unit: u64, permutation: Permutation },
}

#[derive(Debug, Clone, Copy)]
enum Mix {
    Only(IoOp),
    /// Reads in a hundred.
    Reads(u8),
}

#[derive(Debug, Clone, Copy)]
enum Blocks {
    Fixed(u32),
    Between { unit: u32, steps: u32 },
}

/// How long a workload goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Amount {
    /// Until the clock ends it.
    Endless,
    /// So many bytes.
    Bytes(u64),
}

impl Workload {
    /// The workload of one thread over `regions`, one a file; threads of a job differ in `seed`.
    pub fn new(options: &Options, regions: &[Region], amount: Amount, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let [read, write] = options.block;
        let fixed = read.min == read.max && write.min == write.max && read == write;
        let (unit, largest) = (options.smallest_block(), options.largest_block());
        let files = regions.iter().map(|&region| {
            let order = if !options.pattern.random() {
                Order::Sequential([region.begin; 2])
            } else if options.random_map && (fixed || unit == largest) {
                let blocks = (region.length / unit).max(1);
                Order::Permuted { unit, permutation: Permutation::new(blocks, random.bits()) }
            } else {
                // Blocks of several sizes overlap, whatever the order: they are drawn.
                let room = region.length.saturating_sub(largest);
                Order::Drawn { unit, blocks: room / unit + 1 }
            };
            Cursor { region, order }
        });
        let files = files.collect();
        let mix = match options.pattern {
            Pattern::Read | Pattern::RandRead => Mix::Only(IoOp::Read),
            Pattern::Write | Pattern::RandWrite => Mix::Only(IoOp::Write),
            Pattern::ReadWrite | Pattern::RandReadWrite => Mix::Reads(options.mix_read),
        };
        let blocks = options.block.map(|range| match range.max - range.min {
            0 => Blocks::Fixed(range.max as u32),
            spread => {
                Blocks::Between { unit: range.min as u32, steps: (spread / range.min + 1) as u32 }
            }
        });
        let left = match amount {
            Amount::Endless => u64::MAX,
            Amount::Bytes(bytes) => bytes,
        };
        Self { files, turn: 0, mix, blocks, random, left }
    }

    /// How many files it goes over.
    pub fn files(&self) -> u32 {
        self.files.len() as u32
    }

    /// The next I/O, or `None` when the amount is done.
    #[inline]
    pub fn next_step(&mut self) -> Option<Step> {
        let op = match self.mix {
            Mix::Only(op) => op,
            Mix::Reads(share) if self.random.below(100) < u64::from(share) => IoOp::Read,
            Mix::Reads(_) => IoOp::Write,
        };
        let length = match self.blocks[op as usize] {
            Blocks::Fixed(length) => length,
            Blocks::Between { unit, steps } => unit * (self.random.below(steps.into()) as u32 + 1),
        };
        if self.left < u64::from(length) {
            return None;
        }
        if self.left != u64::MAX {
            self.left -= u64::from(length);
        }
        let file = self.turn;
        self.turn = if file + 1 == self.files.len() { 0 } else { file + 1 };
        let Cursor { region, order } = &mut self.files[file];
        let offset = match order {
            Order::Permuted { unit, permutation } => region.begin + permutation.next() * *unit,
            Order::Drawn { unit, blocks } => region.begin + self.random.below(*blocks) * *unit,
            Order::Sequential(next) => {
                let next = &mut next[op as usize];
                if *next + u64::from(length) > region.begin + region.length {
                    *next = region.begin;
                }
                let offset = *next;
                *next += u64::from(length);
                offset
            }
        };
        Some(Step { file: file as u32, op, offset, length })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::BlockRange;
    use std::collections::HashSet;

    const REGION: Region = Region { begin: 8192, length: 64 * 4096 + 100 };

    fn steps(options: &Options, amount: u64) -> Vec<Step> {
        let mut workload = Workload::new(options, &[REGION], Amount::Bytes(amount), 1);
        std::iter::from_fn(|| workload.next_step()).collect()
    }

    fn options(pattern: Pattern) -> Options {
        Options { pattern, ..Options::default() }
    }

    #[test]
    fn sequential_reads_go_forward_and_wrap_before_a_partial_block() {
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
    fn a_mix_keeps_its_share_and_its_own_block_sizes() {
        let mut options = Options { mix_read: 70, ..options(Pattern::RandReadWrite) };
        options.block[1] = BlockRange { min: 8192, max: 8192 };
        let mut workload = Workload::new(&options, &[REGION], Amount::Endless, 1);
        let all: Vec<Step> = (0..10_000).filter_map(|_| workload.next_step()).collect();
        let reads = all.iter().filter(|s| s.op == IoOp::Read).count();
        assert!(reads.abs_diff(7000) < 230, "{reads}");
        assert!(all.iter().all(|s| s.length == if s.op == IoOp::Read { 4096 } else { 8192 }));
    }

    #[test]
    fn a_range_of_blocks_stays_inside_the_region() {
        let range = BlockRange { min: 512, max: 65_536 };
        let options = Options { block: [range; 2], ..options(Pattern::RandRead) };
        let mut workload = Workload::new(&options, &[REGION], Amount::Endless, 1);
        let mut lengths = HashSet::new();
        for _ in 0..10_000 {
            let step = workload.next_step().unwrap();
            assert!(
                step.offset >= 8192 && step.offset + u64::from(step.length) <= 8192 + REGION.length
            );
            lengths.insert(step.length);
        }
        assert_eq!(lengths.len(), 128);
    }

    #[test]
    fn several_files_take_turns() {
        let mut workload = Workload::new(&options(Pattern::Read), &[REGION; 3], Amount::Endless, 1);
        let files: Vec<u32> = (0..6).filter_map(|_| workload.next_step()).map(|s| s.file).collect();
        assert_eq!(files, [0, 1, 2, 0, 1, 2]);
    }
}
