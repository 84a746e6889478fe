//! The answers of an NVMe controller about itself and about a namespace. No panics: a geometry that a device can have,
//! or a refusal of one line.

#![no_main]

use libfuzzer_sys::fuzz_target;
use uringfs::device::backend::nvme::parse_bytes_of_a_controller;

// Input: the two structures of Identify, one after the other.
fuzz_target!(|bytes: &[u8]| parse_bytes_of_a_controller(bytes));
