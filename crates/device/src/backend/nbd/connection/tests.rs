//! Tests of a connection, and the server's end of one for the tests of its users.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use rustix::net::SocketAddrUnix;
use uringfs_buffer::Buffer;
use uringfs_nbd_protocol::handshake::flags::FIXED_NEWSTYLE;
use uringfs_nbd_protocol::handshake::info::{self, ExportInfo};
use uringfs_nbd_protocol::handshake::{Greeting, OptionCode, OptionReply, ReplyCode};

use super::*;
use crate::index::DeviceIndex;
use crate::interface::backend::Access;
use crate::request::{Op, Payload};

/// The replies of a server of 8 MiB with these flags to the options of the handshake.
pub(in crate::backend::nbd) fn handshake(flags: u16) -> Vec<u8> {
    let (size, kind) = ((8u64 << 20).into(), info::EXPORT.into());
    let export = ExportInfo { kind, size, flags: flags.into() };
    [
        Greeting::new(FIXED_NEWSTYLE).as_bytes(),
        OptionReply::new(OptionCode::STRUCTURED_REPLY.0, ReplyCode::ACK, 0).as_bytes(),
        OptionReply::new(OptionCode::GO.0, ReplyCode::INFO, 12).as_bytes(),
        export.as_bytes(),
        OptionReply::new(OptionCode::GO.0, ReplyCode::ACK, 0).as_bytes(),
    ]
    .concat()
}

/// The address of a server in this folder.
pub(in crate::backend::nbd) fn listen(folder: &Path, name: &str) -> (UnixListener, SocketAddrAny) {
    let path = folder.join(name);
    (UnixListener::bind(&path).unwrap(), SocketAddrUnix::new(&path).unwrap().into())
}

/// A connection to the first address after its handshake, the server's end, and the peer with this timeout.
pub(in crate::backend::nbd) fn connected(
    listener: &UnixListener,
    addresses: Vec<SocketAddrAny>,
    flags: u16,
    timeout: Duration,
    now: Instant,
) -> (Connection, UnixStream, Peer) {
    let mut connection = Connection::begin(&addresses[0], "disk", timeout, now).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    server.write_all(&handshake(flags)).unwrap();
    while connection.export().is_none() {
        connection.drive(None, now, &mut Vec::new()).unwrap();
    }
    // The client's messages of the handshake.
    server.set_nonblocking(true).unwrap();
    while server.read(&mut [0; 1024]).is_ok() {}
    server.set_nonblocking(false).unwrap();
    let export = connection.export().unwrap();
    let geometry = export.geometry(Access::ReadWrite).unwrap();
    (connection, server, Peer::new("disk".into(), addresses, export, geometry, timeout))
}

#[test]
fn a_silent_host_is_probed() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().into();
    for (timeout, idle, interval) in [(32, 16, 4), (1, 1, 1), (1 << 18, 32767, 32767)] {
        let timeout = Duration::from_secs(timeout);
        let connection = Connection::begin(&address, "disk", timeout, Instant::now()).unwrap();
        let socket = connection.socket();
        assert!(sockopt::socket_keepalive(socket).unwrap());
        assert_eq!(sockopt::tcp_keepidle(socket).unwrap().as_secs(), idle);
        assert_eq!(sockopt::tcp_keepintvl(socket).unwrap().as_secs(), interval);
        assert_eq!(sockopt::tcp_keepcnt(socket).unwrap(), KEEPALIVE_PROBES);
    }
}

#[test]
fn a_connection_ends_though_a_child_has_its_socket() {
    let folder = tempfile::tempdir().unwrap();
    let (listener, address) = listen(folder.path(), "socket");
    let (connection, mut server, _) =
        connected(&listener, vec![address], 1, Duration::MAX, Instant::now());
    let _of_child = connection.socket().try_clone_to_owned().unwrap();
    drop(connection);
    server.set_nonblocking(true).unwrap();
    let mut rest = Vec::new();
    server.read_to_end(&mut rest).expect("the connection has ended");
    assert_eq!(rest.len(), size_of::<transmission::Request>(), "the goodbye came first");
}

/// It takes a piece each second, of a write that lasts for many times the longest silence.
#[test]
fn a_server_that_takes_bytes_slowly_is_not_silent() {
    const LONGEST_SILENCE: Duration = Duration::from_secs(16);
    let folder = tempfile::tempdir().unwrap();
    let (listener, address) = listen(folder.path(), "socket");
    let mut now = Instant::now();
    let (mut connection, mut server, peer) =
        connected(&listener, vec![address], 1, LONGEST_SILENCE, now);
    let payload = Payload::Buffer(Buffer::zeroed(8 << 20));
    let write = Request::new(DeviceIndex::for_tests(0), Op::Write, 0, payload, Tag(0));
    let job = Job::new(Work::Request(write), Arc::new(Inbox::new().unwrap()));
    connection.push(job, &peer, now);
    connection.send(now).unwrap();
    assert!(connection.is_blocked(), "the socket is full");
    let begun = now;
    let mut piece = vec![0; 64 << 10];
    while connection.is_blocked() {
        now += Duration::from_secs(1);
        assert!(server.read(&mut piece).unwrap() > 0);
        connection.send(now).unwrap();
        assert!(now < connection.silent_at(LONGEST_SILENCE));
    }
    assert!(now > begun + 4 * LONGEST_SILENCE);
}
