//! The bytes that a thread writes, and the check of the bytes that it reads back: the keys
//! `zero_buffers`, `buffer_pattern`, `refill_buffers`, `buffer_compress_percentage`, `buffer_compress_chunk` and `verify`.

use crate::job::{Options, Verify};
use crate::random::Random;
use crate::verify::{Stamp, WrongBlock, check_block, check_pattern_block, write_header};
use crate::workload::IoOp;

/// Fills the buffers of one thread's writes and verifies its reads.
#[derive(Debug)]
pub struct FillPattern {
    fill: Bytes,
    verify: Option<Verify>,
    /// Each chunk is random at first and zero after that.
    chunk_bytes: usize,
    /// Each write gets new bytes.
    refills: bool,
    /// The smallest block; each has a header of its own.
    block_bytes: usize,
    stamp: Stamp,
    random: Random,
}

#[derive(Debug)]
enum Bytes {
    Zeros,
    /// The number of random bytes in each chunk; the rest follows.
    Random(usize, Rest),
    /// A pattern that begins anew at each block of the smallest size.
    Pattern(Vec<u8>),
    /// A pattern that fills the buffer.
    Repeated(Vec<u8>),
}

/// The compressible part of a chunk.
#[derive(Debug)]
enum Rest {
    Zeros,
    Pattern(Vec<u8>),
}

impl FillPattern {
    /// The fill pattern of a job. `run` is written into block headers, to tell runs apart.
    pub fn new(options: &Options, seed: u64, run: u64) -> Self {
        let chunk_bytes = u64::from(options.compress_chunk).min(options.largest_block()) as usize;
        // Several in a row, so that copies and comparisons are of large pieces.
        let row = |pattern: &[u8]| pattern.repeat(chunk_bytes.div_ceil(pattern.len()).max(8));
        let pattern = Some(&options.buffer_pattern[..]).filter(|pattern| !pattern.is_empty());
        // fio's precedence.
        let fill = match (options.compress_percentage, pattern) {
            _ if !options.verify_pattern.is_empty() => Bytes::Pattern(row(&options.verify_pattern)),
            (None, Some(pattern)) => Bytes::Repeated(row(pattern)),
            (_, None) if options.zero_buffers => Bytes::Zeros,
            (None, None) => Bytes::Random(chunk_bytes, Rest::Zeros),
            (Some(share), pattern) => {
                let random = chunk_bytes - chunk_bytes * usize::from(share) / 100;
                Bytes::Random(random, pattern.map_or(Rest::Zeros, |rest| Rest::Pattern(row(rest))))
            }
        };
        let verify = options.verify;
        let varied = matches!(fill, Bytes::Random(1.., _));
        let refilled = options.refill_buffers || options.compress_percentage.is_some();
        let op = match options.pattern {
            pattern if pattern.writes_trimmed() => IoOp::Trim,
            pattern if pattern.writes() => IoOp::Write,
            _ => IoOp::Read,
        };
        Self {
            fill,
            verify,
            chunk_bytes,
            refills: verify.is_some() || varied && refilled,
            block_bytes: options.block[op as usize].min as usize,
            stamp: Stamp { run, generation: 0 },
            random: Random::new(seed),
        }
    }

    /// Whether each write needs a call of [`FillPattern::fill_at`].
    pub fn refills(&self) -> bool {
        self.refills
    }

    /// Whether reads are verified.
    pub fn is_verified(&self) -> bool {
        self.verify.is_some()
    }

    /// Begins the next pass. Block headers carry its number.
    pub fn begin_pass(&mut self) {
        self.stamp.generation = self.stamp.generation.wrapping_add(1);
    }

    /// Fills a buffer. Without [`FillPattern::refills`] it keeps these bytes for all writes.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        match &self.fill {
            Bytes::Zeros => bytes.fill(0),
            Bytes::Random(share, rest) => {
                for chunk in bytes.chunks_mut(self.chunk_bytes) {
                    let (random, others) = chunk.split_at_mut(chunk.len().min(*share));
                    self.random.fill(random);
                    match rest {
                        Rest::Zeros => others.fill(0),
                        // The row of patterns is at least a chunk.
                        Rest::Pattern(row) => others.copy_from_slice(&row[..others.len()]),
                    }
                }
            }
            Bytes::Repeated(row) => {
                for piece in bytes.chunks_mut(row.len()) {
                    piece.copy_from_slice(&row[..piece.len()]);
                }
            }
            Bytes::Pattern(pattern) => {
                // The pattern starts again at each block that may be read by itself.
                let blocks = bytes.chunks_mut(self.block_bytes);
                for piece in blocks.flat_map(|block| block.chunks_mut(pattern.len())) {
                    piece.copy_from_slice(&pattern[..piece.len()]);
                }
            }
        }
    }

    /// Fills a buffer for a write at `offset`, and writes the block headers.
    pub fn fill_at(&mut self, bytes: &mut [u8], offset: u64) {
        self.fill(bytes);
        if self.verify == Some(Verify::Crc32c) {
            for (block, offset) in blocks_with_headers(self.block_bytes, bytes.len(), offset) {
                write_header(&mut bytes[block], offset, self.stamp);
            }
        }
    }

    /// Verifies bytes that were read at `offset`; the error is the first wrong block. With `this_pass`
    /// a block of an earlier pass is wrong, too.
    pub fn verify(&self, bytes: &[u8], offset: u64, this_pass: bool) -> Result<(), WrongBlock> {
        match (&self.verify, &self.fill) {
            (Some(Verify::Crc32c), _) => {
                let stamp = this_pass.then_some(self.stamp);
                blocks_with_headers(self.block_bytes, bytes.len(), offset)
                    .try_for_each(|(block, offset)| check_block(&bytes[block], offset, stamp))
            }
            (Some(Verify::Pattern), Bytes::Pattern(pattern)) => {
                let mut blocks =
                    bytes.chunks(self.block_bytes).zip((offset..).step_by(self.block_bytes));
                blocks.try_for_each(|(block, at)| check_pattern_block(block, at, pattern))
            }
            // verify=pattern without a pattern is refused by the parser.
            _ => Ok(()),
        }
    }
}

