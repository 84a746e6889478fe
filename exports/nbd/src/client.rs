//! [`Client`]: the log's events of a connection, by `tracing`, one for each step of its life. Nothing is logged for a
//! request.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::net::{SocketAddrUnix, getpeername, getsockname};
use uringfs::Errno;

/// A client, by its number in this process and its address. `None` while no subscriber asks for events.
pub(crate) struct Client(Option<(u64, String)>);

impl Client {
    /// The client at the other end of a socket.
    pub(crate) fn new(socket: &OwnedFd) -> Client {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let is_logged = tracing::enabled!(target: "uringfs", tracing::Level::INFO);
        let name = || (NEXT.fetch_add(1, Ordering::Relaxed), peer(socket));
        Client(is_logged.then(name))
    }

    pub(crate) fn connected(&self) {
        if let Client(Some((client, peer))) = self {
            tracing::info!(
                target: "uringfs",
                event = "nbd_client_connected", client, peer, "NBD client connected"
            );
        }
    }

    /// The handshake is done.
    pub(crate) fn negotiated(&self, export: &str) {
        if let Client(Some((client, peer))) = self {
            tracing::info!(
                target: "uringfs",
                event = "nbd_client_negotiated", client, peer, export, "NBD client uses an export"
            );
        }
    }

    /// The connection has ended as it should: by the client, or because it is served no longer.
    pub(crate) fn left(&self, export: Option<&str>) {
        if let Client(Some((client, peer))) = self {
            tracing::info!(
                target: "uringfs",
                event = "nbd_client_left", client, peer, export, "NBD client left"
            );
        }
    }

    /// The connection has ended by an error.
    pub(crate) fn failed(&self, export: Option<&str>, errno: Errno) {
        if let Client(Some((client, peer))) = self {
            let error = match errno {
                Errno::PROTO => "it does not keep to the protocol".to_owned(),
                Errno::TIMEDOUT => "it sends or takes too little for too long".to_owned(),
                errno => errno.to_string(),
            };
            tracing::warn!(
                target: "uringfs",
                event = "nbd_client_failed", client, peer, export, error, "NBD client failed"
            );
        }
    }

    /// The server does not serve it.
    pub(crate) fn refused(&self, export: Option<&str>, reason: &str) {
        if let Client(Some((client, peer))) = self {
            tracing::warn!(
                target: "uringfs",
                event = "nbd_client_refused", client, peer, export, reason, "NBD client refused"
            );
        }
    }
}

/// The address of the client; for a Unix socket, where clients have none, the path of the server's.
fn peer(socket: &OwnedFd) -> String {
    let address = getpeername(socket).ok().flatten();
    match address.map(SocketAddr::try_from) {
        Some(Ok(address)) => address.to_string(),
        _ => {
            let own = getsockname(socket).and_then(SocketAddrUnix::try_from).ok();
            let path = own.as_ref().and_then(SocketAddrUnix::path_bytes).unwrap_or_default();
            format!("unix:{}", String::from_utf8_lossy(path))
        }
    }
}
