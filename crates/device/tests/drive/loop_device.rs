//! A block device over a temporary file, detached when dropped. Needs root and
//! `losetup` (util-linux).

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

pub struct LoopDevice {
    pub path: PathBuf,
    _file: tempfile::NamedTempFile,
}

/// True for the superuser, who alone can make loop devices.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

impl LoopDevice {
    /// `size` bytes of zeros, in blocks of 512; `options` go to losetup.
    pub fn new(folder: &Path, size: u64, options: &[&str]) -> LoopDevice {
        let mut file = tempfile::NamedTempFile::new_in(folder).unwrap();
        let zeros = vec![0; 1 << 20];
        for start in (0..size).step_by(zeros.len()) {
            file.write_all(&zeros[..zeros.len().min((size - start) as usize)]).unwrap();
        }
        file.as_file().sync_all().unwrap();
        let output = Command::new("losetup")
            .args(["--find", "--show"])
            .args(options)
            .arg(file.path())
            .output()
            .expect("losetup is installed (util-linux)");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "losetup: {error}");
        let path = String::from_utf8(output.stdout).unwrap().trim().into();
        LoopDevice { path, _file: file }
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.path).status();
    }
}
