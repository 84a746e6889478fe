//! An export of an NBD server (qemu-nbd, nbdkit, ...) as a device.
//!
//! ```no_run
//! # mod uringfs { pub use uringfs_device as device; }
//! use uringfs::device::{Access, Device, Target};
//!
//! let target: Target = "nbd+unix:///disk?socket=/run/nbd.sock".parse()?;
//! let device = target.open(Access::ReadWrite)?;
//! # Ok::<_, std::io::Error>(())
//! ```
//!
//! - **Connections.** All I/O is done in the threads that issue requests. If the server says that several connections see
//!   the same data (`CAN_MULTI_CONN`), each reactor has its own, up to 16 in all; otherwise all use one.
//! - **A lost connection** is replaced by one to an export of the same flags and block sizes and of at least the same size,
//!   and what the server has not acknowledged is sent again. Requests fail with ETIMEDOUT when this takes longer than the target's timeout
//!   (EIO if there is a server with another export). A connection on which a reply is due, and which is silent for as
//!   long, counts as lost. Later requests fail at once while the server is away.
//! - **Writes that may be lost.** If the server had acknowledged writes that no flush covered, changes and flushes fail
//!   with EIO until the device is opened again. Reads go on.
//! - **An export that grows.** The protocol has no message for it. The server tells each new connection the size. Where a
//!   request needs bytes that a connection from before lacks, another one replaces it, after a flush.
//! - **A server that does not follow the protocol**: requests in flight fail with EPROTO.
//! - **Block sizes.** Requests are whole blocks of the server's minimum size, and at most as long as its maximum. A server
//!   whose smallest block has more than 4096 bytes is refused.
//! - **Other users.** A volume on an export, and a server of the whole, is the only writer among the programs of this network
//!   namespace that use this library, as on a path. Other programs and other machines are kept from writing the same export only by its server.
//! - TLS is not supported.

// The back end.
mod device;
// The first connection.
mod open;
// The queues.
mod queue;
// All links of a device.
mod links;
// A way to the server, across connections.
mod link;
// One connection.
mod connection;
// Requests, and the parts of flushes.
mod job;
// Completions that other threads have received.
mod inbox;
// The state that all connections share.
mod peer;
// Feeds the parsers bytes of a server.
mod fuzz;
// The URI of an export.
mod target;
// The parser of replies.
mod replies;
// The client's side of the handshake.
mod handshake;
// The properties that a server reports of an export.
mod export;
// Why an export cannot be opened.
mod refusal;

pub use device::Nbd;
#[doc(hidden)]
pub use fuzz::parse_bytes_of_a_server;
pub use target::NbdTarget;
