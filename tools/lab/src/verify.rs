//! Blocks that can be verified when they are read: fio's `verify=crc32c` and `verify=pattern`. With
//! crc32c a block begins with a header: its offset, run and pass, and a CRC32C of everything after
//! the sum.

use crc_fast::{CrcAlgorithm, checksum};
use std::fmt;

/// Bytes of a header: sum 4, magic 4, offset 8, run 8, length 4, generation 4; little-endian.
pub const HEADER_BYTES: usize = 32;

const MAGIC: u32 = u32::from_le_bytes(*b"urfv");

/// The run and the pass that write a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    /// A number of the run that no other run has.
    pub run: u64,
    /// The pass over the file, from 0.
    pub generation: u32,
}

/// A block that failed its verification.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WrongBlock {
    /// Offset of the block in the file, in bytes.
    pub offset: u64,
    /// The expected value, in words.
    pub expected: String,
    /// The value found, in words.
    pub found: String,
}

impl fmt::Display for WrongBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { offset, expected, found } = self;
        write!(f, "wrong block at offset {offset}: expected {expected}, found {found}")
    }
}

/// Writes the header over the first bytes of a block that will lie at `offset`.
///
/// # Panics
/// If the block is shorter than a header.
pub fn write_header(block: &mut [u8], offset: u64, stamp: Stamp) {
    let length = block.len() as u32;
    block[4..8].copy_from_slice(&MAGIC.to_le_bytes());
    block[8..16].copy_from_slice(&offset.to_le_bytes());
    block[16..24].copy_from_slice(&stamp.run.to_le_bytes());
    block[24..28].copy_from_slice(&length.to_le_bytes());
    block[28..32].copy_from_slice(&stamp.generation.to_le_bytes());
    let sum = crc32c(&block[4..]);
    block[..4].copy_from_slice(&sum.to_le_bytes());
}

/// Verifies a block that was read at `offset`: its header, sum and offset. With a stamp, also verifies that
/// this run wrote it, in this pass or a later one.
///
/// # Panics
/// If the block is shorter than a header.
pub fn check_block(block: &[u8], offset: u64, stamp: Option<Stamp>) -> Result<(), WrongBlock> {
    let wrong = |expected: String, found: String| Err(WrongBlock { offset, expected, found });
    let u32_at =
        |at: usize| u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]]);
    let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
    if u32_at(4) != MAGIC {
        let start: String = block[..16].iter().map(|byte| format!("{byte:02x}")).collect();
        return wrong("a header".into(), format!("none; the block begins with {start}"));
    }
    if u32_at(24) as usize != block.len() {
        return wrong(format!("{} bytes", block.len()), format!("a block of {}", u32_at(24)));
    }
    let (stored, found) = (u32_at(0), crc32c(&block[4..]));
    if stored != found {
        return wrong(format!("crc32c {stored:08x}"), format!("{found:08x}"));
    }
    if u64_at(8) != offset {
        return wrong("the block of this offset".into(), format!("that of offset {}", u64_at(8)));
    }
    let (run, generation) = (u64_at(16), u32_at(28));
    match stamp {
        Some(stamp) if run != stamp.run => {
            wrong("a block of this run".into(), "one of an earlier run".into())
        }
        // Another thread on the same file may be in a later pass.
        Some(stamp) if generation < stamp.generation => wrong(
            format!("a block of pass {}", stamp.generation + 1),
            format!("one of pass {}", generation + 1),
        ),
        _ => Ok(()),
    }
}

/// Verifies that a block, read at `offset`, is the pattern repeated.
pub fn check_pattern_block(block: &[u8], offset: u64, pattern: &[u8]) -> Result<(), WrongBlock> {
    let mut pieces = block.chunks(pattern.len()).enumerate();
    let mismatch = pieces.find(|(_, piece)| **piece != pattern[..piece.len()]);
    let Some((index, piece)) = mismatch else { return Ok(()) };
    let right = piece.iter().zip(pattern).take_while(|(found, expected)| found == expected).count();
    let at = index * pattern.len() + right;
    let expected = format!("{:02x} at byte {at}", pattern[at % pattern.len()]);
    Err(WrongBlock { offset, expected, found: format!("{:02x}", block[at]) })
}

fn crc32c(bytes: &[u8]) -> u32 {
    // The crate returns the 32-bit sum in a u64.
    checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAMP: Stamp = Stamp { run: 77, generation: 2 };

    fn block_with_header(offset: u64, stamp: Stamp) -> Vec<u8> {
        let mut block: Vec<u8> = (0..4096u32).map(|n| n as u8).collect();
        write_header(&mut block, offset, stamp);
        block
    }

    #[test]
    fn the_sum_is_crc32c() {
        // The check value of the standard (RFC 3720, appendix B.4: 32 bytes of zeros).
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
    }

    #[test]
    fn a_block_verifies_at_its_offset_and_pass() {
        let block = block_with_header(8192, STAMP);
        assert_eq!(check_block(&block, 8192, Some(STAMP)), Ok(()));
        assert_eq!(check_block(&block, 8192, None), Ok(()));
        assert_eq!(check_block(&block, 8192, Some(Stamp { generation: 1, ..STAMP })), Ok(()));
    }

    #[test]
    fn an_error_names_what_is_wrong() {
        type Corrupt = fn(&mut Vec<u8>);
        let table: [(u64, Option<Stamp>, Corrupt, &str); 7] = [
            (8192, None, |b| b[4000] ^= 1, "expected crc32c "),
            (8192, None, |b| b[0] ^= 1, "expected crc32c "),
            (
                8192,
                None,
                |b| b.fill(0),
                "expected a header, found none; the block begins with 0000",
            ),
            (8192, None, |b| b.truncate(512), "expected 512 bytes, found a block of 4096"),
            (4096, None, |_| (), "block of this offset, found that of offset 8192"),
            (8192, Some(Stamp { run: 78, ..STAMP }), |_| (), "this run, found one of an earlier"),
            (
                8192,
                Some(Stamp { generation: 3, ..STAMP }),
                |_| (),
                "a block of pass 4, found one of pass 3",
            ),
        ];
        for (offset, stamp, corrupt, part) in table {
            let mut block = block_with_header(8192, STAMP);
            corrupt(&mut block);
            let wrong = check_block(&block, offset, stamp).unwrap_err();
            assert_eq!(wrong.offset, offset);
            assert!(wrong.to_string().contains(part), "{part}\n{wrong}");
        }
    }

    #[test]
    fn a_pattern_error_names_the_first_wrong_byte() {
        let pattern = [0xde, 0xad, 0xbe];
        let mut block: Vec<u8> = pattern.iter().copied().cycle().take(100).collect();
        assert_eq!(check_pattern_block(&block, 512, &pattern), Ok(()));
        block[64] = 7;
        let wrong = check_pattern_block(&block, 512, &pattern).unwrap_err().to_string();
        assert_eq!(wrong, "wrong block at offset 512: expected ad at byte 64, found 07");
    }
}
