//! The sockets of servers: a Unix socket that its owner alone can use, and TCP on this machine. A socket that systemd has passed
//! is used where its path or its address is asked for.

use super::super::exit_codes::with_io_code;
use super::super::host::file_id;
use super::super::owners::group_id;
use super::super::quoting::for_message;
use super::activation::{passed_socket, passed_tcp_socket};
use super::problem::Problem;
use rustix::process::umask;
use serde::Deserialize;
use std::fmt;
use std::fs::{self, Permissions};
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt, chown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, Weak};
use uringfs_lab::Error;

/// The permissions of a Unix socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct Mode(u32);

impl Default for Mode {
    /// Only its owner, and root.
    fn default() -> Mode {
        Mode(0o600)
    }
}

impl FromStr for Mode {
    type Err = String;

    fn from_str(text: &str) -> Result<Mode, String> {
        match u32::from_str_radix(text, 8) {
            Ok(mode) if mode <= 0o777 => Ok(Mode(mode)),
            _ => Err("write up to three octal digits, such as 660".into()),
        }
    }
}

impl TryFrom<String> for Mode {
    type Error = String;

    fn try_from(text: String) -> Result<Mode, String> {
        text.parse()
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:o}", self.0)
    }
}

/// The number of a group of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct GroupId(u32);

impl FromStr for GroupId {
    type Err = String;

    fn from_str(name: &str) -> Result<GroupId, String> {
        group_id(name).map(GroupId)
    }
}

impl TryFrom<String> for GroupId {
    type Error = String;

    fn try_from(name: String) -> Result<GroupId, String> {
        name.parse()
    }
}

/// The sockets that servers of this process use. Servers that follow each other share one, so that no client is refused between
/// them.
#[derive(Default)]
pub(super) struct Sockets(Vec<Weak<SharedSocket>>);

/// A socket that listens for as long as a server holds it.
pub(super) struct SharedSocket {
    name: Name,
    listener: Listener,
    _path: Option<UnixSocket>,
}

#[derive(PartialEq, Eq)]
enum Name {
    Unix(PathBuf, Mode, Option<GroupId>),
    Tcp(String),
}

enum Listener {
    Unix(UnixListener),
    Tcp(TcpListener),
}

impl Sockets {
    /// A Unix socket, by the option that names it.
    pub(super) fn unix(
        &mut self,
        key: &'static str,
        path: &Path,
        mode: Mode,
        group: Option<GroupId>,
    ) -> Result<Arc<SharedSocket>, Problem> {
        let known = self.find(|name| matches!(name, Name::Unix(known, ..) if known == path));
        let name = Name::Unix(path.to_owned(), mode, group);
        match known {
            Some(known) if known.name == name => return Ok(known),
            Some(_) => {
                let what = "its socket keeps its mode and its group; name another path";
                return Err(Problem::new(key, &format!("{}: {what}", for_message(path))));
            }
            None => {}
        }
        let (listener, path) = match passed_socket(path) {
            Some(listener) => (listener, None),
            None => {
                let bound = UnixSocket::bind(&format!("--{key}"), path, mode, group);
                let (path, listener) = bound.map_err(Problem::of(key))?;
                (listener, Some(path))
            }
        };
        Ok(self.insert(SharedSocket { name, listener: Listener::Unix(listener), _path: path }))
    }

    /// A socket of TCP, as [`bind_tcp`].
    pub(super) fn tcp(
        &mut self,
        key: &'static str,
        address: &str,
        default_port: u16,
        is_open: bool,
        advice: &str,
    ) -> Result<Arc<SharedSocket>, Problem> {
        let bind = || bind_tcp(key, address, default_port, is_open, advice);
        if let Some(known) = self.find(|name| matches!(name, Name::Tcp(known) if known == address))
        {
            // It may have been open to others so far.
            resolve(key, address, default_port, is_open, advice).map_err(Problem::of(key))?;
            return Ok(known);
        }
        let listener = bind().map_err(Problem::of(key))?;
        let name = Name::Tcp(address.to_owned());
        Ok(self.insert(SharedSocket { name, listener: Listener::Tcp(listener), _path: None }))
    }

    fn find(&mut self, is_it: impl Fn(&Name) -> bool) -> Option<Arc<SharedSocket>> {
        self.0.retain(|socket| socket.strong_count() > 0);
        self.0.iter().filter_map(Weak::upgrade).find(|socket| is_it(&socket.name))
    }

    fn insert(&mut self, socket: SharedSocket) -> Arc<SharedSocket> {
        let socket = Arc::new(socket);
        self.0.push(Arc::downgrade(&socket));
        socket
    }
}

impl SharedSocket {
    /// The listener, for a server.
    pub(super) fn unix_listener(&self) -> Result<UnixListener, Error> {
        match &self.listener {
            Listener::Unix(listener) => listener.try_clone().map_err(no_descriptor),
            Listener::Tcp(_) => unreachable!("it was asked for by a path"),
        }
    }

    /// Its address, unless it is a Unix socket.
    pub(super) fn tcp_address(&self) -> Option<SocketAddr> {
        match &self.listener {
            Listener::Tcp(listener) => listener.local_addr().ok(),
            Listener::Unix(_) => None,
        }
    }

