//! Redo logs in which anything may stand, under good sums or bad ones: read as far as can be, checked and
//! repaired, without a panic, and sound when that is said.

#![no_main]

mod image;

use image::{copy_with_log, look_at, mend, read, sum, write};
use libfuzzer_sys::fuzz_target;

/// Where a record's sum lies, and where its cover begins.
const SUM: std::ops::Range<usize> = 8..12;
/// Where its number of bytes lies, and how many bytes come before those.
const LENGTH: std::ops::Range<usize> = 12..16;
const HEADER: usize = 24;

// Input: blocks of the log, offsets and bytes that are put there; the last bit of a block says whether its
// record gets the sum of what is there now.
fuzz_target!(init: {
    // What goes wrong inside the catalog's library is contained, and no crash.
    drop(std::panic::take_hook());
}, |bytes: &[u8]| {
    let (sim, log) = copy_with_log();
    for edit in bytes.chunks_exact(4) {
        let block = log.start + u64::from(edit[0] >> 1) % (log.end - log.start);
        let mut content = read(&sim, block);
        let at = usize::from(u16::from_le_bytes([edit[1], edit[2]])) % content.len();
        content[at] ^= edit[3];
        if edit[0] & 1 == 1 {
            let length = u32::from_le_bytes(content[LENGTH].try_into().unwrap()) as usize;
            let end = (HEADER + length).min(content.len());
            let sum = sum(&content[SUM.end..end]);
            content[SUM].copy_from_slice(&sum.to_le_bytes());
        }
        write(&sim, block, &content);
    }
    look_at(&sim);
    mend(&sim);
});
