//! A directory of fakes for the programs that `bench vm` runs, and a cache that looks complete.

use crate::process::{Deadline, make_script};
use nix::libc::O_NONBLOCK;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The directory. Its `bin` is the only directory in `PATH`.
pub struct FakePrograms(tempfile::TempDir);

impl FakePrograms {
    /// The tools that every machine has, and no packages.
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let bin = folder.path().join("bin");
        fs::create_dir(&bin).unwrap();
        for tool in ["setpriv", "sleep"] {
            let path = std::env::var_os("PATH").unwrap();
            let mut found = std::env::split_paths(&path).map(|directory| directory.join(tool));
            symlink(found.find(|directory| directory.exists()).unwrap(), bin.join(tool)).unwrap();
        }
        Self(folder)
    }

    /// Adds a cache with a kernel and tools, all of them empty files.
    pub fn with_cache() -> Self {
        let fakes = Self::new();
        let guest = fakes.cache().join("guest");
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
        fakes
    }

    pub fn folder(&self) -> &Path {
        self.0.path()
    }

    pub fn cache(&self) -> PathBuf {
        self.folder().join("cache")
    }

    /// The command `uringfs bench vm` with these programs, this cache and a program for the guest.
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

    /// Adds a program that reports its start and then runs until it is killed.
    pub fn waiting(&self, name: &str) -> BlockedProgram {
        let path = self.folder().join("pipe");
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        self.add(name, &format!("exec 9>{}\necho $$ >&9\nexec sleep 1000", path.display()));
        let pipe = File::options().read(true).custom_flags(O_NONBLOCK).open(path);
        BlockedProgram { pipe: pipe.unwrap(), output: Vec::new() }
    }
}

/// A program that runs until it is killed, at the latest when this is dropped. It writes its process
/// id to a pipe, of which it is the only writer.
pub struct BlockedProgram {
    pipe: File,
    output: Vec<u8>,
}

impl BlockedProgram {
    /// Waits until the program runs.
    pub fn started(&mut self) {
        let deadline = Deadline::new();
        while !self.output.ends_with(b"\n") {
            assert!(deadline.readable(&self.pipe), "the program did not start");
            self.read_pipe();
        }
    }

    /// Waits until the program was killed; it never ends by itself.
    pub fn ended(mut self) {
        let deadline = Deadline::new();
        while !self.read_pipe() {
            assert!(deadline.readable(&self.pipe), "the program did not end");
        }
    }

    /// Reads from the pipe without waiting. Returns whether the pipe has no writer any more.
    fn read_pipe(&mut self) -> bool {
        self.pipe.read_to_end(&mut self.output).is_ok()
    }
}

impl Drop for BlockedProgram {
    fn drop(&mut self) {
        if self.read_pipe() {
            return;
        }
        // The pipe has a writer, so the program still runs, with the id that it has written.
        if let Ok(pid) = String::from_utf8_lossy(&self.output).trim().parse() {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
    }
}

/// Writes the header of a static program. This is enough to be accepted; it is never run.
pub fn static_program(folder: &Path) -> PathBuf {
    let mut header = [0; 64];
    header[..6].copy_from_slice(b"\x7fELF\x02\x01");
    header[18] = 62;
    let path = folder.join("static");
    fs::write(&path, header).unwrap();
    path
}
