//! Catalogs in which anything may stand, under good sums or bad ones: read as far as can be, checked and
//! repaired, without a panic, and sound when that is said.

#![no_main]

mod image;

use image::{contained_panics_are_lines, copy, look_at, mend, read, sum, write};
use libfuzzer_sys::fuzz_target;

/// Where the catalog of a new volume of this size lies; its first block has the sums.
const FIRST: u64 = 512;
const BLOCKS: u64 = 200;

// Input: blocks, offsets and bytes that are put there; the last bit of a block says whether its sum
// becomes that of what is there now.
fuzz_target!(init: contained_panics_are_lines(), |bytes: &[u8]| {
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
    look_at(&sim);
    mend(&sim);
});
