//! Ceph clusters on this machine: `scripts/ceph-cluster`. The tests of a program share one of one storage daemon.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
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
        let folder = tempfile::tempdir().unwrap();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/ceph-cluster");
        let mut script = Command::new(script)
            .arg(folder.path().join("cluster"))
            .args(["--osds", &daemons.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(script.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(!line.is_empty(), "scripts/ceph-cluster has started no cluster: see its message");
        let (input, configuration) = (script.stdin.take(), PathBuf::from(line.trim_end()));
        CephCluster { script, input, configuration, folder }
    }

    /// Its configuration.
    pub fn configuration(&self) -> &Path {
        &self.configuration
    }

    /// A folder beside it.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Sends a signal to a storage daemon.
    pub fn signal(&self, daemon: u32, signal: Signal) {
        let folder = self.configuration.parent().unwrap();
        let id = std::fs::read_to_string(folder.join(format!("osd.{daemon}.pid"))).unwrap();
        kill_process(Pid::from_raw(id.trim().parse().unwrap()).unwrap(), signal).unwrap();
    }

    /// The clients that are shut out.
    pub fn blocklist(&self) -> String {
        self.command(&["ceph", "osd", "blocklist", "ls"])
    }

    /// Waits until a command of Ceph prints this.
    pub fn until(&self, words: &[&str], expected: &str) {
        let until = Instant::now() + Duration::from_secs(600);
        while !self.command(words).contains(expected) {
            assert!(Instant::now() < until, "{words:?}: not '{expected}' in ten minutes");
        }
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
