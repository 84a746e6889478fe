//! Images of strangers: a good volume with records in which anything may stand, under right sums. What opens is used,
//! without a panic, without a listing that does not end, and without a write where no file lies.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/uringfs/tests/mounted_image/body.rs"]
mod body;

// Input: see `body::run`.
fuzz_target!(init: body::contained_panics_are_lines(), |bytes: &[u8]| body::run(bytes));
