//! TLS, with GnuTLS as the client.

mod harness;

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use harness::certificates::certificates;
use harness::client::{client_flags, option};
use harness::{memory, run};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use uringfs_nbd::{Export, Exports, Server, ServerOptions, Stopper, Tls};
use uringfs_nbd_protocol::handshake::{Greeting, OptionCode, OptionReply, ReplyCode};
use zerocopy::FromBytes;

struct Served {
    address: SocketAddr,
    folder: tempfile::TempDir,
    stopper: Stopper,
    server: Option<JoinHandle<std::io::Result<()>>>,
}

impl Served {
    /// Serves a disk over TLS. Clients need a certificate if `asks_clients`.
    fn new(asks_clients: bool) -> Served {
        let folder = tempfile::tempdir().unwrap();
        certificates(folder.path());
        let path = |name: &str| folder.path().join(name);
        let authorities: Option<PathBuf> = asks_clients.then(|| path("ca-cert.pem"));
        let tls = Tls::from_files(
            path("server-cert.pem"),
            path("server-key.pem"),
            authorities.as_deref(),
        );
        let exports = Exports::new();
        exports.add(Export::new("disk", memory(16 << 20))).unwrap();
        let mut server = Server::new(exports, ServerOptions::new().threads(2)).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        server.listen_tls(listener, tls.unwrap());
        let stopper = server.stopper();
        let server = Some(thread::spawn(|| server.serve()));
        Served { address, folder, stopper, server }
    }

    /// The URI for a client that has the files of this folder.
    fn uri(&self, certificates: &Path) -> String {
        let folder = certificates.display();
        format!("nbds://localhost:{}/disk?tls-certificates={folder}", self.address.port())
    }

    /// Files of a client that knows the authority, and has no certificate.
    fn anonymous(&self) -> PathBuf {
        let folder = self.folder.path().join("anonymous");
        fs::create_dir(&folder).unwrap();
        fs::copy(self.folder.path().join("ca-cert.pem"), folder.join("ca-cert.pem")).unwrap();
        folder
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stopper.stop();
        if let Some(server) = self.server.take() {
            server.join().unwrap().unwrap();
        }
    }
}

fn receive<T: FromBytes>(stream: &mut TcpStream) -> T {
    let mut bytes = vec![0; size_of::<T>()];
    stream.read_exact(&mut bytes).unwrap();
    T::read_from_bytes(&bytes).unwrap()
}

#[test]
fn a_disk_is_copied_over_tls() {
    let served = Served::new(true);
    let uri = served.uri(served.folder.path());
    let source = served.folder.path().join("source");
    let bytes: Vec<u8> = (0..16 << 20).map(|at: u32| (at / 77) as u8).collect();
    fs::write(&source, &bytes).unwrap();
    run("nbdcopy", &["--flush", source.to_str().unwrap(), &uri]);
    let copy = served.folder.path().join("copy");
    run("nbdcopy", &[&uri, copy.to_str().unwrap()]);
    assert!(fs::read(&copy).unwrap() == bytes);
    let info = run("nbdinfo", &[&uri]);
    assert!(info.contains("TLS"), "{info}");
}

#[test]
fn a_client_without_a_certificate_is_let_in_only_where_none_is_asked_for() {
    for asks_clients in [false, true] {
        let served = Served::new(asks_clients);
        let uri = served.uri(&served.anonymous());
        let output = Command::new("nbdinfo").args(["--size", &uri]).output().unwrap();
        assert_eq!(output.status.success(), !asks_clients, "{output:?}");
    }
}

