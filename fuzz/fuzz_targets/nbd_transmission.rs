//! Requests of a client of the NBD server. Each has one reply at most, and each reply is well-formed.

#![no_main]

mod nbd_served;

use std::collections::HashMap;

use libfuzzer_sys::fuzz_target;
use nbd_served::exchange;
use uringfs_nbd_protocol::handshake::{OptionCode, OptionHeader};
use uringfs_nbd_protocol::transmission::{
    CHUNK_MAGIC, Chunk, Command, REQUEST_MAGIC, Request, SIMPLE_REPLY_MAGIC, SimpleReply,
};
use zerocopy::{FromBytes, IntoBytes};

// Input: whether replies are structured, in the first byte; then what follows the handshake, with the right magic number before
// each request unless the first byte says otherwise.
fuzz_target!(|bytes: &[u8]| {
    let Some((mode, bytes)) = bytes.split_first() else { return };
    let (structured, raw) = (mode & 1 != 0, mode & 2 != 0);
    let mut sent = 3u32.to_be_bytes().to_vec();
    let option = |code: OptionCode, data: &[u8]| {
        [OptionHeader::new(code, data.len() as u32).as_bytes(), data].concat()
    };
    if structured {
        sent.extend(option(OptionCode::STRUCTURED_REPLY, &[]));
    }
    sent.extend(option(OptionCode::EXPORT_NAME, b"disk"));
    let (requests, unanswered) = requests(bytes, raw);
    sent.extend(requests);
    let received = exchange(&sent);
    // The greeting, the reply to the first option, size and flags.
    let begin = 18 + if structured { 20 } else { 0 } + 10;
    check_replies(&received[begin..], structured, unanswered);
});

/// The bytes of the requests. Unless they are `raw`, each has its index as its number, and is returned, too.
fn requests(bytes: &[u8], raw: bool) -> (Vec<u8>, Option<HashMap<u64, Request>>) {
    if raw {
        return (bytes.to_vec(), None);
    }
    let (mut requests, mut known, mut rest) = (Vec::new(), HashMap::new(), bytes);
    while let Ok((mut request, after)) = Request::read_from_prefix(rest) {
        let cookie = known.len() as u64;
        (request.magic, request.cookie) = (REQUEST_MAGIC.into(), cookie.into());
        let mut payload = 0;
        if request.command.get() == Command::WRITE.0 {
            request.length = (request.length.get() % 4096).into();
            payload = (request.length.get() as usize).min(after.len());
        }
        requests.extend(request.as_bytes());
        requests.extend(&after[..payload]);
        rest = &after[payload..];
        known.insert(cookie, request);
    }
    (requests, Some(known))
}

fn check_replies(mut rest: &[u8], structured: bool, mut unanswered: Option<HashMap<u64, Request>>) {
    while !rest.is_empty() {
        let (cookie, length, after) = match structured {
            true => {
                let (chunk, after) = Chunk::read_from_prefix(rest).expect("a whole chunk");
                assert_eq!(chunk.magic.get(), CHUNK_MAGIC);
                assert_eq!(chunk.flags.get(), 1, "each reply is one chunk");
                (chunk.cookie.get(), Some(chunk.length.get() as usize), after)
            }
            false => {
                let (reply, after) = SimpleReply::read_from_prefix(rest).expect("a whole reply");
                assert_eq!(reply.magic.get(), SIMPLE_REPLY_MAGIC);
                let failed = reply.error.get() != 0;
                (reply.cookie.get(), failed.then_some(0), after)
            }
        };
        let answered = match &mut unanswered {
            Some(unanswered) => Some(unanswered.remove(&cookie).expect("a request has one reply")),
            None => None,
        };
        let data = answered.filter(|request| request.command.get() == Command::READ.0);
        let length = match (length, answered) {
            (Some(length), _) => length,
            (None, Some(_)) => data.map_or(0, |request| request.length.get() as usize),
            // A simple reply has the length of its request, which is not known here.
            (None, None) => return,
        };
        rest = &after[length..];
    }
}
