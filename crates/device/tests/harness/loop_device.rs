//! A loop device over a temporary file. Needs root and `losetup` (util-linux).
//! The kernel detaches it at its last close, so even a killed test leaves no
//! device behind.

#![allow(dead_code)] // each test uses its own part

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

pub struct LoopDevice {
    pub path: PathBuf,
    /// Keeps the device attached.
    _open: File,
    file: tempfile::NamedTempFile,
}

/// True for the superuser, as loop devices require.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

impl LoopDevice {
    /// `size` bytes of zeros; `options` go to losetup.
    pub fn new(folder: &Path, size: u64, options: &[&str]) -> LoopDevice {
        let mut file = tempfile::NamedTempFile::new_in(folder).unwrap();
        file.write_all(&vec![0; size as usize]).unwrap();
        file.as_file().sync_all().unwrap();
        let image = file.path().to_str().expect("temporary names are plain");
        let path: PathBuf = losetup(&[options, &["--find", "--show", image]].concat()).into();
        let open = File::open(&path).unwrap();
        // While the device is open this only marks it: the kernel detaches it at its last close.
        losetup(&["--detach", path.to_str().expect("as losetup said")]);
        LoopDevice { path, _open: open, file }
    }

    /// Changes the size of the file, and then of the device.
    pub fn resize(&self, bytes: u64) {
        self.file.as_file().set_len(bytes).unwrap();
        losetup(&["--set-capacity", self.path.to_str().expect("as losetup said")]);
    }
}

fn losetup(arguments: &[&str]) -> String {
    let command = Command::new("losetup").args(arguments).output();
    let output = command.expect("losetup is installed (util-linux)");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "losetup {arguments:?}: {error}");
    String::from_utf8(output.stdout).unwrap().trim().into()
}
