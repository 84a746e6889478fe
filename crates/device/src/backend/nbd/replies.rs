//! Parses replies, simple and structured ones, and checks them against the requests that they answer. Does no I/O: the
//! caller passes what it has received, and puts the bytes of reads where they belong.

use uringfs_errno::Errno;
use uringfs_nbd_protocol::transmission::{
    CHUNK_MAGIC, Chunk, ChunkKind, ErrorHead, Hole, SIMPLE_REPLY_MAGIC, SimpleReply, chunk_flags,
    errno,
};
use zerocopy::{FromBytes, big_endian::U64};

/// The longest error in a chunk, in bytes.
const MAX_ERROR: usize = 64 << 10;

/// The most errors in one reply.
const MAX_ERRORS: u32 = 16;

/// The most gaps that the chunks of a read may leave at a time. Servers send them in order, which leaves none.
const MAX_RANGES: usize = 256;

/// The reply that a request awaits, and what has come of it.
#[derive(Debug)]
pub(super) struct ExpectedReply {
    /// Of a read.
    read: Option<ReadRange>,
    error: Option<Errno>,
    errors: u32,
}

/// The bytes that a read asks for, and those that have come.
#[derive(Debug)]
struct ReadRange {
    offset: u64,
    length: u32,
    /// Sorted, apart from each other: begin and end, relative to the offset.
    arrived: Vec<(u32, u32)>,
}

/// The requests in flight.
pub(super) trait Awaited {
    /// The reply that the request with this cookie awaits. `None` if no such request was sent.
    fn expected(&mut self, cookie: u64) -> Option<&mut ExpectedReply>;
}

/// Bytes of a read: `length` of them from `begin` on, relative to the request's first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) cookie: u64,
    pub(super) begin: u32,
    pub(super) length: u32,
}

/// The content of a reply.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// These bytes are zeros.
    Zeros(Piece),
    /// The reply is complete.
    End { cookie: u64, result: Result<(), Errno> },
}

/// The server does not follow the protocol: nothing that it sends can be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Violation(pub(super) &'static str);

/// Parses the replies of one connection.
#[derive(Debug)]
pub(super) struct ReplyParser {
    structured: bool,
    state: State,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// A reply or chunk begins.
    Head,
    /// These bytes of a read follow.
    Payload(Piece, LastChunk),
    /// A message for people follows, of this length; 0 only at the end of a reply.
    Message { length: usize, cookie: u64, last: LastChunk },
}

/// Whether the chunk is the last of its reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LastChunk {
    Yes,
    No,
}

impl ExpectedReply {
    /// The reply to a read of `length` bytes at `offset`.
    pub(super) fn to_read(offset: u64, length: u32) -> ExpectedReply {
        let read = Some(ReadRange { offset, length, arrived: Vec::new() });
        ExpectedReply { read, error: None, errors: 0 }
    }

    /// The reply to any other request.
    pub(super) fn to_other() -> ExpectedReply {
        ExpectedReply { read: None, error: None, errors: 0 }
    }

    fn result(&self) -> Result<Result<(), Errno>, Violation> {
        match (self.error, &self.read) {
            (Some(error), _) => Ok(Err(error)),
            (None, Some(read)) if !read.is_complete() => {
                Err(Violation("a read that ends without all of its bytes"))
            }
            (None, _) => Ok(Ok(())),
        }
    }
}

impl ReadRange {
    fn is_complete(&self) -> bool {
        self.arrived == [(0, self.length)]
    }

    /// Notes that `length` bytes at the export's `offset` arrive. Returns where they begin in the request.
    fn note(&mut self, offset: u64, length: u32) -> Result<u32, Violation> {
        let outside = Violation("a chunk outside of its read");
        let begin = offset.checked_sub(self.offset).ok_or(outside)?;
        let end = begin.checked_add(length.into()).ok_or(outside)?;
        if end > self.length.into() || length == 0 {
            return Err(outside);
        }
        let (begin, end) = (begin as u32, end as u32);
        let next = self.arrived.partition_point(|(_, other_end)| *other_end <= begin);
        if self.arrived.get(next).is_some_and(|(other_begin, _)| *other_begin < end) {
            return Err(Violation("chunks that overlap"));
        }
        let joins_next = self.arrived.get(next).is_some_and(|(other, _)| *other == end);
        let joins_previous = next > 0 && self.arrived[next - 1].1 == begin;
        match (joins_previous, joins_next) {
            (true, true) => self.arrived[next - 1].1 = self.arrived.remove(next).1,
            (true, false) => self.arrived[next - 1].1 = end,
            (false, true) => self.arrived[next].0 = begin,
            (false, false) if self.arrived.len() == MAX_RANGES => {
                return Err(Violation("a read in too many pieces"));
            }
            (false, false) => self.arrived.insert(next, (begin, end)),
        }
        Ok(begin)
    }
}

