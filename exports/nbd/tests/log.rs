//! The log's lines about the end of a connection.

mod harness;

use std::fmt::Debug;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, Once};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use harness::certificates::certificates;
use harness::client::{begin, client_flags, option};
use harness::memory;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};
use uringfs_nbd::{Export, Exports, Server, ServerOptions, Stopper, Tls};
use uringfs_nbd_protocol::handshake::info::ExportInfo;
use uringfs_nbd_protocol::handshake::{Greeting, OptionCode, OptionReply};
use uringfs_nbd_protocol::transmission::{Command, Request, SimpleReply};
use zerocopy::IntoBytes;

static LOG: (Mutex<Vec<Line>>, Condvar) = (Mutex::new(Vec::new()), Condvar::new());

/// An event, with the fields that a test looks at.
#[derive(Default)]
struct Line {
    event: String,
    peer: String,
    error: String,
}

impl Visit for Line {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "event" => self.event = value.to_owned(),
            "peer" => self.peer = value.to_owned(),
            "error" => self.error = value.to_owned(),
            _ => {}
        }
    }

    fn record_debug(&mut self, _field: &Field, _value: &dyn Debug) {}
}

struct Log;

impl Subscriber for Log {
    fn enabled(&self, _metadata: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _span: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _span: &Id, _values: &Record<'_>) {}

    fn record_follows_from(&self, _span: &Id, _follows: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line::default();
        event.record(&mut line);
        LOG.0.lock().unwrap().push(line);
        LOG.1.notify_all();
    }

    fn enter(&self, _span: &Id) {}

    fn exit(&self, _span: &Id) {}
}

/// Notes events from now on.
fn log() {
    static LOGGED: Once = Once::new();
    LOGGED.call_once(|| tracing::subscriber::set_global_default(Log).unwrap());
}

/// Waits for the last event of a client, and returns it with its error.
fn end_of(peer: &str) -> (String, String) {
    let ends = ["nbd_client_left", "nbd_client_failed", "nbd_client_refused"];
    let is_end = |line: &&Line| line.peer == peer && ends.contains(&line.event.as_str());
    let found = |log: &Vec<Line>| {
        log.iter().find(is_end).map(|line| (line.event.clone(), line.error.clone()))
    };
    let none = |log: &mut Vec<Line>| found(log).is_none();
    let limit = Duration::from_secs(30);
    let (log, _) = LOG.1.wait_timeout_while(LOG.0.lock().unwrap(), limit, none).unwrap();
    found(&log).expect("the end is logged")
}

/// A disk over TLS, and a client's connection.
struct Served {
    folder: tempfile::TempDir,
    exports: Exports,
    stopper: Stopper,
    server: JoinHandle<std::io::Result<()>>,
    client: TcpStream,
}

impl Served {
    fn new() -> Served {
        let (folder, exports) = (tempfile::tempdir().unwrap(), Exports::new());
        exports.add(Export::new("disk", memory(16 << 20))).unwrap();
        let mut server = Server::new(exports.clone(), ServerOptions::new().threads(1)).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        certificates(folder.path());
        let [certificate, key] =
            ["server-cert.pem", "server-key.pem"].map(|name| folder.path().join(name));
        server.listen_tls(listener, Tls::from_files(certificate, key, None).unwrap());
        let stopper = server.stopper();
        let server = thread::spawn(|| server.serve());
        Served { folder, exports, stopper, server, client }
    }

    /// The client after its handshakes.
    fn begun(&self) -> StreamOwned<ClientConnection, TcpStream> {
        let mut stream = self.client.try_clone().unwrap();
        stream.read_exact(&mut [0; size_of::<Greeting>()]).unwrap();
        stream.write_all(&client_flags()).unwrap();
        stream.write_all(&option(OptionCode::STARTTLS, &[])).unwrap();
        stream.read_exact(&mut [0; size_of::<OptionReply>()]).unwrap();
        let mut roots = RootCertStore::empty();
        let authority = self.folder.path().join("ca-cert.pem");
        roots.add(CertificateDer::from_pem_file(authority).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider);
        let config = config.with_safe_default_protocol_versions().unwrap();
        let config = config.with_root_certificates(roots).with_no_client_auth();
        let name = "localhost".try_into().unwrap();
        let connection = ClientConnection::new(Arc::new(config), name).unwrap();
        let mut stream = StreamOwned::new(connection, stream);
        stream.write_all(&option(OptionCode::EXPORT_NAME, b"disk")).unwrap();
        stream.read_exact(&mut [0; size_of::<ExportInfo>() - 2]).unwrap();
        // Once a request is answered, the server has the client among those of the disk.
        stream.write_all(Request::new(Command::FLUSH, 0, 1, 0, 0).as_bytes()).unwrap();
        stream.read_exact(&mut [0; size_of::<SimpleReply>()]).unwrap();
        stream
    }

    fn stop(self) {
        self.stopper.stop();
        self.server.join().unwrap().unwrap();
    }
}

#[test]
fn a_client_over_tls_has_left_when_its_disk_is_removed_or_the_server_stops() {
    log();
    for is_removed in [true, false] {
        let served = Served::new();
        let _stream = served.begun();
        if is_removed {
            assert!(served.exports.remove("disk"));
        } else {
            served.stopper.stop();
        }
        let peer = served.client.local_addr().unwrap().to_string();
        assert_eq!(end_of(&peer), ("nbd_client_left".to_owned(), String::new()));
        served.stop();
    }
}

#[test]
fn a_client_that_takes_no_reply_has_failed() {
    log();
    let served = harness::Served::new(memory(1 << 20));
    let mut stream = begin(&served, "disk");
    stream.shutdown(Shutdown::Read).unwrap();
    stream.write_all(Request::new(Command::READ, 0, 1, 0, 512).as_bytes()).unwrap();
    let peer = format!("unix:{}", served.socket().display());
    let (event, error) = end_of(&peer);
    assert_eq!(event, "nbd_client_failed");
    assert!(error.contains("pipe"), "{error}");
}
