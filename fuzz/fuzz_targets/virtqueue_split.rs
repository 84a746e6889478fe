//! Split rings with arbitrary content. No panics, no hang, and the next guest is served.

#![no_main]

#[path = "../../exports/vhost/tests/harness/front_end.rs"]
mod front_end;
mod rings;
mod vhost;

use std::sync::LazyLock;

use front_end::Queue;
use libfuzzer_sys::fuzz_target;
use vhost::Served;

static SERVED: LazyLock<Served> = LazyLock::new(|| Served::new(false));

// Input: see `rings`.
fuzz_target!(|bytes: &[u8]| rings::run(&SERVED.socket, Queue::split(0, 16), bytes));
