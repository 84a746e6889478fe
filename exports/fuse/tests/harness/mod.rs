//! A volume that is mounted while a test runs.

#![allow(dead_code)] // each test uses its own part

use std::fs;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::thread::{self, JoinHandle};

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair,
};
use uringfs::device::Device;
use uringfs::device::backend::sim::{Sim, SimOptions};
use uringfs::{FormatOptions, Volume};
use uringfs_fuse::{Mount, MountCache, MountOptions, Unmounter};

/// Each place where the bytes of files can be cached, and whether the kernel writes back.
pub const CACHES: [(MountCache, bool); 4] = [
    (MountCache::Kernel, false),
    (MountCache::Kernel, true),
    (MountCache::Volume, false),
    (MountCache::None, false),
];

/// A mounted volume in a file.
pub struct Mounted {
    unmounter: Unmounter,
    server: Option<JoinHandle<std::io::Result<()>>>,
    folder: Option<tempfile::TempDir>,
}

impl Mounted {
    pub fn new(options: &MountOptions) -> Mounted {
        let folder = tempfile::tempdir().unwrap();
        let format = FormatOptions::new().size(256 << 20);
        let volume = Volume::create(folder.path().join("image"), &format).unwrap();
        Mounted::with(folder, volume, options)
    }

    pub fn with(folder: tempfile::TempDir, volume: Volume, options: &MountOptions) -> Mounted {
        let directory = folder.path().join("mount");
        fs::create_dir_all(&directory).unwrap();
        let mount = Mount::new(volume, &directory, options).unwrap();
        let unmounter = mount.unmounter();
        let server = Some(thread::spawn(|| mount.serve()));
        Mounted { unmounter, server, folder: Some(folder) }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.as_ref().unwrap().path().join("mount").join(name)
    }

    pub fn end(&mut self) {
        self.end_server().unwrap();
    }

    /// Unmounts a volume that cannot be closed without an error.
    pub fn fail(&mut self) {
        self.end_server().unwrap_err();
    }

    fn end_server(&mut self) -> std::io::Result<()> {
        // A child of another test has this one's files open between its fork and its exec.
        while let Err(error) = self.unmounter.unmount() {
            assert_eq!(error.kind(), std::io::ErrorKind::ResourceBusy, "{error}");
        }
        self.server.take().unwrap().join().unwrap()
    }

    /// Unmounts, checks the volume and returns it.
    pub fn unmount(mut self) -> (tempfile::TempDir, Volume) {
        self.end();
        let folder = self.folder.take().unwrap();
        let volume = Volume::open(folder.path().join("image")).unwrap();
        assert!(volume.warnings().is_empty());
        (folder, volume)
    }
}

impl Drop for Mounted {
    /// A test that fails leaves no mount.
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            let _ = self.unmounter.unmount_lazily();
            let _ = server.join();
        }
    }
}

/// Unmounts at the end of a test that serves a mount itself, also if it fails.
pub struct UnmountOnDrop(pub Unmounter);

impl Drop for UnmountOnDrop {
    fn drop(&mut self) {
        let _ = self.0.unmount_lazily();
    }
}

pub fn threads(threads: usize) -> MountOptions {
    MountOptions::new().threads(threads)
}

/// A volume on a simulated device of 64 MiB.
pub fn simulated() -> (Sim, Volume) {
    let sim = Sim::new(SimOptions::new(64 << 20));
    let device = Device::new(sim.clone()).unwrap();
    (sim, Volume::create_on(device, &FormatOptions::new()).unwrap())
}

/// A test in the place of the kernel, for requests that the kernels of few machines send.
pub struct Kernel {
    socket: OwnedFd,
    server: JoinHandle<std::io::Result<()>>,
}

impl Kernel {
    pub const ROOT: u64 = 1;

    /// Begins to serve a volume.
    pub fn connect(volume: Volume) -> Kernel {
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let (socket, theirs) = socketpair(family, kind, SocketFlags::CLOEXEC, None).unwrap();
        let serve = || Mount::on_connection(theirs, volume, &threads(1)).unwrap().serve();
        Kernel { socket, server: thread::spawn(serve) }
    }

    /// Offers capabilities. Returns those that the server has agreed to.
    pub fn offer(&self, offered: u64) -> u64 {
        const INIT: u32 = 26;
        let flags = [offered as u32, (offered >> 32) as u32];
        let init = [&words(&[7, 45, 1 << 17])[..], &words(&flags), &[0; 44]].concat();
        let (error, reply) = self.ask(INIT, 0, &init, b"");
        assert_eq!(error, 0);
        let word = |at: usize| u64::from(u32::from_ne_bytes(reply[at..at + 4].try_into().unwrap()));
        word(12) | word(32) << 32
    }

    /// Sends a request, and returns the error and the body of its reply. The body of a request is filled up to a
    /// multiple of 8 where an extension follows.
    pub fn ask(&self, opcode: u32, node: u64, body: &[u8], extension: &[u8]) -> (i32, Vec<u8>) {
        let length = (40 + body.len() + extension.len()) as u32;
        let mut header = [0; 40];
        header[..4].copy_from_slice(&length.to_ne_bytes());
        header[4..8].copy_from_slice(&opcode.to_ne_bytes());
        header[8..16].copy_from_slice(&2u64.to_ne_bytes());
        header[16..24].copy_from_slice(&node.to_ne_bytes());
        header[36..38].copy_from_slice(&((extension.len() / 8) as u16).to_ne_bytes());
        let request = [&header[..], body, extension].concat();
        send(&self.socket, &request, SendFlags::empty()).unwrap();
        let mut reply = vec![0; 4096];
        let (length, _) = recv(&self.socket, &mut reply[..], RecvFlags::empty()).unwrap();
        let error = i32::from_ne_bytes(reply[4..8].try_into().unwrap());
        (-error, reply[16..length].to_vec())
    }

    /// Ends the connection. Nothing else may have the volume.
    pub fn end(self) {
        drop(self.socket);
        self.server.join().unwrap().unwrap();
    }
}

/// The bytes of words in a request.
pub fn words(values: &[u32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_ne_bytes()).collect()
}
