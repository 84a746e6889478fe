//! Catalogs with arbitrary content, under valid or invalid checksums: read as far as possible, checked and repaired. No
//! panics, and a volume that is reported as sound is sound.

#![no_main]

mod image;

use image::{check_and_repair, copy, inspect, print_panics_as_lines, read, sum, write};
use libfuzzer_sys::fuzz_target;

/// First block of the catalog in a new volume of this size. This block holds the checksums.
const FIRST: u64 = 512;
const BLOCKS: u64 = 200;

// Input: blocks, offsets and bytes to xor there. The last bit of a block selects whether its checksum is updated to the
// new content.
fuzz_target!(init: print_panics_as_lines(), |bytes: &[u8]| {
    let sim = copy();
    for edit in bytes.chunks_exact(4) {
        let page = u64::from(edit[0] >> 1) % BLOCKS;
        let block = FIRST + 1 + page;
        let mut content = read(&sim, block);
        let at = usize::from(u16::from_le_bytes([edit[1], edit[2]])) % content.len();
        content[at] ^= edit[3];
        write(&sim, block, &content);
        if edit[0] & 1 == 1 {
            let mut sums = read(&sim, FIRST);
            let entry = match sum(&content) {
                sum if sum.count_ones() < 2 => !sum,
                sum => sum,
            };
            sums[page as usize * 4..][..4].copy_from_slice(&entry.to_le_bytes());
            write(&sim, FIRST, &sums);
        }
    }
    inspect(&sim);
    check_and_repair(&sim);
});
