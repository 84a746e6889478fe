//! The control socket of a mount: [`ControlSocket`] at the server, [`Client`] in another program.
//!
//! A client finds the socket by the process that has the volume open. Each connection carries one [`Request`], in lines of
//! JSON; `docs/control.md` describes them. The server opens no path for a client. One thread serves the socket, and none that
//! serves files; a request that may take long gets a thread of its own until it is done.
//!
//! ```no_run
//! use uringfs_fuse::control::{Client, Request};
//!
//! # fn main() -> std::io::Result<()> {
//! if let Some(client) = Client::connect("disk.img")? {
//!     println!("process {} serves it: {}", client.process(), client.call(Request::Counters)?);
//! }
//! # Ok(())
//! # }
//! ```

// Calls a server.
mod client;

// Serves clients.
mod server;

// Does what a request asks for.
mod requests;

// Where the sockets are.
mod place;

// Requests and replies as lines of JSON.
mod protocol;

pub use client::Client;
pub use place::ControlSocket;
pub use protocol::{Heard, MAX_FREEZE, Received, Request, VERSION};
pub(crate) use requests::Served;
pub(crate) use server::ControlServer;
