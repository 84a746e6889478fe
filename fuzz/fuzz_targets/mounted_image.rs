//! Untrusted images: a good volume with arbitrary records under valid checksums. A volume that opens is used. No
//! panics, every listing ends, and no file write goes outside of files.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/uringfs/tests/mounted_image/body.rs"]
mod body;

/// Prints each panic as one line. A panic inside the catalog's library is contained, and is no crash.
fn print_panics_as_lines() {
    std::panic::set_hook(Box::new(|panic| eprintln!("{panic}")));
}

// Input: see `body::run`.
fuzz_target!(init: print_panics_as_lines(), |bytes: &[u8]| body::run(bytes));
