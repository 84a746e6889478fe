//! Logs with arbitrary content, under valid or invalid checksums: replayed as far as possible, checked and repaired. No
//! panics, and a volume that is reported as sound is sound.

#![no_main]

mod image;

use image::{
    BLOCK, check_and_repair, inspect, killed_copy, print_panics_as_lines, read, sum, write,
};
use libfuzzer_sys::fuzz_target;

/// Bytes at the start of a block that are not part of the record.
const BLOCK_TAG_BYTES: usize = 8;
/// Offsets in a block of a record's length, and of its changes.
const LENGTH_AT: usize = 12;
const CHANGES_AT: usize = 24;

// Input: blocks of the log, offsets and bytes to xor there. The last bit of a block selects whether the checksum of its
// record, if it is a record of one block, is updated to the new content. The last bit but one selects whether both
// halves get the change.
fuzz_target!(init: print_panics_as_lines(), |bytes: &[u8]| {
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
            let length = u32::from_le_bytes(content[LENGTH_AT..LENGTH_AT + 4].try_into().unwrap());
            let end = (CHANGES_AT + length as usize).min(BLOCK as usize);
            if edit[0] & 1 == 1 {
                let sum = sum(&content[LENGTH_AT..end]);
                content[BLOCK_TAG_BYTES..LENGTH_AT].copy_from_slice(&sum.to_le_bytes());
            }
            write(&sim, block, &content);
        }
    }
    inspect(&sim);
    check_and_repair(&sim);
});
