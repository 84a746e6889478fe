//! Messages to the server of a guest's disk as no front end would send them. No panics, no hang, and the next front end is
//! served.

#![no_main]

#[path = "../../exports/vhost/tests/harness/front_end.rs"]
mod front_end;
mod vhost;

use std::net::Shutdown;
use std::os::fd::AsFd;
use std::sync::LazyLock;

use front_end::{FrontEnd, Memory, code};
use libfuzzer_sys::fuzz_target;
use rustix::event::{EventfdFlags, eventfd};
use vhost::Served;

static SERVED: LazyLock<Served> = LazyLock::new(|| Served::new(false));

// Input: messages, each with a code, flags, what it has for a descriptor, and the length of its payload before it. The last
// bit of the flags selects whether an acknowledgement is asked for.
fuzz_target!(|bytes: &[u8]| {
    let front_end = FrontEnd::connect(&SERVED.socket);
    let memory = Memory::new();
    let mut rest = bytes;
    while let Some((head, after)) = rest.split_first_chunk::<4>() {
        let [code, flags, descriptor, length] = head.map(usize::from);
        let (payload, after) = after.split_at(length.min(after.len()));
        rest = after;
        let event = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let descriptors = [memory.file.as_fd(), event.as_fd(), memory.file.as_fd()];
        let descriptors = match descriptor % 5 {
            0 => &descriptors[..0],
            1 => &descriptors[..1],
            2 => &descriptors[1..2],
            3 => &descriptors[..2],
            _ => &descriptors[..],
        };
        let flags = if flags & 1 == 1 { 9 } else { 1 };
        if !front_end.send(code as u32 % 48, flags, payload, descriptors) {
            break;
        }
    }
    let _ = front_end.socket.shutdown(Shutdown::Write);
    assert!(front_end.is_closed());
    let next = FrontEnd::connect(&SERVED.socket);
    assert!(next.ask_number(code::GET_FEATURES) > 0);
});
