//! The agreement of client and server before the first request: the fixed newstyle handshake.

use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The first word of the server.
pub const MAGIC: u64 = 0x4e42_444d_4147_4943;
/// The word before each option of a client, and the second word of the server.
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// The word before each reply to an option.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;

/// Flags of the handshake, of either side.
pub mod flags {
    /// Options can fail without ending the connection.
    pub const FIXED_NEWSTYLE: u16 = 1;
    /// The reply to [`EXPORT_NAME`](super::OptionCode::EXPORT_NAME) ends without 124 zeros.
    pub const NO_ZEROES: u16 = 2;
}

/// Flags of an export.
pub mod export_flags {
    /// Always set.
    pub const HAS_FLAGS: u16 = 1;
    /// Writes are refused.
    pub const READ_ONLY: u16 = 1 << 1;
    /// `FLUSH` is served.
    pub const SEND_FLUSH: u16 = 1 << 2;
    /// The flag `FUA` of writes is served.
    pub const SEND_FUA: u16 = 1 << 3;
    /// Seeks are slow.
    pub const ROTATIONAL: u16 = 1 << 4;
    /// `TRIM` is served.
    pub const SEND_TRIM: u16 = 1 << 5;
    /// `WRITE_ZEROES` is served.
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    /// The flag `DF` of reads is served.
    pub const SEND_DF: u16 = 1 << 7;
    /// A flush on one connection covers completed writes of all.
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    /// `CACHE` is served.
    pub const SEND_CACHE: u16 = 1 << 10;
    /// The flag `FAST_ZERO` of `WRITE_ZEROES` is served.
    pub const SEND_FAST_ZERO: u16 = 1 << 11;
}

/// The first message of the server.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Greeting {
    /// [`MAGIC`].
    pub magic: U64,
    /// [`OPTION_MAGIC`].
    pub option_magic: U64,
    /// Of [`flags`].
    pub flags: U16,
}

impl Greeting {
    /// The greeting of a server with these flags.
    pub fn new(flags: u16) -> Greeting {
        let (magic, option_magic) = (MAGIC.into(), OPTION_MAGIC.into());
        Greeting { magic, option_magic, flags: flags.into() }
    }
}

/// The head of an option. `length` bytes follow.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct OptionHeader {
    /// [`OPTION_MAGIC`].
    pub magic: U64,
    /// An [`OptionCode`].
    pub option: U32,
    /// The number of bytes that follow.
    pub length: U32,
}

impl OptionHeader {
    /// The head of an option with so many bytes of data.
    pub fn new(option: OptionCode, length: u32) -> OptionHeader {
        let magic = OPTION_MAGIC.into();
        OptionHeader { magic, option: option.0.into(), length: length.into() }
    }
}

/// The head of a reply to an option. `length` bytes follow.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct OptionReply {
    /// [`OPTION_REPLY_MAGIC`].
    pub magic: U64,
    /// The option that is answered.
    pub option: U32,
    /// A [`ReplyCode`].
    pub reply: U32,
    /// The number of bytes that follow.
    pub length: U32,
}

impl OptionReply {
    /// The head of a reply with so many bytes of data.
    pub fn new(option: u32, reply: ReplyCode, length: u32) -> OptionReply {
        OptionReply {
            magic: OPTION_REPLY_MAGIC.into(),
            option: option.into(),
            reply: reply.0.into(),
            length: length.into(),
        }
    }
}

/// The number of an option. Clients may send numbers that no constant has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionCode(pub u32);

#[allow(missing_docs)]
impl OptionCode {
    pub const EXPORT_NAME: OptionCode = OptionCode(1);
    pub const ABORT: OptionCode = OptionCode(2);
    pub const LIST: OptionCode = OptionCode(3);
    pub const STARTTLS: OptionCode = OptionCode(5);
    pub const INFO: OptionCode = OptionCode(6);
    pub const GO: OptionCode = OptionCode(7);
    pub const STRUCTURED_REPLY: OptionCode = OptionCode(8);
    pub const LIST_META_CONTEXT: OptionCode = OptionCode(9);
    pub const SET_META_CONTEXT: OptionCode = OptionCode(10);
}

/// The number of a server's reply to an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyCode(pub u32);

#[allow(missing_docs)]
impl ReplyCode {
    pub const ACK: ReplyCode = ReplyCode(1);
    pub const SERVER: ReplyCode = ReplyCode(2);
    pub const INFO: ReplyCode = ReplyCode(3);
    pub const META_CONTEXT: ReplyCode = ReplyCode(4);
    pub const ERR_UNSUP: ReplyCode = ReplyCode(ReplyCode::ERROR | 1);
    pub const ERR_POLICY: ReplyCode = ReplyCode(ReplyCode::ERROR | 2);
    pub const ERR_INVALID: ReplyCode = ReplyCode(ReplyCode::ERROR | 3);
    pub const ERR_TLS_REQD: ReplyCode = ReplyCode(ReplyCode::ERROR | 5);
    pub const ERR_UNKNOWN: ReplyCode = ReplyCode(ReplyCode::ERROR | 6);
    pub const ERR_BLOCK_SIZE_REQD: ReplyCode = ReplyCode(ReplyCode::ERROR | 8);
    pub const ERR_TOO_BIG: ReplyCode = ReplyCode(ReplyCode::ERROR | 9);

    const ERROR: u32 = 1 << 31;

    /// Whether it says that the option failed.
    pub fn is_error(self) -> bool {
        self.0 & ReplyCode::ERROR != 0
    }
}

/// The kinds of information that [`OptionCode::INFO`] and [`OptionCode::GO`] ask for.
pub mod info {
    use super::*;

    /// [`ExportInfo`].
    pub const EXPORT: u16 = 0;
    /// The name of the export.
    pub const NAME: u16 = 1;
    /// A description of the export, for people.
    pub const DESCRIPTION: u16 = 2;
    /// [`BlockSizeInfo`].
    pub const BLOCK_SIZE: u16 = 3;

    /// Size and flags of an export.
    #[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
    #[repr(C)]
    pub struct ExportInfo {
        /// [`EXPORT`].
        pub kind: U16,
        /// In bytes.
        pub size: U64,
        /// Of [`export_flags`].
        pub flags: U16,
    }

    /// The lengths and offsets that an export takes, in bytes.
    #[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
    #[repr(C)]
    pub struct BlockSizeInfo {
        /// [`BLOCK_SIZE`].
        pub kind: U16,
        /// Offsets and lengths are multiples of it.
        pub minimum: U32,
        /// Those that are multiples of it are faster.
        pub preferred: U32,
        /// The longest payload.
        pub maximum: U32,
    }
}