    /// The listener, for a server, and its address.
    pub(super) fn tcp_listener(&self) -> Result<(TcpListener, SocketAddr), Error> {
        match &self.listener {
            Listener::Tcp(listener) => {
                let address = listener.local_addr().map_err(no_descriptor)?;
                Ok((listener.try_clone().map_err(no_descriptor)?, address))
            }
            Listener::Unix(_) => unreachable!("it was asked for by an address"),
        }
    }
}

impl AsFd for SharedSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.listener {
            Listener::Unix(listener) => listener.as_fd(),
            Listener::Tcp(listener) => listener.as_fd(),
        }
    }
}

fn no_descriptor(error: io::Error) -> Error {
    Error::run("cannot serve").because(error)
}

/// A Unix socket. Its path is removed in the end.
pub(super) struct UnixSocket {
    path: PathBuf,
    /// By which it is known from one that another server has put there.
    id: (u64, u64),
}

impl UnixSocket {
    /// Listens on the path of an option, with these permissions. A socket there that a killed server has left is replaced.
    pub(super) fn bind(
        option: &str,
        path: &Path,
        mode: Mode,
        group: Option<GroupId>,
    ) -> Result<(UnixSocket, UnixListener), Error> {
        let shown = for_message(path);
        let failed = |error: io::Error| {
            with_io_code(Error::run(format!("{option} {shown}: {error}")), &error)
        };
        if let Ok(found) = path.symlink_metadata() {
            if !found.file_type().is_socket() {
                let what = "exists, and is no socket; name a path that does not exist";
                return Err(Error::in_use(format!("{option} {shown}: {what}")));
            }
            match UnixStream::connect(path) {
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                    fs::remove_file(path).map_err(failed)?;
                }
                Err(error) => return Err(failed(error)),
                Ok(_) => {
                    let what = "another server listens there; stop it, or name another path";
                    return Err(Error::in_use(format!("{option} {shown}: {what}")));
                }
            }
        }
        // Until it has its group, it is the owner's alone. The threads of open volumes create no files.
        let first = if group.is_some() { mode.0 & 0o700 } else { mode.0 };
        let old = umask(rustix::fs::Mode::from_raw_mode(0o777 & !first));
        let listener = UnixListener::bind(path);
        umask(old);
        let listener = listener.map_err(failed)?;
        let id = file_id(&path.symlink_metadata().map_err(failed)?);
        let socket = UnixSocket { path: path.to_owned(), id };
        if let Some(GroupId(group)) = group {
            chown(path, None, Some(group))
                .and_then(|()| fs::set_permissions(path, Permissions::from_mode(mode.0)))
                .map_err(failed)?;
        }
        Ok((socket, listener))
    }
}

impl Drop for UnixSocket {
    fn drop(&mut self) {
        if self.path.symlink_metadata().is_ok_and(|found| file_id(&found) == self.id) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Listens on an address, written HOST, HOST:PORT or :PORT. Unless it `is_open`, only this machine can reach it, and `advice` says
/// what to do.
fn bind_tcp(
    key: &str,
    address: &str,
    default_port: u16,
    is_open: bool,
    advice: &str,
) -> Result<TcpListener, Error> {
    let addresses = resolve(key, address, default_port, is_open, advice)?;
    let failed =
        |error: io::Error| with_io_code(Error::run(format!("--{key} {address}: {error}")), &error);
    match addresses.iter().find_map(passed_tcp_socket) {
        Some(listener) => Ok(listener),
        None => TcpListener::bind(&addresses[..]).map_err(failed),
    }
}

fn resolve(
    key: &str,
    address: &str,
    default_port: u16,
    is_open: bool,
    advice: &str,
) -> Result<Vec<SocketAddr>, Error> {
    let addresses = parse_address(address, default_port).map_err(|error| {
        Error::input(format!("--{key} {address}: {error}; write HOST:PORT, or [ADDRESS]:PORT"))
    })?;
    match is_open || addresses.iter().all(|address| address.ip().is_loopback()) {
        true => Ok(addresses),
        false => Err(Error::input(format!("--{key} {address}: {advice}"))),
    }
}

fn parse_address(address: &str, default_port: u16) -> io::Result<Vec<SocketAddr>> {
    if let Ok(ip) = address.trim_matches(['[', ']']).parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(ip, default_port)]);
    }
    let port = address.strip_prefix(':').unwrap_or(address);
    let with_host = match port.parse::<u16>() {
        Ok(port) => format!("localhost:{port}"),
        Err(_) => address.to_owned(),
    };
    let found = match with_host.to_socket_addrs() {
        // Without a port.
        Err(_) => (with_host.trim_matches(['[', ']']), default_port).to_socket_addrs()?,
        Ok(found) => found,
    };
    Ok(found.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_a_port_or_the_default() {
        let is = |text: &str, expected: &str| {
            let found = parse_address(text, 10809).unwrap();
            assert!(found.contains(&expected.parse().unwrap()), "{text}: {found:?}");
        };
        is("127.0.0.1", "127.0.0.1:10809");
        is("127.0.0.1:7", "127.0.0.1:7");
        is(":7", "127.0.0.1:7");
        is("[::1]:7", "[::1]:7");
        is("::1", "[::1]:10809");
        is("2001:db8::1:1", "[2001:db8::1:1]:10809");
        is("7", "127.0.0.1:7");
        is("0.0.0.0:0", "0.0.0.0:0");
        assert!(parse_address("127.0.0.1:http:7", 1).is_err());
    }
}
