//! Logs in which anything may stand, under good sums or bad ones: replayed as far as can be, checked and
//! repaired, without a panic, and sound when that is said.

#![no_main]

mod image;

use image::{BLOCK, contained_panics_are_lines, killed_copy, look_at, mend, read, sum, write};
use libfuzzer_sys::fuzz_target;

/// Bytes of a block that are not the record's own.
const MARK: usize = 8;
/// Where a record's length stands, and where its changes begin.
const LENGTH: usize = 12;
const CHANGES: usize = 24;

// Input: blocks of the log, offsets and bytes that are put there; the last bit of a block says whether the
// sum of the record in it, if it is one of one block, becomes that of what is there now, and the last but one
// whether both halves get it.
fuzz_target!(init: contained_panics_are_lines(), |bytes: &[u8]| {
    let sim = killed_copy();
    let superblock = read(&sim, 0);
    let word = |at: usize| u64::from_le_bytes(superblock[at..at + 8].try_into().unwrap());
    let (start, half) = (word(152), word(160) / 2);
    for edit in bytes.chunks_exact(4) {
        let index = u64::from(edit[0] >> 2) % (2 * half);
        let blocks = match edit[0] & 2 {
            0 => vec![start + index],
            _ => vec![start + index % half, start + index % half + half],
        };
        for block in blocks {
            let mut content = read(&sim, block);
            let at = usize::from(u16::from_le_bytes([edit[1], edit[2]])) % content.len();
            content[at] ^= edit[3];
            let length = u32::from_le_bytes(content[LENGTH..LENGTH + 4].try_into().unwrap());
            let end = (CHANGES + length as usize).min(BLOCK as usize);
            if edit[0] & 1 == 1 {
                let sum = sum(&content[LENGTH..end]);
                content[MARK..LENGTH].copy_from_slice(&sum.to_le_bytes());
            }
            write(&sim, block, &content);
        }
    }
    look_at(&sim);
    mend(&sim);
});
