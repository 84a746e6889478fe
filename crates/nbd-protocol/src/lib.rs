//! The messages of the NBD protocol: numbers, flags and headers. Does no I/O.
//!
//! All numbers are big-endian on the wire. The source is `doc/proto.md` of the NBD project, whose names the constants have
//! without the prefix `NBD_`.
//!
//! ```
//! use uringfs_nbd_protocol::transmission::{Command, Request};
//! use zerocopy::{FromBytes, IntoBytes};
//!
//! let request = Request::new(Command::READ, 0, 7, 4096, 512);
//! let bytes = request.as_bytes();
//! assert_eq!((bytes.len(), &bytes[..4]), (28, &[0x25, 0x60, 0x95, 0x13][..]));
//! let (parsed, rest) = Request::read_from_prefix(bytes).unwrap();
//! assert_eq!((parsed.offset.get(), parsed.length.get(), rest), (4096, 512, &[][..]));
//! ```

// The agreement of client and server before the first request.
pub mod handshake;
// Requests and replies.
pub mod transmission;

/// The longest name of an export, and the longest string of any other kind, in bytes.
pub const MAX_STRING: usize = 4096;
