//! A folder of programs that stand in for those `bench vm` runs, and a cache that looks filled.

use crate::process::{Deadline, make_script};
use nix::libc::O_NONBLOCK;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The folder; its `bin` is all of `PATH`.
pub struct StandIns(tempfile::TempDir);

impl StandIns {
    /// The tools of a machine, and no package anywhere.
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let bin = folder.path().join("bin");
        fs::create_dir(&bin).unwrap();
        for tool in ["setpriv", "sleep"] {
            let path = std::env::var_os("PATH").unwrap();
            let mut found = std::env::split_paths(&path).map(|place| place.join(tool));
            symlink(found.find(|place| place.exists()).unwrap(), bin.join(tool)).unwrap();
        }
        Self(folder)
    }

    /// The same with a cache that has a kernel and tools, all of them empty files.
    pub fn with_cache() -> Self {
        let stand_ins = Self::new();
        let guest = stand_ins.cache().join("guest");
        let kernel = guest.join("kernels/a-kernel");
        for folder in ["bin", "sbin"] {
            fs::create_dir_all(guest.join("tools").join(folder)).unwrap();
        }
        fs::create_dir_all(kernel.join("modules")).unwrap();
        for file in ["bin/busybox", "sbin/mkfs.ext4", "sbin/mkfs.xfs", "sbin/losetup"] {
            fs::write(guest.join("tools").join(file), "").unwrap();
        }
        fs::write(kernel.join("vmlinuz-6.1.0-1-cloud-amd64"), "").unwrap();
        let manifest = r#"{"packages": [{"name": "a-kernel", "version": "6.1-1"}]}"#;
        fs::write(guest.join("manifest.json"), manifest).unwrap();
        stand_ins
    }

    pub fn folder(&self) -> &Path {
        self.0.path()
    }

    pub fn cache(&self) -> PathBuf {
        self.folder().join("cache")
    }

    /// `uringfs bench vm` with these programs, this cache and a program for the guest.
    pub fn bench_vm(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_uringfs"));
        command.args(["bench", "vm", "--cache"]).arg(self.cache()).args(arguments);
        if !arguments.contains(&"--program") {
            command.arg("--program").arg(static_program(self.folder()));
        }
        command.env("PATH", self.folder().join("bin")).env("TMPDIR", self.folder());
        command
    }

    /// Adds a program.
    pub fn add(&self, name: &str, script: &str) {
        make_script(&self.folder().join("bin").join(name), script);
    }

    /// Adds a program that says that it runs and then goes on until it is killed.
    pub fn waiting(&self, name: &str) -> Waiting {
        let path = self.folder().join("pipe");
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        self.add(name, &format!("exec 9>{}\necho $$ >&9\nexec sleep 1000", path.display()));
        let pipe = File::options().read(true).custom_flags(O_NONBLOCK).open(path);
        Waiting { pipe: pipe.unwrap(), said: Vec::new() }
    }
}

/// A program that goes on until it is killed, at the latest with this. It tells of itself by a pipe
/// that it alone holds open.
pub struct Waiting {
    pipe: File,
    said: Vec<u8>,
}

impl Waiting {
    /// Waits until it runs.
    pub fn started(&mut self) {
        let deadline = Deadline::new();
        while !self.said.ends_with(b"\n") {
            assert!(deadline.readable(&self.pipe), "nobody has started it");
            self.listen();
        }
    }

    /// Waits for its end, for which it has no reason of its own.
    pub fn ended(mut self) {
        let deadline = Deadline::new();
        while !self.listen() {
            assert!(deadline.readable(&self.pipe), "it runs on");
        }
    }

    /// Reads what it says, without waiting; whether nobody holds the pipe open.
    fn listen(&mut self) -> bool {
        self.pipe.read_to_end(&mut self.said).is_ok()
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if self.listen() {
            return;
        }
        // Whoever holds the pipe open is still there, and has the id that it said.
        if let Ok(pid) = String::from_utf8_lossy(&self.said).trim().parse() {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
    }
}

/// The header of a static program: enough of one to be taken, and never run.
pub fn static_program(folder: &Path) -> PathBuf {
    let mut header = [0; 64];
    header[..6].copy_from_slice(b"\x7fELF\x02\x01");
    header[18] = 62;
    let path = folder.join("static");
    fs::write(&path, header).unwrap();
    path
}