impl ReplyParser {
    /// The parser for a connection with structured replies, or without.
    pub(super) fn new(structured: bool) -> ReplyParser {
        ReplyParser { structured, state: State::Head }
    }

    /// The bytes of a read that come next.
    pub(super) fn payload(&self) -> Option<Piece> {
        match self.state {
            State::Payload(piece, _) => Some(piece),
            State::Head | State::Message { .. } => None,
        }
    }

    /// `moved` of these bytes are in the memory of the request.
    ///
    /// # Panics
    /// When these are more than [`Self::payload`] has.
    pub(super) fn advance_payload(
        &mut self,
        moved: u32,
        awaited: &mut impl Awaited,
    ) -> Result<Option<Event>, Violation> {
        let State::Payload(Piece { cookie, begin, length }, last) = self.state else {
            panic!("no bytes of a read are awaited");
        };
        let left = length.checked_sub(moved).expect("these are not more than the rest");
        if left > 0 {
            let rest = Piece { cookie, begin: begin + moved, length: left };
            self.state = State::Payload(rest, last);
            return Ok(None);
        }
        self.end_chunk(cookie, last, awaited)
    }

    /// Parses from the beginning of `input`. Returns the number of bytes parsed, 0 if more are needed, and what they say.
    /// Not while there is a [`Self::payload`].
    pub(super) fn parse(
        &mut self,
        input: &[u8],
        awaited: &mut impl Awaited,
    ) -> Result<(usize, Option<Event>), Violation> {
        match self.state {
            State::Payload(..) => Ok((0, None)),
            State::Message { length, cookie, last } => {
                let parsed = length.min(input.len());
                if parsed < length {
                    self.state = State::Message { length: length - parsed, cookie, last };
                    return Ok((parsed, None));
                }
                Ok((parsed, self.end_chunk(cookie, last, awaited)?))
            }
            State::Head => match input.first_chunk().map(|magic| u32::from_be_bytes(*magic)) {
                None => Ok((0, None)),
                Some(SIMPLE_REPLY_MAGIC) => self.parse_simple(input, awaited),
                Some(CHUNK_MAGIC) if self.structured => self.parse_chunk(input, awaited),
                Some(_) => Err(Violation("a reply without its magic number")),
            },
        }
    }

    fn parse_simple(
        &mut self,
        input: &[u8],
        awaited: &mut impl Awaited,
    ) -> Result<(usize, Option<Event>), Violation> {
        let Ok((reply, _)) = SimpleReply::read_from_prefix(input) else { return Ok((0, None)) };
        let cookie = reply.cookie.get();
        let expected = awaited.expected(cookie).ok_or(UNKNOWN)?;
        let parsed = size_of::<SimpleReply>();
        match (reply.error.get(), &mut expected.read) {
            (_, Some(_)) if self.structured => Err(Violation("a simple reply to a read")),
            (0, Some(read)) => {
                let begin = read.note(read.offset, read.length)?;
                let piece = Piece { cookie, begin, length: read.length };
                self.state = State::Payload(piece, LastChunk::Yes);
                Ok((parsed, None))
            }
            (0, None) => Ok((parsed, Some(Event::End { cookie, result: Ok(()) }))),
            (error, _) => Ok((parsed, Some(Event::End { cookie, result: Err(errno(error)) }))),
        }
    }

