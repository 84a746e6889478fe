//! A server that runs while a test does.

#![allow(dead_code)] // each test uses its own part

pub mod certificates;
pub mod client;

use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::Command;
use std::thread::{self, JoinHandle};

use uringfs::device::Device;
use uringfs::device::backend::memory::Memory;
use uringfs::file::FileOptions;
use uringfs::{File, FormatOptions, OpenOptions, Volume};
use uringfs_nbd::{Export, Exports, Server, ServerOptions, Stopper};

/// A server on a Unix socket.
pub struct Served {
    pub exports: Exports,
    pub folder: tempfile::TempDir,
    stopper: Stopper,
    server: Option<JoinHandle<std::io::Result<()>>>,
}

impl Served {
    /// Serves one export, with the name `disk`.
    pub fn new(file: File) -> Served {
        Served::with(Export::new("disk", file), ServerOptions::new().threads(2))
    }

    pub fn with(export: Export, options: ServerOptions) -> Served {
        let exports = Exports::new();
        exports.add(export).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let mut server = Server::new(exports.clone(), options).unwrap();
        server.listen_unix(UnixListener::bind(folder.path().join("socket")).unwrap());
        let stopper = server.stopper();
        let server = Some(thread::spawn(|| server.serve()));
        Served { exports, folder, stopper, server }
    }

    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    pub fn uri(&self) -> String {
        format!("nbd+unix:///disk?socket={}", self.socket().display())
    }

    pub fn connect(&self) -> UnixStream {
        UnixStream::connect(self.socket()).unwrap()
    }

    pub fn end(&mut self) {
        self.stopper.stop();
        if let Some(server) = self.server.take() {
            server.join().unwrap().unwrap();
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.end();
    }
}

pub fn memory(bytes: u64) -> File {
    File::from_device(Device::new(Memory::new(bytes).unwrap()).unwrap(), FileOptions::new())
}

/// A file of so many bytes, with a hole, in a volume.
pub fn volume_file(bytes: u64) -> (Volume, File, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let format = FormatOptions::new().size(256 << 20);
    let volume = Volume::create(folder.path().join("image"), &format).unwrap();
    let options = OpenOptions::new().read(true).write(true).create(true).direct(true);
    let file = options.open(&volume, "/disk").unwrap();
    file.set_len(bytes).wait().unwrap();
    (volume, file, folder)
}

/// Runs a program, which must succeed, and returns what it prints.
pub fn run(program: &str, arguments: &[&str]) -> String {
    // fio leaves files where it runs.
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(program).args(arguments).current_dir(folder.path()).output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {}\n{text}{errors}", output.status);
    text
}
