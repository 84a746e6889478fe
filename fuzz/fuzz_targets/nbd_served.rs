//! A server of NBD with one export, and a client that sends bytes to it.

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::LazyLock;
use std::thread;
use std::time::Duration;

use uringfs::File;
use uringfs::device::Device;
use uringfs::device::backend::memory::Memory;
use uringfs::file::FileOptions;
use uringfs_nbd::{Export, Exports, Server, ServerOptions};

/// The size of the export, in bytes.
const SIZE: u64 = 1 << 20;

/// The server, which all inputs have in common.
struct Served {
    folder: tempfile::TempDir,
}

impl Served {
    fn connect(&self) -> UnixStream {
        let stream = UnixStream::connect(self.folder.path().join("socket")).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream
    }
}

static SERVED: LazyLock<Served> = LazyLock::new(|| {
    let folder = tempfile::tempdir().unwrap();
    let exports = Exports::new();
    let file =
        File::from_device(Device::new(Memory::new(SIZE).unwrap()).unwrap(), FileOptions::new());
    exports.add(Export::new("disk", file)).unwrap();
    let mut server = Server::new(exports, ServerOptions::new().threads(1)).unwrap();
    server.listen_unix(UnixListener::bind(folder.path().join("socket")).unwrap());
    thread::spawn(|| server.serve());
    Served { folder }
});

/// Sends all bytes on a new connection, and returns what comes until the server closes it.
pub fn exchange(bytes: &[u8]) -> Vec<u8> {
    let mut stream = SERVED.connect();
    let mut receiving = stream.try_clone().unwrap();
    let received = thread::spawn(move || {
        let mut received = Vec::new();
        match receiving.read_to_end(&mut received) {
            Ok(_) => received,
            // It closes a connection that has bytes which it did not read.
            Err(error) if error.kind() == ErrorKind::ConnectionReset => received,
            Err(error) => panic!("the server hangs: {error}"),
        }
    });
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(Shutdown::Write);
    received.join().unwrap()
}
