//! Superblocks and their backup with arbitrary content, under valid checksums: opened, or refused with one line.

#![no_main]

mod image;

use image::{
    BLOCK, SIZE, check_and_repair, copy, inspect, print_panics_as_lines, read, sum, write,
};
use libfuzzer_sys::fuzz_target;

/// The block of each slot and of the backup, and the bit of the input that selects it.
const SLOTS: [(u64, u8); 3] = [(0, 1), (16, 2), (SIZE / BLOCK - 1, 8)];

// Input: the selected blocks, then offsets and new bytes. With bit 4 the checksums are not updated.
fuzz_target!(init: print_panics_as_lines(), |bytes: &[u8]| {
    let Some((which, edits)) = bytes.split_first() else { return };
    let sim = copy();
    for (block, bit) in SLOTS {
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
    inspect(&sim);
    check_and_repair(&sim);
});
