//! Opens the first connection to a server, and waits for its handshake.

use std::io;
use std::net::ToSocketAddrs;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{SocketAddrAny, SocketAddrUnix};
use uringfs_errno::Errno;

use super::connection::{Connection, Loss};
use super::export::Export;
use super::peer::Peer;
use super::refusal::Refusal;
use super::target::{Endpoint, NbdTarget};
use crate::interface::backend::Access;

/// The longest time in which a server says a size again. One that has taken no other connection by then may never.
const SIZE_TIMEOUT: Duration = Duration::from_secs(2);

/// The pause before another attempt while a server accepts no connection, since too many wait.
const BUSY_PAUSE: Duration = Duration::from_millis(10);

/// Connects to the server of `target`, and opens its export.
pub(super) fn open(target: &NbdTarget, access: Access) -> io::Result<(Peer, Connection)> {
    let explain =
        |refusal: Refusal| io::Error::new(refusal.kind, format!("{target}: {}", refusal.text));
    let addresses = resolve(&target.endpoint).map_err(explain)?;
    let deadline = Instant::now() + target.timeout();
    let mut failure = None;
    for address in &addresses {
        match connect(address, target.export(), target.timeout(), deadline) {
            Ok((connection, export)) => {
                let geometry = export.geometry(access).map_err(explain)?;
                let (name, timeout) = (target.export().to_owned(), target.timeout());
                return Ok((Peer::new(name, addresses, export, geometry, timeout), connection));
            }
            Err(loss) => failure = Some(loss),
        }
    }
    let refusal = match failure.expect("there is an address") {
        Loss::Refused(refusal) => refusal,
        Loss::Violation(violation) => Refusal::violation(violation.0),
        Loss::Closed => Refusal::new(
            io::ErrorKind::ConnectionAborted,
            "the server has closed the connection; see its messages",
        ),
        Loss::Error(errno) => connect_refusal(errno, target.timeout()),
    };
    Err(explain(refusal))
}

/// Asks the server for the size of the export over another connection, since no message of the protocol does.
///
/// # Errors
/// ESTALE when it has another export by now; ECHILD in the child of a fork; others of the connection.
pub(super) fn ask_size(peer: &Peer) -> Result<u64, Errno> {
    if peer.is_forked() {
        return Err(Errno::CHILD);
    }
    let deadline = Instant::now() + peer.timeout.min(SIZE_TIMEOUT);
    let mut failure = Errno::IO;
    for address in &peer.addresses {
        match connect(address, &peer.name, peer.timeout, deadline) {
            Ok((_, export)) => {
                return match peer.note_offer(&export) {
                    Err(error) if peer.offered() >= peer.size() => Err(error),
                    // It has shrunk.
                    Ok(()) | Err(_) => Ok(peer.offered()),
                };
            }
            Err(Loss::Error(error)) => failure = error,
            Err(Loss::Closed) => failure = Errno::CONNRESET,
            Err(Loss::Refused(_) | Loss::Violation(_)) => failure = Errno::IO,
        }
    }
    Err(failure)
}

fn resolve(endpoint: &Endpoint) -> Result<Vec<SocketAddrAny>, Refusal> {
    match endpoint {
        // A reconnection may come after a change of the working directory.
        Endpoint::Unix(path) => match SocketAddrUnix::new(absolute(path)) {
            Ok(address) => Ok(vec![address.into()]),
            Err(_) => {
                let text = "the path of the socket is too long; use one of at most 107 bytes";
                Err(Refusal::new(io::ErrorKind::InvalidInput, text))
            }
        },
        Endpoint::Tcp { host, port } => {
            let refuse = |why: String| {
                let text = format!("the host '{host}' is unknown ({why}); check the name");
                Refusal::new(io::ErrorKind::NotFound, text)
            };
            let found = (host.as_str(), *port).to_socket_addrs();
            let found: Vec<_> = found
                .map_err(|error| refuse(error.to_string()))?
                .map(SocketAddrAny::from)
                .collect();
            if found.is_empty() { Err(refuse("no address".into())) } else { Ok(found) }
        }
    }
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

fn connect(
    address: &SocketAddrAny,
    name: &str,
    timeout: Duration,
    deadline: Instant,
) -> Result<(Connection, Export), Loss> {
    let mut connection = loop {
        match Connection::begin(address, name, timeout, Instant::now()) {
            Ok(connection) => break connection,
            Err(Errno::AGAIN) if Instant::now() < deadline => sleep(BUSY_PAUSE),
            Err(errno) => return Err(Loss::Error(errno)),
        }
    };
    loop {
        let now = Instant::now();
        connection.drive(None, now, &mut Vec::new())?;
        if let Some(export) = connection.export() {
            return Ok((connection, export));
        }
        let left = deadline.saturating_duration_since(now);
        if left.is_zero() {
            return Err(Loss::Error(Errno::TIMEDOUT));
        }
        let timeout =
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        let events = match connection.waits_to_send() {
            true => PollFlags::IN | PollFlags::OUT,
            false => PollFlags::IN,
        };
        match poll(&mut [PollFd::new(&connection.socket(), events)], Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Why there is no connection, in words.
fn connect_refusal(errno: Errno, timeout: Duration) -> Refusal {
    let text = match errno {
        Errno::CONNREFUSED | Errno::NOENT => {
            format!("no server listens there ({errno}); start it, or check the address")
        }
        Errno::ACCESS | Errno::PERM => {
            "no permission to connect; change the mode or owner of the socket, or run as its owner"
                .into()
        }
        Errno::TIMEDOUT => {
            format!("the server does not answer within {} s; see its messages", timeout.as_secs())
        }
        Errno::CONNRESET | Errno::PIPE => {
            "the server has closed the connection; see its messages".into()
        }
        errno => format!("no connection to the server ({errno}); check the address"),
    };
    Refusal::new(errno.kind(), text)
}
