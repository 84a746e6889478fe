//! The first bytes of a client of the NBD server, and all that it sends before its first request. The server ends the connection,
//! or answers each option with well-formed replies.

#![no_main]

mod nbd_served;

use libfuzzer_sys::fuzz_target;
use nbd_served::exchange;
use uringfs_nbd_protocol::handshake::{Greeting, OPTION_REPLY_MAGIC, OptionReply};
use zerocopy::FromBytes;

// Input: the bytes that the client sends. It never comes to a request: no option is GO or EXPORT_NAME.
fuzz_target!(|bytes: &[u8]| {
    let begins = |option: u8| {
        let head = [b"IHAVEOPT", &[0, 0, 0, option][..]].concat();
        bytes.windows(head.len()).any(|window| window == head)
    };
    if begins(1) || begins(7) {
        return;
    }
    let received = exchange(bytes);
    let Ok((_, mut rest)) = Greeting::read_from_prefix(&received) else {
        panic!("the greeting comes first")
    };
    while !rest.is_empty() {
        let (reply, after) = OptionReply::read_from_prefix(rest).expect("a whole reply");
        assert_eq!(reply.magic.get(), OPTION_REPLY_MAGIC);
        rest = &after[reply.length.get() as usize..];
    }
});
