//! A served disk on a temporary image, for the tests.
#![allow(dead_code)] // Each test uses a part of it.

pub mod front_end;
pub mod gated;

use std::io;
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};

use tempfile::TempDir;
use uringfs::device::Access;
use uringfs::reactor::QueueKind;
use uringfs::{File, ReactorOptions};
use uringfs_vhost::{Disk, ServerHandle, VhostServer};

pub const IMAGE_BYTES: u64 = 16 << 20;

/// A server in a thread. Dropping it stops the server, which must end without an error.
pub struct Server {
    folder: TempDir,
    handle: ServerHandle,
    thread: Option<JoinHandle<io::Result<()>>>,
}

impl Server {
    /// Serves a new image, with the options that `options` sets.
    pub fn new(options: impl FnOnce(Disk) -> Disk) -> Server {
        let folder = tempfile::tempdir().unwrap();
        let image = folder.path().join("image");
        uringfs::create_image(&image, IMAGE_BYTES).unwrap();
        let file = File::open(&image, Access::ReadWrite).unwrap();
        Server::of_file(folder, file, options)
    }

    /// Serves a file. The folder is that of the socket.
    pub fn of_file(folder: TempDir, file: File, options: impl FnOnce(Disk) -> Disk) -> Server {
        // The queue is fixed, so that no test depends on a measurement.
        let reactor = ReactorOptions::new().queue(QueueKind::Ring);
        let disk = options(Disk::new(file).serial("serial-7").reactor(reactor));
        let server = VhostServer::bind(folder.path().join("socket"), 0o600, disk).unwrap();
        let handle = server.handle();
        let thread = Some(thread::spawn(move || server.serve()));
        Server { folder, handle, thread }
    }

    pub fn handle(&self) -> &ServerHandle {
        &self.handle
    }

    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    pub fn image(&self) -> PathBuf {
        self.folder.path().join("image")
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.handle.stop();
        let served = self.thread.take().unwrap().join();
        if !thread::panicking() {
            served.unwrap().unwrap();
            assert!(!self.socket().exists(), "the socket is removed");
        }
    }
}