    fn parse_chunk(
        &mut self,
        input: &[u8],
        awaited: &mut impl Awaited,
    ) -> Result<(usize, Option<Event>), Violation> {
        let Ok((chunk, data)) = Chunk::read_from_prefix(input) else { return Ok((0, None)) };
        let cookie = chunk.cookie.get();
        let expected = awaited.expected(cookie).ok_or(UNKNOWN)?;
        let length = chunk.length.get() as usize;
        let last = match chunk.flags.get() & chunk_flags::DONE {
            0 => LastChunk::No,
            _ => LastChunk::Yes,
        };
        let head = size_of::<Chunk>();
        match ChunkKind(chunk.kind.get()) {
            ChunkKind::NONE if length == 0 && last == LastChunk::Yes => {
                Ok((head, self.end_chunk(cookie, last, awaited)?))
            }
            ChunkKind::OFFSET_DATA => {
                let read =
                    expected.read.as_mut().ok_or(Violation("bytes that no read asked for"))?;
                let bytes = length.checked_sub(size_of::<U64>()).ok_or(SHORT)? as u32;
                let Ok((offset, _)) = U64::read_from_prefix(data) else { return Ok((0, None)) };
                let begin = read.note(offset.get(), bytes)?;
                self.state = State::Payload(Piece { cookie, begin, length: bytes }, last);
                Ok((head + size_of::<U64>(), None))
            }
            ChunkKind::OFFSET_HOLE => {
                let read =
                    expected.read.as_mut().ok_or(Violation("zeros that no read asked for"))?;
                if length != size_of::<Hole>() {
                    return Err(SHORT);
                }
                let Ok((hole, _)) = Hole::read_from_prefix(data) else { return Ok((0, None)) };
                let begin = read.note(hole.offset.get(), hole.length.get())?;
                let piece = Piece { cookie, begin, length: hole.length.get() };
                // The end of the reply, if this is its last chunk, follows as a message of 0 bytes.
                self.state = match last {
                    LastChunk::Yes => State::Message { length: 0, cookie, last },
                    LastChunk::No => State::Head,
                };
                Ok((head + length, Some(Event::Zeros(piece))))
            }
            kind if kind.is_error() => {
                let message = length.checked_sub(size_of::<ErrorHead>()).ok_or(SHORT)?;
                if length > MAX_ERROR || expected.errors == MAX_ERRORS {
                    return Err(Violation("too many errors, or too long ones"));
                }
                let Ok((error, _)) = ErrorHead::read_from_prefix(data) else {
                    return Ok((0, None));
                };
                if usize::from(error.length.get()) > message {
                    return Err(SHORT);
                }
                expected.errors += 1;
                expected.error.get_or_insert(errno(error.error.get()));
                let parsed = head + size_of::<ErrorHead>();
                if message == 0 {
                    return Ok((parsed, self.end_chunk(cookie, last, awaited)?));
                }
                self.state = State::Message { length: message, cookie, last };
                Ok((parsed, None))
            }
            _ => Err(Violation("a chunk that no request asked for")),
        }
    }

    fn end_chunk(
        &mut self,
        cookie: u64,
        last: LastChunk,
        awaited: &mut impl Awaited,
    ) -> Result<Option<Event>, Violation> {
        self.state = State::Head;
        match last {
            LastChunk::No => Ok(None),
            LastChunk::Yes => {
                let result = awaited.expected(cookie).ok_or(UNKNOWN)?.result()?;
                Ok(Some(Event::End { cookie, result }))
            }
        }
    }
}

