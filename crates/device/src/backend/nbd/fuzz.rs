//! Feeds the parsers bytes as a server might send them, for the fuzz target and a test here.

use std::collections::HashMap;

use super::handshake::Handshake;
use super::replies::{Awaited, Event, ExpectedReply, Piece, ReplyParser};
use crate::interface::backend::Access;

/// Reads of this length, in bytes, are in flight.
const READ: u32 = 4096;

/// Requests in flight: reads with the cookies 1 to 4, at as many times 8192 bytes, and others with the cookies 5 to 8.
struct Requests {
    expected: HashMap<u64, ExpectedReply>,
    /// The bytes of reads that have arrived.
    filled: HashMap<u64, Vec<bool>>,
}

impl Awaited for Requests {
    fn expected(&mut self, cookie: u64) -> Option<&mut ExpectedReply> {
        self.expected.get_mut(&cookie)
    }
}

impl Requests {
    fn new() -> Requests {
        let reads = (1..5).map(|cookie| (cookie, ExpectedReply::to_read(cookie * 8192, READ)));
        let others = (5..9).map(|cookie| (cookie, ExpectedReply::to_other()));
        let filled = (1..5).map(|cookie| (cookie, vec![false; READ as usize])).collect();
        Requests { expected: reads.chain(others).collect(), filled }
    }

    fn fill(&mut self, piece: Piece) {
        let Piece { cookie, begin, length } = piece;
        let filled = self.filled.get_mut(&cookie).expect("only reads get bytes");
        let range = &mut filled[begin as usize..(begin + length) as usize];
        assert!(!range.contains(&true), "bytes arrive twice");
        range.fill(true);
    }

    fn take(&mut self, event: Option<Event>) {
        match event {
            None => {}
            Some(Event::Zeros(piece)) => self.fill(piece),
            Some(Event::End { cookie, result }) => {
                assert!(self.expected.remove(&cookie).is_some(), "a request ends twice");
                let filled = self.filled.get(&cookie);
                let is_whole = filled.is_none_or(|filled| !filled.contains(&false));
                assert!(result.is_err() || is_whole, "a read ends without its bytes");
            }
        }
    }
}

/// Parses `bytes` as those of a server: a handshake, then replies. They arrive in pieces as long as the first byte says.
///
/// # Panics
/// When a parser accepts what it must not.
pub fn parse_bytes_of_a_server(bytes: &[u8]) {
    let Some((step, bytes)) = bytes.split_first() else { return };
    let step = usize::from(*step) + 1;
    let Some((begin, structured)) = shake_hands(bytes, step) else { return };
    let (mut parser, mut requests) = (ReplyParser::new(structured), Requests::new());
    let (mut begin, mut end) = (begin, (begin + step).min(bytes.len()));
    loop {
        let needs_more = match parser.payload() {
            Some(piece) => {
                let length = (end - begin).min(piece.length as usize) as u32;
                requests.fill(Piece { length, ..piece });
                begin += length as usize;
                match parser.advance_payload(length, &mut requests) {
                    Ok(event) => requests.take(event),
                    Err(_) => return,
                }
                length == 0
            }
            None => match parser.parse(&bytes[begin..end], &mut requests) {
                Ok((parsed, event)) => {
                    begin += parsed;
                    let is_stuck = parsed == 0 && event.is_none();
                    requests.take(event);
                    is_stuck
                }
                Err(_) => return,
            },
        };
        if needs_more {
            if end == bytes.len() {
                return;
            }
            end = (end + step).min(bytes.len());
        }
    }
}

/// Returns the number of bytes of the handshake, and whether replies are structured. `None` if there is no export.
fn shake_hands(bytes: &[u8], step: usize) -> Option<(usize, bool)> {
    let (mut handshake, mut output) = (Handshake::new("disk"), Vec::new());
    let (mut begin, mut end) = (0, 0);
    loop {
        match handshake.advance(&bytes[begin..end], &mut output) {
            Ok((parsed, Some(export))) => {
                if let Ok(geometry) = export.geometry(Access::Read) {
                    assert!(geometry.size > 0 && geometry.max_transfer > 0);
                    assert!(geometry.size.is_multiple_of(geometry.block_size.into()));
                    assert!(geometry.max_transfer.is_multiple_of(geometry.block_size));
                }
                return Some((begin + parsed, export.structured));
            }
            Ok((0, None)) if end == bytes.len() => return None,
            Ok((0, None)) => end = (end + step).min(bytes.len()),
            Ok((parsed, None)) => begin += parsed,
            Err(refusal) => {
                assert!(!refusal.text.contains('\n'), "{}", refusal.text);
                return None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use uringfs_nbd_protocol::handshake::info::{self, ExportInfo};
    use uringfs_nbd_protocol::handshake::{Greeting, OptionCode, OptionReply, ReplyCode, flags};
    use uringfs_nbd_protocol::transmission::{Chunk, ChunkKind, SimpleReply};
    use zerocopy::IntoBytes;

    use super::*;

    fn handshake(structured: bool) -> Vec<u8> {
        let mut bytes = Greeting::new(flags::FIXED_NEWSTYLE).as_bytes().to_vec();
        let code = if structured { ReplyCode::ACK } else { ReplyCode::ERR_UNSUP };
        bytes.extend(OptionReply::new(OptionCode::STRUCTURED_REPLY.0, code, 0).as_bytes());
        bytes.extend(OptionReply::new(OptionCode::GO.0, ReplyCode::INFO, 12).as_bytes());
        let (size, flags) = ((1u64 << 20).into(), 1.into());
        bytes.extend(ExportInfo { kind: info::EXPORT.into(), size, flags }.as_bytes());
        bytes.extend(OptionReply::new(OptionCode::GO.0, ReplyCode::ACK, 0).as_bytes());
        bytes
    }

    /// Something like a reply.
    fn reply() -> impl Strategy<Value = Vec<u8>> {
        let kind = prop::sample::select(vec![0u16, 1, 2, 5, 0x8001, 0x8002, 0x8077]);
        let body = prop::collection::vec(prop::sample::select(vec![0u8, 1, 16, 32, 255]), 0..40);
        let simple = (0u32..6, 0u64..10);
        (any::<bool>(), kind, 0u16..2, 0u64..10, 0u32..40, body, simple).prop_map(
            |(is_chunk, kind, flags, cookie, length, body, (error, other))| match is_chunk {
                true => {
                    let chunk = Chunk::new(ChunkKind(kind), flags, cookie, length);
                    [chunk.as_bytes(), &body].concat()
                }
                false => [SimpleReply::new(error, other).as_bytes(), &body].concat(),
            },
        )
    }

    proptest! {
        #[test]
        fn bytes_of_a_server_are_accepted_or_refused(
            step in any::<u8>(),
            shakes_hands in any::<bool>(),
            structured in any::<bool>(),
            replies in prop::collection::vec(reply(), 0..8),
            noise in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3),
        ) {
            let mut bytes = vec![step];
            if shakes_hands {
                bytes.extend(handshake(structured));
            }
            bytes.extend(replies.concat());
            for (at, byte) in noise {
                let index = at.index(bytes.len());
                bytes[index] = byte;
            }
            parse_bytes_of_a_server(&bytes);
        }
    }
}
