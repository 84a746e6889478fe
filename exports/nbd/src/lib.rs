//! Serves files as disks by the NBD protocol. [`Exports`] are the files, by name; a [`Server`] serves them on its sockets.
//!
//! ```no_run
//! use std::os::unix::net::UnixListener;
//! use uringfs::{OpenOptions, Volume};
//! use uringfs_nbd::{Export, Exports, Server, ServerOptions};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let volume = Volume::open("disk.img")?;
//! let options = OpenOptions::new().read(true).write(true).direct(true);
//! let exports = Exports::new();
//! exports.add(Export::new("vm1", options.open(&volume, "/vm1.raw")?))?;
//! let mut server = Server::new(exports, ServerOptions::new())?;
//! server.listen_unix(UnixListener::bind("/run/disks.sock")?);
//! server.serve()?;
//! # Ok(())
//! # }
//! ```
//!
//! Then `nbdinfo nbd+unix:///vm1?socket=/run/disks.sock` describes the disk.
//!
//! A connection belongs to one thread. Its reactor receives a request, issues it to the file, and sends the reply: no other thread
//! takes part. Bytes of a read go from the device to the memory that is sent.
//!
//! A flush covers the completed writes of all connections, so clients may use several.
//!
//! Clients that come, go, fail and are refused are events of `tracing`; no request is one.

// The modules, top down. Each imports only from modules below it.

// The public face: sockets, threads, the end.
mod server;

// A thread's connections.
mod worker;

// A connection: handshake, then requests.
mod connection;

// The log's events of a connection.
mod client;

// Replies on their way to the client.
mod outbox;

// The bytes that a client sends.
mod inbox;

// The bytes of a connection, plain or over TLS.
mod channel;

// Certificates, and the encrypted side of a connection.
mod tls;

// Whether a connection moves its bytes.
mod progress;

// Memory of requests, and how much of it there is.
mod memory;

// Bytes of a request into an operation.
mod request;

// Requests on a file.
mod operations;

// The agreement of client and server before the first request.
mod handshake;

// The served files, by name.
mod exports;

pub use exports::{Export, Exports};
pub use server::{Server, ServerOptions, Stopper};
pub use tls::Tls;
