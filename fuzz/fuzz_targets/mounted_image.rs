//! Images of strangers: a good volume with records in which anything may stand, under right sums. What opens is used,
//! without a panic, without a listing that does not end, and without a write where no file lies.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/uringfs/tests/mounted_image/body.rs"]
mod body;

/// A panic inside the catalog's library is contained, and no crash: a line is enough.
fn contained_panics_are_lines() {
    std::panic::set_hook(Box::new(|panic| eprintln!("{panic}")));
}

// Input: see `body::run`.
fuzz_target!(init: contained_panics_are_lines(), |bytes: &[u8]| body::run(bytes));
