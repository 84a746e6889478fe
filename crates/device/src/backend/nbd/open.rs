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

/// The longest time in which a server says a size again, for each address. One that has taken no other connection by then
/// may never.
const SIZE_TIMEOUT: Duration = Duration::from_secs(2);

/// The pause before another attempt while a server accepts no connection, since too many wait.
const BUSY_PAUSE: Duration = Duration::from_millis(10);

/// Connects to the server of `target`, and opens its export.
pub(super) fn open(target: &NbdTarget, access: Access) -> io::Result<(Peer, Connection)> {
    let explain =
        |refusal: Refusal| io::Error::new(refusal.kind, format!("{target}: {}", refusal.text));
    let addresses = resolve(&target.endpoint).map_err(explain)?;
    open_one_of(addresses, target.export(), target.timeout(), access).map_err(explain)
}

/// Opens the export `name` at the first of these addresses that serves it.
fn open_one_of(
    mut addresses: Vec<SocketAddrAny>,
    name: &str,
    timeout: Duration,
    access: Access,
) -> Result<(Peer, Connection), Refusal> {
    match connect_to_one_of(&addresses, name, timeout) {
        Ok((index, connection, export)) => {
            let geometry = export.geometry(access)?;
            // Later connections begin with the one that works.
            addresses.rotate_left(index);
            Ok((Peer::new(name.to_owned(), addresses, export, geometry, timeout), connection))
        }
        Err(Loss::Refused(refusal)) => Err(refusal),
        Err(Loss::Violation(violation)) => Err(Refusal::violation(violation.0)),
        Err(Loss::Closed) => Err(Refusal::new(
            io::ErrorKind::ConnectionAborted,
            "the server has closed the connection; see its messages",
        )),
        Err(Loss::Error(errno)) => Err(connect_refusal(errno, timeout)),
    }
}

/// Asks the server for the size of the export over another connection, since no message of the protocol does.
///
/// # Errors
/// ESTALE when it has another export by now; ECHILD in the child of a fork; others of the connection.
pub(super) fn ask_size(peer: &Peer) -> Result<u64, Errno> {
    if peer.is_forked() {
        return Err(Errno::CHILD);
    }
    let addresses = peer.addresses();
    let timeout = peer.timeout.min(SIZE_TIMEOUT * addresses.len() as u32);
    match connect_to_one_of(&addresses, &peer.name, timeout) {
        Ok((_, _, export)) => match peer.note_offer(&export) {
            Err(error) if peer.offered() >= peer.size() => Err(error),
            // It has shrunk.
            Ok(()) | Err(_) => Ok(peer.offered()),
        },
        Err(Loss::Error(error)) => Err(error),
        Err(Loss::Closed) => Err(Errno::CONNRESET),
        Err(Loss::Refused(_) | Loss::Violation(_)) => Err(Errno::IO),
    }
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

/// Connects to the first of these addresses that serves the export `name`. Each has its share of the time that is left, so
/// that one which does not answer leaves some to the others. Returns its index, or the failure of the last one.
fn connect_to_one_of(
    addresses: &[SocketAddrAny],
    name: &str,
    timeout: Duration,
) -> Result<(usize, Connection, Export), Loss> {
    let deadline = Instant::now() + timeout;
    let mut failure = Loss::Closed;
    for (index, address) in addresses.iter().enumerate() {
        let now = Instant::now();
        let share = deadline.saturating_duration_since(now) / (addresses.len() - index) as u32;
        match connect(address, name, timeout, now + share) {
            Ok((connection, export)) => return Ok((index, connection, export)),
            Err(loss) => failure = loss,
        }
    }
    Err(failure)
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

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::thread;

    use super::super::connection::tests::{handshake, listen};
    use super::*;

    #[test]
    fn an_address_that_does_not_answer_leaves_time_to_the_next() {
        let folder = tempfile::tempdir().unwrap();
        let (_silent, first) = listen(folder.path(), "silent");
        let (good, second) = listen(folder.path(), "good");
        let server = thread::spawn(move || {
            let (mut server, _) = good.accept().unwrap();
            server.write_all(&handshake(1)).unwrap();
            // Open until the client has its answer.
            server
        });
        let addresses = vec![first, second.clone()];
        let timeout = Duration::from_secs(4);
        let (peer, _) = open_one_of(addresses, "disk", timeout, Access::ReadWrite).unwrap();
        assert_eq!(*peer.address(), second, "later connections begin with it");
        drop(server.join().unwrap());
    }
}
