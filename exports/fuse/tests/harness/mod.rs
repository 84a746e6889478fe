//! A volume that is mounted while a test runs.

#![allow(dead_code)] // each test uses its own part

use std::fs;
use std::path::PathBuf;
use std::thread::{self, JoinHandle};

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
        assert!(volume.flaws().is_empty());
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
