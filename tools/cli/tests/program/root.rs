//! Tests that need root: they create, mount and open block devices.

use super::bench_run::{folder, refused};
use super::process::tool;
use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Whether the test runs as root. For other users, tests instead that the program cannot open the
/// block devices of the machine.
pub fn as_root() -> bool {
    let root = is_root();
    if !root {
        devices_are_refused();
    }
    root
}

/// A tmpfs that is soon full. Unmounted on drop.
pub struct SmallTmpfs(PathBuf);

impl SmallTmpfs {
    /// Mounts one of this size, as in `8m`, on a new directory.
    pub fn new(path: &Path, size: &str) -> Self {
        std::fs::create_dir(path).unwrap();
        let options = format!("size={size}");
        tool("mount", &["-t", "tmpfs", "-o", &options, "tmpfs", path.to_str().unwrap()]);
        Self(path.to_owned())
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for SmallTmpfs {
    fn drop(&mut self) {
        tool("umount", &[self.0.to_str().unwrap()]);
    }
}

pub fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

fn devices_are_refused() {
    let folder = folder();
    let names = std::fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let devices = names.map(|entry| PathBuf::from("/dev").join(entry.file_name()));
    let closed = |path: &PathBuf| {
        File::open(path).is_err_and(|error| error.kind() == ErrorKind::PermissionDenied)
    };
    for device in devices.filter(closed) {
        let filename = format!("--filename={}", device.display());
        let part = format!("{}: Permission denied", device.display());
        refused(folder.path(), &["--name=x", "--rw=randread", "--size=64k", &filename], &part);
    }
}
