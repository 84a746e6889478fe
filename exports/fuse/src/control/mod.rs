//! The control socket of a process that has volumes open, mounted or not: [`ControlServer`] there, on a [`ControlSocket`], and
//! [`Client`] in another program.
//!
//! A client finds the socket by the process that has the lock of the volume, by which it also names the volume. Each connection
//! carries one [`Request`], in lines of JSON; `docs/control.md` describes them. One of them begins a session about the files of the volume, whose bytes pass
//! through the connection: the server opens no path of the host for a client. One thread serves the socket, and none that
//! serves files; a session, and a request that may take long, get a thread of their own until they are done.
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

// Calls a server about files.
mod remote;

// Serves clients.
mod server;

// The volumes that clients reach, and what is under way for them.
mod volumes;

// Serves a session about files.
mod file_session;

// Checks the volume for a client.
mod online_check;

// Does what a request asks for.
mod requests;

// Where the sockets are.
mod place;

// Requests about files as lines of JSON.
mod file_request;

// Requests and replies as lines of JSON.
mod protocol;

pub use client::Client;
pub use file_request::Opening;
#[doc(hidden)]
pub use file_request::{AttributeChanges, FileRange, FileRequest};
pub use place::ControlSocket;
pub use protocol::{Heard, MAX_FREEZE, Received, Request, VERSION};
pub use remote::{RemoteEntry, RemoteFile, RemoteFiles};
pub(crate) use requests::{Served, ServedMount};
pub use server::{ControlServer, Reload};
pub use volumes::{ControlVolumes, ControlledVolume};
