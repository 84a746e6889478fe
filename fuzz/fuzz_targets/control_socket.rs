//! Bytes of a client of a control socket. However they are split, they mean the same; a refusal is one line; and a request
//! means the same when it is sent again.

#![no_main]

use libfuzzer_sys::fuzz_target;
use uringfs_fuse::control::{Heard, Received, Request, VERSION};

// Input: the length of the pieces in one byte, then what the client sends.
fuzz_target!(|bytes: &[u8]| {
    let Some((length, bytes)) = bytes.split_first() else { return };
    let whole = Received::default().push(bytes);
    assert_eq!(in_pieces(bytes, usize::from(*length) + 1), whole);
    match whole {
        Heard::Incomplete => {}
        Heard::Refused(reason) => {
            assert!(!reason.contains('\n') && reason.len() < 200, "{reason}");
        }
        Heard::Request(request) => assert_eq!(sent_again(request), Heard::Request(request)),
    }
});

fn in_pieces(bytes: &[u8], length: usize) -> Heard {
    let mut received = Received::default();
    let mut pieces = bytes.chunks(length).map(|piece| received.push(piece));
    pieces.find(|heard| *heard != Heard::Incomplete).unwrap_or(Heard::Incomplete)
}

fn sent_again(request: Request) -> Heard {
    let hello = format!("{{\"uringfs\":\"control\",\"version\":{VERSION}}}\n");
    Received::default().push(format!("{hello}{}\n", request.to_json()).as_bytes())
}
