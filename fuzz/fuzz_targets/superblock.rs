//! Superblocks in which anything may stand, under good sums: opened, or refused with one line.

#![no_main]

mod image;

use image::{contained_panics_are_lines, copy, look_at, mend, read, sum, write};
use libfuzzer_sys::fuzz_target;

const SLOTS: [u64; 2] = [0, 16];

// Input: which slots, then offsets and bytes that are put there.
fuzz_target!(init: contained_panics_are_lines(), |bytes: &[u8]| {
    let Some((which, edits)) = bytes.split_first() else { return };
    let sim = copy();
    for (index, block) in SLOTS.into_iter().enumerate() {
        if which >> index & 1 == 0 {
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
