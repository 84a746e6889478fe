//! Requests and replies.

use uringfs_errno::Errno;
use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The word before each request.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// The word before each simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// The word before each chunk of a structured reply.
pub const CHUNK_MAGIC: u32 = 0x668e_33ef;

/// The number of a command. Clients may send numbers that no constant has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command(pub u16);

#[allow(missing_docs)]
impl Command {
    pub const READ: Command = Command(0);
    pub const WRITE: Command = Command(1);
    pub const DISC: Command = Command(2);
    pub const FLUSH: Command = Command(3);
    pub const TRIM: Command = Command(4);
    pub const CACHE: Command = Command(5);
    pub const WRITE_ZEROES: Command = Command(6);
    pub const BLOCK_STATUS: Command = Command(7);
}

/// Flags of a request.
pub mod command_flags {
    /// A change is durable before the reply.
    pub const FUA: u16 = 1;
    /// Zeros take room.
    pub const NO_HOLE: u16 = 1 << 1;
    /// A read is answered in one chunk.
    pub const DF: u16 = 1 << 2;
    /// One extent is described.
    pub const REQ_ONE: u16 = 1 << 3;
    /// Zeros that are not faster than a write are refused.
    pub const FAST_ZERO: u16 = 1 << 4;
}

/// A request. The payload of a write follows.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Request {
    /// [`REQUEST_MAGIC`].
    pub magic: U32,
    /// Of [`command_flags`].
    pub flags: U16,
    /// A [`Command`].
    pub command: U16,
    /// The client's name for the request, which the replies repeat.
    pub cookie: U64,
    /// Its offset in the export, in bytes.
    pub offset: U64,
    /// In bytes.
    pub length: U32,
}

impl Request {
    /// A request. Offset and length in bytes.
    pub fn new(command: Command, flags: u16, cookie: u64, offset: u64, length: u32) -> Request {
        Request {
            magic: REQUEST_MAGIC.into(),
            flags: flags.into(),
            command: command.0.into(),
            cookie: cookie.into(),
            offset: offset.into(),
            length: length.into(),
        }
    }
}

/// A simple reply. The bytes of a read that succeeded follow.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct SimpleReply {
    /// [`SIMPLE_REPLY_MAGIC`].
    pub magic: U32,
    /// A number of [`error_number`], or 0.
    pub error: U32,
    /// That of the request.
    pub cookie: U64,
}

impl SimpleReply {
    /// The reply with this error number, or 0.
    pub fn new(error: u32, cookie: u64) -> SimpleReply {
        let magic = SIMPLE_REPLY_MAGIC.into();
        SimpleReply { magic, error: error.into(), cookie: cookie.into() }
    }
}

/// The head of a chunk of a structured reply. `length` bytes follow.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Chunk {
    /// [`CHUNK_MAGIC`].
    pub magic: U32,
    /// Of [`chunk_flags`].
    pub flags: U16,
    /// A [`ChunkKind`].
    pub kind: U16,
    /// That of the request.
    pub cookie: U64,
    /// The number of bytes that follow.
    pub length: U32,
}

impl Chunk {
    /// The head of a chunk with so many bytes of data.
    pub fn new(kind: ChunkKind, flags: u16, cookie: u64, length: u32) -> Chunk {
        Chunk {
            magic: CHUNK_MAGIC.into(),
            flags: flags.into(),
            kind: kind.0.into(),
            cookie: cookie.into(),
            length: length.into(),
        }
    }
}

/// Flags of a chunk.
pub mod chunk_flags {
    /// It is the last of its reply.
    pub const DONE: u16 = 1;
}

/// The kind of a chunk's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkKind(pub u16);

impl ChunkKind {
    /// Nothing: the end of a reply.
    pub const NONE: ChunkKind = ChunkKind(0);
    /// Bytes at an offset, which comes first, as a `u64`.
    pub const OFFSET_DATA: ChunkKind = ChunkKind(1);
    /// Zeros: [`Hole`].
    pub const OFFSET_HOLE: ChunkKind = ChunkKind(2);
    /// The number of a context as a `u32`, then [`Extent`]s.
    pub const BLOCK_STATUS: ChunkKind = ChunkKind(5);
    /// [`ErrorHead`], then a message for people.
    pub const ERROR: ChunkKind = ChunkKind(1 << 15 | 1);
    /// The same, then the offset that it concerns, as a `u64`.
    pub const ERROR_OFFSET: ChunkKind = ChunkKind(1 << 15 | 2);

    /// Whether it says that the request failed.
    pub fn is_error(self) -> bool {
        self.0 & 1 << 15 != 0
    }
}

/// Zeros that a read found.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Hole {
    /// Their offset in the export, in bytes.
    pub offset: U64,
    /// In bytes.
    pub length: U32,
}

/// The head of an error. `length` bytes of a message follow.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ErrorHead {
    /// A number of [`error_number`].
    pub error: U32,
    /// The length of the message in bytes.
    pub length: U16,
}

/// The flags of a range in the context `base:allocation`.
pub mod extent_flags {
    /// It takes no room.
    pub const HOLE: u32 = 1;
    /// It reads as zeros.
    pub const ZERO: u32 = 1 << 1;
}

/// A range with one state. It begins where the one before it ends.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct Extent {
    /// In bytes.
    pub length: U32,
    /// Of [`extent_flags`] in the context `base:allocation`.
    pub flags: U32,
}

/// The error numbers of the protocol, with the errors that have them.
const ERRORS: [(Errno, u32); 8] = [
    (Errno::PERM, 1),
    (Errno::IO, 5),
    (Errno::NOMEM, 12),
    (Errno::INVAL, 22),
    (Errno::NOSPC, 28),
    (Errno::OVERFLOW, 75),
    (Errno::OPNOTSUPP, 95),
    (Errno::SHUTDOWN, 108),
];

/// The protocol's number of an error. All that it does not know are EIO.
pub fn error_number(errno: Errno) -> u32 {
    match errno {
        Errno::ROFS => 1,
        Errno::FBIG | Errno::DQUOT => 28,
        errno => number_of(errno).unwrap_or(5),
    }
}

fn number_of(errno: Errno) -> Option<u32> {
    ERRORS.iter().find(|(known, _)| *known == errno).map(|(_, number)| *number)
}

/// The error with a number of the protocol. EIO for unknown ones.
pub fn errno(number: u32) -> Errno {
    let known = ERRORS.iter().find(|(_, known)| *known == number);
    known.map_or(Errno::IO, |(errno, _)| *errno)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_is_that_of_its_error() {
        for (error, number) in ERRORS {
            assert_eq!(error_number(error), number);
            assert_eq!(errno(number), error);
        }
        assert_eq!(error_number(Errno::ROFS), 1);
        assert_eq!(error_number(Errno::BADF), 5);
        assert_eq!(errno(9999), Errno::IO);
    }

    #[test]
    fn messages_have_the_sizes_of_the_protocol() {
        assert_eq!(size_of::<Request>(), 28);
        assert_eq!(size_of::<SimpleReply>(), 16);
        assert_eq!(size_of::<Chunk>(), 20);
        assert_eq!(size_of::<ErrorHead>(), 6);
        assert_eq!(size_of::<Extent>(), 8);
    }
}