const UNKNOWN: Violation = Violation("a reply to no request");
const SHORT: Violation = Violation("a chunk of a wrong length");

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;
    use zerocopy::IntoBytes;

    use super::*;

    #[derive(Default)]
    struct Requests(HashMap<u64, ExpectedReply>);

    impl Awaited for Requests {
        fn expected(&mut self, cookie: u64) -> Option<&mut ExpectedReply> {
            self.0.get_mut(&cookie)
        }
    }

    /// A read of 4096 bytes at 8192 with cookie 1, a write with cookie 2.
    fn requests() -> Requests {
        let read = ExpectedReply::to_read(8192, 4096);
        Requests([(1, read), (2, ExpectedReply::to_other())].into())
    }

    /// The client's view: the filled parts of the read, and the ends.
    type Seen = (Vec<(u32, u32)>, Vec<(u64, Result<(), Errno>)>);

    fn run(structured: bool, input: &[u8], step: usize) -> Result<Seen, Violation> {
        let (mut parser, mut requests) = (ReplyParser::new(structured), requests());
        let (mut begin, mut end) = (0, 0);
        let (mut filled, mut ended) = (Vec::new(), Vec::new());
        loop {
            let event = match parser.payload() {
                Some(piece) => {
                    let moved = (end - begin).min(piece.length as usize) as u32;
                    if moved == 0 && end == input.len() {
                        return Ok((filled, ended));
                    }
                    if moved > 0 {
                        filled.push((piece.begin, moved));
                        begin += moved as usize;
                        parser.advance_payload(moved, &mut requests)?
                    } else {
                        end = (end + step).min(input.len());
                        None
                    }
                }
                None => {
                    let (parsed, event) = parser.parse(&input[begin..end], &mut requests)?;
                    begin += parsed;
                    if parsed == 0 && event.is_none() {
                        if end == input.len() {
                            return Ok((filled, ended));
                        }
                        end = (end + step).min(input.len());
                    }
                    event
                }
            };
            match event {
                None => {}
                Some(Event::Zeros(piece)) => filled.push((piece.begin, piece.length)),
                Some(Event::End { cookie, result }) => {
                    assert!(requests.0.remove(&cookie).is_some());
                    ended.push((cookie, result));
                }
            }
        }
    }

    fn chunk(kind: ChunkKind, done: bool, cookie: u64, data: &[u8]) -> Vec<u8> {
        let flags = if done { chunk_flags::DONE } else { 0 };
        let mut bytes = Chunk::new(kind, flags, cookie, data.len() as u32).as_bytes().to_vec();
        bytes.extend(data);
        bytes
    }

    fn data(done: bool, offset: u64, length: usize) -> Vec<u8> {
        let body = [&offset.to_be_bytes()[..], &vec![7; length]].concat();
        chunk(ChunkKind::OFFSET_DATA, done, 1, &body)
    }

    fn hole(done: bool, offset: u64, length: u32) -> Vec<u8> {
        let hole = Hole { offset: offset.into(), length: length.into() };
        chunk(ChunkKind::OFFSET_HOLE, done, 1, hole.as_bytes())
    }

    fn error(done: bool, cookie: u64, number: u32, message: &[u8]) -> Vec<u8> {
        let head = ErrorHead { error: number.into(), length: (message.len() as u16).into() };
        chunk(ChunkKind::ERROR, done, cookie, &[head.as_bytes(), message].concat())
    }

    fn simple(error: u32, cookie: u64) -> Vec<u8> {
        SimpleReply::new(error, cookie).as_bytes().to_vec()
    }

    fn violation(structured: bool, parts: &[Vec<u8>]) -> &'static str {
        let whole = run(structured, &parts.concat(), 1 << 20);
        let bytewise = run(structured, &parts.concat(), 1);
        assert_eq!(whole, bytewise);
        whole.expect_err("it violates the protocol").0
    }

    #[test]
    fn replies_are_understood_whatever_the_pieces() {
        let done = |cookie| chunk(ChunkKind::NONE, true, cookie, &[]);
        let input = [
            data(false, 8192 + 1024, 1024),
            simple(0, 2),
            hole(false, 8192 + 2048, 2048),
            data(false, 8192, 1024),
            done(1),
        ]
        .concat();
        for step in [1, 3, 28, 1000, 1 << 20] {
            let (filled, ended) = run(true, &input, step).unwrap();
            assert_eq!(filled.iter().map(|(_, length)| length).sum::<u32>(), 4096);
            assert_eq!(ended, [(2, Ok(())), (1, Ok(()))]);
        }
        let (_, ended) = run(true, &[hole(true, 8192, 4096), done(2)].concat(), 1).unwrap();
        assert_eq!(ended, [(1, Ok(())), (2, Ok(()))]);
    }

    #[test]
    fn simple_replies_to_reads_have_their_bytes() {
        let input = [simple(0, 1), vec![9; 4096], simple(28, 2)].concat();
        for step in [1, 16, 17, 5000] {
            let (filled, ended) = run(false, &input, step).unwrap();
            assert_eq!(filled.iter().map(|(_, length)| length).sum::<u32>(), 4096);
            assert_eq!(ended, [(1, Ok(())), (2, Err(Errno::NOSPC))]);
        }
        let (filled, ended) = run(false, &simple(5, 1), 100).unwrap();
        assert_eq!((filled, ended), (vec![], vec![(1, Err(Errno::IO))]));
    }

    #[test]
    fn an_error_ends_a_read_that_has_begun() {
        let input = [
            data(false, 8192, 512),
            error(false, 1, 28, b"full"),
            chunk(ChunkKind(1 << 15 | 77), false, 1, &[0, 0, 0, 5, 0, 0, 1, 2, 3]),
            chunk(ChunkKind::NONE, true, 1, &[]),
            error(true, 2, 12345, b""),
        ]
        .concat();
        for step in [1, 21, 5000] {
            let (_, ended) = run(true, &input, step).unwrap();
            assert_eq!(ended, [(1, Err(Errno::NOSPC)), (2, Err(Errno::IO))]);
        }
    }

    #[test]
    fn violations_are_found() {
        let none = |done, cookie, data: &[u8]| chunk(ChunkKind::NONE, done, cookie, data);
        for (structured, parts, expected) in [
            (true, vec![vec![1, 2, 3, 4]], "magic"),
            (false, vec![none(true, 2, &[])], "magic"),
            (true, vec![simple(0, 3)], "no request"),
            (true, vec![none(true, 3, &[])], "no request"),
            (true, vec![simple(0, 2), simple(0, 2)], "no request"),
            (true, vec![simple(0, 1)], "simple reply"),
            (true, vec![simple(5, 1)], "simple reply"),
            (true, vec![none(true, 1, &[])], "all of its bytes"),
            (true, vec![data(true, 8192, 4095)], "all of its bytes"),
            (true, vec![hole(true, 8193, 4095)], "all of its bytes"),
            (true, vec![none(false, 2, &[])], "no request asked for"),
            (true, vec![none(true, 2, &[1])], "no request asked for"),
            (true, vec![chunk(ChunkKind::BLOCK_STATUS, true, 1, &[0; 12])], "no request asked for"),
            (true, vec![chunk(ChunkKind::OFFSET_DATA, true, 2, &[0; 12])], "no read asked for"),
            (true, vec![chunk(ChunkKind::OFFSET_HOLE, true, 2, &[0; 12])], "no read asked for"),
            (true, vec![chunk(ChunkKind::OFFSET_DATA, true, 1, &[0; 7]), vec![0]], "wrong length"),
            (true, vec![data(true, 8192, 0)], "outside"),
            (true, vec![data(true, 8192, 4097)], "outside"),
            (true, vec![data(true, 8191, 512)], "outside"),
            (true, vec![data(true, u64::MAX, 512)], "outside"),
            (true, vec![hole(true, 8192, 0)], "outside"),
            (true, vec![hole(true, 8192, u32::MAX)], "outside"),
            (true, vec![hole(true, u64::MAX - 5, 4096)], "outside"),
            (true, vec![chunk(ChunkKind::OFFSET_HOLE, true, 1, &[0; 13])], "wrong length"),
            (true, vec![data(false, 8192, 512), data(true, 8192 + 511, 512)], "overlap"),
            (true, vec![data(false, 8192 + 512, 512), hole(true, 8192, 513)], "overlap"),
            (true, vec![hole(false, 8192 + 512, 512), hole(true, 8192, 2048)], "overlap"),
            (true, vec![chunk(ChunkKind::ERROR, true, 2, &[0; 5])], "wrong length"),
            (true, vec![chunk(ChunkKind::ERROR, true, 2, &[0, 0, 0, 5, 0, 1])], "wrong length"),
            (true, vec![error(false, 2, 5, b""); 17], "too many errors"),
        ] {
            let found = violation(structured, &parts);
            assert!(found.contains(expected), "{parts:?}: {found}");
        }
        let long = Chunk::new(ChunkKind::ERROR, 1, 2, u32::MAX);
        assert!(violation(true, &[long.as_bytes().to_vec()]).contains("too long"));
        let scattered: Vec<_> = (0..257).map(|at| hole(false, 8192 + 2 * at, 1)).collect();
        assert!(violation(true, &scattered).contains("too many pieces"));
    }

    proptest! {
        #[test]
        fn arrived_ranges_are_those_of_a_model(
            pieces in proptest::collection::vec((0u64..40, 1u32..20), 1..40),
        ) {
            let mut read = ReadRange { offset: 100, length: 32, arrived: Vec::new() };
            let mut model = [false; 32];
            for (begin, length) in pieces {
                let end = begin as usize + length as usize;
                let fits = end <= 32 && !model[begin as usize..end].contains(&true);
                prop_assert_eq!(read.note(100 + begin, length).is_ok(), fits);
                if fits {
                    model[begin as usize..end].fill(true);
                }
                prop_assert!(read.arrived.windows(2).all(|two| two[0].1 < two[1].0));
                prop_assert_eq!(read.is_complete(), !model.contains(&false));
            }
        }
    }
}
