//! The messages of an NBD server to the client: a handshake, then replies to eight requests in flight. No panics, no
//! bytes outside of a read or twice, no read that succeeds without all of its bytes, and refusals of one line.

#![no_main]

use libfuzzer_sys::fuzz_target;
use uringfs::device::backend::nbd::parse_bytes_of_a_server;

// Input: the length of the pieces in which the rest arrives, less one.
fuzz_target!(|bytes: &[u8]| parse_bytes_of_a_server(bytes));
