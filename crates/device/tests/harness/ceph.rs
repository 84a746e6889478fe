//! Ceph clusters on this machine: `scripts/ceph-cluster`. The tests of a program share one of one storage daemon.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use uringfs_device::backend::rbd::{Rbd, RbdTarget};
use uringfs_device::{Access, Device};

/// A cluster. It ends with the last test that has it.
pub struct CephCluster {
    script: Child,
    /// The script ends when this is closed.
    input: Option<ChildStdin>,
    output: Mutex<BufReader<ChildStdout>>,
    configuration: PathBuf,
    folder: tempfile::TempDir,
}

impl CephCluster {
    /// The cluster that the tests share.
    pub fn get() -> Arc<CephCluster> {
        static SHARED: Mutex<Weak<CephCluster>> = Mutex::new(Weak::new());
        let mut shared = SHARED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        shared.upgrade().unwrap_or_else(|| {
            let cluster = Arc::new(CephCluster::start(1));
            *shared = Arc::downgrade(&cluster);
            cluster
        })
    }

    /// A cluster of so many storage daemons. From two on, all bytes have two copies.
    pub fn start(daemons: u32) -> CephCluster {
        CephCluster::start_with_copies(daemons, daemons.min(2))
    }

    pub fn start_with_copies(daemons: u32, copies: u32) -> CephCluster {
        let folder = tempfile::tempdir().unwrap();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/ceph-cluster");
        let mut script = Command::new(script)
            .arg(folder.path().join("cluster"))
            .args(["--osds", &daemons.to_string(), "--copies", &copies.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(script.stdout.take().unwrap());
        let line = next_line(&mut output);
        assert!(!line.is_empty(), "scripts/ceph-cluster has started no cluster: see its message");
        let (input, configuration) = (script.stdin.take(), PathBuf::from(line));
        CephCluster { script, input, output: Mutex::new(output), configuration, folder }
    }

    /// Its configuration.
    pub fn configuration(&self) -> &Path {
        &self.configuration
    }

    /// A folder beside it.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Kills a daemon, as `mon.a`, and starts it again.
    pub fn restart(&self, daemon: &str) {
        writeln!(self.input.as_ref().unwrap(), "{daemon}").unwrap();
        let line = next_line(&mut self.output.lock().unwrap());
        assert_eq!(line, format!("{daemon} is started again"));
    }

    /// Sends a signal to a daemon, as `osd.0`. One that is to stop has stopped then.
    pub fn signal(&self, daemon: &str, signal: Signal) {
        let folder = self.configuration.parent().unwrap();
        let id = std::fs::read_to_string(folder.join(format!("{daemon}.pid"))).unwrap();
        let id = id.trim();
        kill_process(Pid::from_raw(id.parse().unwrap()).unwrap(), signal).unwrap();
        let is_stopped = |thread: std::io::Result<std::fs::DirEntry>| {
            let state = std::fs::read_to_string(thread.unwrap().path().join("stat"));
            state.is_ok_and(|line| line.rsplit_once(") ").unwrap().1.starts_with('T'))
        };
        let threads = || std::fs::read_dir(format!("/proc/{id}/task")).unwrap();
        let have_stopped = || signal != Signal::STOP || threads().all(is_stopped);
        until(have_stopped, "the daemon goes on");
    }

    /// The clients that are shut out.
    pub fn blocklist(&self) -> String {
        self.command(&["ceph", "osd", "blocklist", "ls"])
    }

    /// Runs a command of Ceph, such as `rbd`, which must succeed. Returns what it prints.
    pub fn command(&self, words: &[&str]) -> String {
        let mut command = Command::new(words[0]);
        let output =
            command.args(&words[1..]).env("CEPH_CONF", &self.configuration).output().unwrap();
        assert!(output.status.success(), "{words:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// A new image of this many bytes.
    pub fn image(self: &Arc<CephCluster>, size: u64) -> TestImage {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let name = format!("image{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        let features = "layering,exclusive-lock,object-map,fast-diff";
        let bytes = format!("{size}B");
        self.command(&["rbd", "create", "--size", &bytes, "--image-feature", features, &name]);
        TestImage { name, cluster: self.clone() }
    }
}

/// Waits until this is so.
pub fn until(is_so: impl Fn() -> bool, problem: &str) {
    let until = Instant::now() + Duration::from_secs(600);
    while !is_so() {
        assert!(Instant::now() < until, "{problem} after ten minutes");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Empty at the end of the output.
fn next_line(output: &mut BufReader<ChildStdout>) -> String {
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    line.trim_end().to_owned()
}

impl Drop for CephCluster {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.script.wait();
    }
}

/// An image in the pool `rbd`.
pub struct TestImage {
    pub name: String,
    pub cluster: Arc<CephCluster>,
}

impl TestImage {
    /// Its name for the back end, with what follows the image and with these options.
    pub fn target_with(&self, suffix: &str, options: &str) -> RbdTarget {
        let configuration = self.cluster.configuration().display();
        let text = format!("rbd:rbd/{}{suffix}?conf={configuration}{options}", self.name);
        RbdTarget::parse(&text).unwrap().unwrap()
    }

    /// Its name for the back end.
    pub fn target(&self) -> RbdTarget {
        self.target_with("", "")
    }

    /// The image as a device.
    pub fn open(&self, access: Access) -> Device {
        Device::new(Rbd::open(&self.target(), access).unwrap()).unwrap()
    }

    /// All its bytes, by `rbd export`.
    pub fn export(&self) -> Vec<u8> {
        let path = self.cluster.folder().join(format!("{}.export", self.name));
        self.cluster.command(&[
            "rbd",
            "export",
            "--no-progress",
            &self.name,
            path.to_str().unwrap(),
        ]);
        let bytes = std::fs::read(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        bytes
    }
}