#[test]
fn nothing_is_said_without_tls() {
    let served = Served::new(false);
    let mut stream = served.connect();
    receive::<Greeting>(&mut stream);
    stream.write_all(&client_flags()).unwrap();
    for code in [OptionCode::LIST, OptionCode::GO, OptionCode::STRUCTURED_REPLY] {
        stream.write_all(&option(code, &[])).unwrap();
        let reply: OptionReply = receive(&mut stream);
        assert_eq!(reply.reply.get(), ReplyCode::ERR_TLS_REQD.0);
        stream.read_exact(&mut vec![0; reply.length.get() as usize]).unwrap();
    }
    stream.write_all(&option(OptionCode::EXPORT_NAME, b"disk")).unwrap();
    assert_eq!(stream.read(&mut [0]).unwrap(), 0);
}

/// Options that an attacker has put before the client's TLS would count as the client's.
#[test]
fn plain_text_behind_starttls_ends_the_connection() {
    let served = Served::new(false);
    let mut stream = served.connect();
    receive::<Greeting>(&mut stream);
    let bytes =
        [&client_flags()[..], &option(OptionCode::STARTTLS, &[]), &option(OptionCode::LIST, &[])];
    stream.write_all(&bytes.concat()).unwrap();
    let reply: OptionReply = receive(&mut stream);
    assert_eq!(reply.reply.get(), ReplyCode::ACK.0);
    assert!(matches!(stream.read(&mut [0]), Ok(0) | Err(_)));
}

#[test]
fn slow_tls_handshakes_hold_up_no_other_client() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    let served = Served::new(false);
    let mut slow: Vec<TcpStream> = Vec::new();
    for _ in 0..1000 {
        let mut stream = served.connect();
        receive::<Greeting>(&mut stream);
        let hello = [&client_flags()[..], &option(OptionCode::STARTTLS, &[])].concat();
        stream.write_all(&hello).unwrap();
        let reply: OptionReply = receive(&mut stream);
        assert_eq!(reply.reply.get(), ReplyCode::ACK.0);
        // The beginning of a ClientHello, whose length says that more comes.
        stream.write_all(&[22, 3, 1, 0, 200, 1, 0, 0, 196]).unwrap();
        slow.push(stream);
    }
    let uri = served.uri(&served.anonymous());
    assert_eq!(run("nbdinfo", &["--size", &uri]), format!("{}\n", 16 << 20));
    // It was not ended before.
    let last = slow.last_mut().unwrap();
    last.set_nonblocking(true).unwrap();
    assert_eq!(last.read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
}

#[test]
fn what_is_no_tls_ends_the_connection() {
    let served = Served::new(false);
    for bytes in [&[0u8; 64][..], &[22, 3, 1, 0xff, 0xff], b"GET / HTTP/1.0\r\n\r\n"] {
        let mut stream = served.connect();
        receive::<Greeting>(&mut stream);
        stream.write_all(&client_flags()).unwrap();
        stream.write_all(&option(OptionCode::STARTTLS, &[])).unwrap();
        let reply: OptionReply = receive(&mut stream);
        assert_eq!(reply.reply.get(), ReplyCode::ACK.0);
        stream.write_all(bytes).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut rest = Vec::new();
        // An alert, or nothing.
        let _ = stream.read_to_end(&mut rest);
        assert!(rest.len() < 16, "{rest:?}");
    }
}

#[test]
fn files_that_are_no_certificates_are_named() {
    let folder = tempfile::tempdir().unwrap();
    certificates(folder.path());
    let path = |name: &str| folder.path().join(name);
    fs::write(path("empty"), "").unwrap();
    let refused = |certificate: &str, key: &str, named: &str| {
        let error = Tls::from_files(path(certificate), path(key), None).unwrap_err();
        assert!(error.to_string().contains(named), "{error}");
    };
    refused("no", "server-key.pem", "no: No such file");
    refused("empty", "server-key.pem", "empty: has no certificate");
    refused("server-cert.pem", "no", "no: No such file");
    refused("server-cert.pem", "empty", "empty: ");
    refused("server-cert.pem", "client-key.pem", "server-cert.pem: ");
    fs::write(path("other"), "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n")
        .unwrap();
    refused("server-cert.pem", "other", "other: ");
}
