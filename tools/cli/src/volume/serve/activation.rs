//! Sockets that systemd has opened for this process (LISTEN_FDS).

use crate::output::print_error;
use rustix::net::{SocketAddrAny, getsockname};
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, absolute};
use std::sync::LazyLock;

/// The sockets, with their addresses. They stay open: another server may follow on them.
static PASSED: LazyLock<Vec<(SocketAddrAny, OwnedFd)>> = LazyLock::new(|| match passed() {
    Ok(passed) => passed,
    Err(error) => {
        print_error(&format!("the sockets of the service manager cannot be used: {error}"));
        Vec::new()
    }
});

/// The socket for a path, if it was passed. Its mode and its end are the service manager's.
pub(super) fn passed_socket(path: &Path) -> Option<UnixListener> {
    let path = absolute(path).ok()?;
    let is_it = |address: &SocketAddrAny| {
        let address = rustix::net::SocketAddrUnix::try_from(address.clone()).ok();
        address.is_some_and(|address| address.path_bytes() == Some(path.as_os_str().as_bytes()))
    };
    let listener = UnixListener::from(find(is_it)?);
    listener.set_nonblocking(false).ok()?;
    Some(listener)
}

/// The socket for an address, if it was passed.
pub(super) fn passed_tcp_socket(wanted: &SocketAddr) -> Option<TcpListener> {
    let is_it = |address: &SocketAddrAny| SocketAddr::try_from(address.clone()) == Ok(*wanted);
    let listener = TcpListener::from(find(is_it)?);
    listener.set_nonblocking(false).ok()?;
    Some(listener)
}

fn find(is_it: impl Fn(&SocketAddrAny) -> bool) -> Option<OwnedFd> {
    PASSED.iter().find(|(address, _)| is_it(address))?.1.try_clone().ok()
}

fn passed() -> io::Result<Vec<(SocketAddrAny, OwnedFd)>> {
    let numbers = sd_notify::listen_fds()?;
    if numbers.len() == 0 {
        return Ok(Vec::new());
    }
    // The descriptors are known by number only. A copy has an owner.
    let this = pidfd_open(getpid(), PidfdFlags::empty())?;
    let copies = numbers.map(|number| {
        let socket = pidfd_getfd(&this, number, PidfdGetfdFlags::empty())?;
        Ok((getsockname(&socket)?, socket))
    });
    copies.collect()
}
