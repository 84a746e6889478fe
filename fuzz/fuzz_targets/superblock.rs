//! Superblocks and a copy in which anything may stand, under good sums: opened, or refused with one line.

#![no_main]

mod image;

use image::{BLOCK, SIZE, contained_panics_are_lines, copy, look_at, mend, read, sum, write};
use libfuzzer_sys::fuzz_target;

/// Each slot and the copy, and the bit of the input that has it changed.
const PLACES: [(u64, u8); 3] = [(0, 1), (16, 2), (SIZE / BLOCK - 1, 8)];

// Input: which of them, then offsets and bytes that are put there; with 4 the sums stay what they were.
fuzz_target!(init: contained_panics_are_lines(), |bytes: &[u8]| {
    let Some((which, edits)) = bytes.split_first() else { return };
    let sim = copy();
    for (block, bit) in PLACES {
        if which & bit == 0 {
            continue;
        }
        let mut slot = read(&sim, block);
        for edit in edits.chunks_exact(3) {
            let at = usize::from(u16::from_le_bytes([edit[0], edit[1]])) % slot.len();
            slot[at] = edit[2];
        }
        if which & 4 == 0 {
            let sum = sum(&slot[12..]);
            slot[8..12].copy_from_slice(&sum.to_le_bytes());
        }
        write(&sim, block, &slot);
    }
    look_at(&sim);
    mend(&sim);
});