/// The blocks of an I/O that have a header: range in the buffer, offset in the file.
fn blocks_with_headers(
    block_bytes: usize,
    length: usize,
    offset: u64,
) -> impl Iterator<Item = (std::ops::Range<usize>, u64)> {
    (0..length / block_bytes).map(move |index| {
        let begin = index * block_bytes;
        (begin..begin + block_bytes, offset + begin as u64)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{BlockRange, Pattern};

    fn options() -> Options {
        Options { pattern: Pattern::Write, ..Options::default() }
    }

    fn filled(options: &Options) -> (FillPattern, Vec<u8>) {
        let mut fill_pattern = FillPattern::new(options, 1, 1);
        let mut bytes = vec![1; 4096];
        fill_pattern.fill(&mut bytes);
        (fill_pattern, bytes)
    }

    fn zeros(bytes: &[u8]) -> usize {
        bytes.iter().filter(|byte| **byte == 0).count()
    }

    #[test]
    fn keys_decide_what_buffers_hold() {
        let (fill_pattern, bytes) = filled(&options());
        assert!(zeros(&bytes) < 50 && !fill_pattern.refills());
        let (fill_pattern, bytes) = filled(&Options { refill_buffers: true, ..options() });
        assert!(zeros(&bytes) < 50 && fill_pattern.refills());
        let both = Options { zero_buffers: true, refill_buffers: true, ..options() };
        let (fill_pattern, bytes) = filled(&both);
        assert!(zeros(&bytes) == 4096 && !fill_pattern.refills());
        let pattern = Options { verify_pattern: vec![1, 2, 3], ..options() };
        assert_eq!(filled(&pattern).1[4093..], [2, 3, 1]);
    }

    #[test]
    fn a_share_of_each_chunk_is_compressible() {
        for compress_chunk in [512, 2048] {
            for (percentage, least, fresh) in [(0, 0, true), (75, 3072, true), (100, 4096, false)] {
                let options =
                    Options { compress_percentage: Some(percentage), compress_chunk, ..options() };
                let (fill_pattern, bytes) = filled(&options);
                assert!((least..least + 50).contains(&zeros(&bytes)), "{percentage}");
                assert_eq!(fill_pattern.refills(), fresh);
                let chunk = compress_chunk as usize;
                let tail = chunk - chunk * usize::from(percentage) / 100;
                assert!(
                    bytes.chunks(chunk).all(|chunk| chunk[tail..].iter().all(|byte| *byte == 0))
                );
                let random = |chunk: &[u8]| chunk[..tail].iter().any(|byte| *byte != 0);
                assert!(tail == 0 || bytes.chunks(chunk).all(random));
            }
        }
    }

    #[test]
    fn a_buffer_pattern_fills_the_buffer_or_what_is_not_random() {
        let pattern = Options { buffer_pattern: vec![1, 2, 3], zero_buffers: true, ..options() };
        let (fill_pattern, bytes) = filled(&pattern);
        assert!(bytes.iter().zip([1, 2, 3].iter().cycle()).all(|(found, byte)| found == byte));
        assert!(!fill_pattern.refills() && !fill_pattern.is_verified());
        let half = Options { compress_percentage: Some(50), ..pattern };
        let (fill_pattern, bytes) = filled(&half);
        assert!(fill_pattern.refills());
        for chunk in bytes.chunks(512) {
            assert_eq!(chunk[256..262], [1, 2, 3, 1, 2, 3]);
            assert_ne!(chunk[..6], [1, 2, 3, 1, 2, 3]);
        }
        let verified = Options { verify_pattern: vec![7], buffer_pattern: vec![1], ..options() };
        assert_eq!(filled(&verified).1, [7; 4096]);
    }

    #[test]
    fn each_block_of_the_smallest_size_verifies_alone() {
        let range = BlockRange { min: 512, max: 4096 };
        let options = Options { verify: Some(Verify::Crc32c), block: [range; 3], ..options() };
        let mut fill_pattern = FillPattern::new(&options, 1, 1);
        let mut bytes = vec![0; 4096];
        fill_pattern.fill_at(&mut bytes, 8192);
        assert_eq!(fill_pattern.verify(&bytes, 8192, true), Ok(()));
        assert_eq!(fill_pattern.verify(&bytes[512..1536], 8704, true), Ok(()));
        bytes[1100] ^= 1;
        assert_eq!(fill_pattern.verify(&bytes, 8192, true).unwrap_err().offset, 8192 + 1024);
    }

    #[test]
    fn a_block_of_an_earlier_pass_is_stale() {
        let options = Options { verify: Some(Verify::Crc32c), ..options() };
        let mut fill_pattern = FillPattern::new(&options, 1, 1);
        let mut bytes = vec![0; 4096];
        fill_pattern.fill_at(&mut bytes, 0);
        fill_pattern.begin_pass();
        assert!(fill_pattern.verify(&bytes, 0, true).is_err());
        assert_eq!(fill_pattern.verify(&bytes, 0, false), Ok(()));
    }
}
