//! Requests over io_uring. The carrier is turned on for the whole machine, so that this test is alone in its program.

#[path = "../../../crates/device/tests/harness/loop_device.rs"]
mod loop_device;

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use loop_device::{LoopDevice, is_root};
use rustix::fs::{FlockOperation, flock};
use uringfs::reactor::{Counter, total};
use uringfs::{FormatOptions, Volume};
use uringfs_fuse::{Mount, MountOptions};

const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";
const O_DIRECT: i32 = rustix::fs::OFlags::DIRECT.bits() as i32;

/// The value before the first of those that use the switch at once, here and in scripts/mounted.
const BEFORE: &str = "/run/uringfs-enable_uring";

/// A shared lock on the switch. The last one puts the switch back.
struct Switched(File);

impl Switched {
    /// Turns the carrier on. `None` where the kernel has none, or for an ordinary user.
    fn on() -> Option<Switched> {
        File::options().write(true).open(SWITCH).ok()?;
        let lock = File::open(SWITCH).ok()?;
        flock(&lock, FlockOperation::LockShared).unwrap();
        let before = fs::read(SWITCH).unwrap();
        if let Ok(mut file) = File::create_new(BEFORE) {
            file.write_all(&before).unwrap();
        }
        fs::write(SWITCH, "Y").unwrap();
        Some(Switched(lock))
    }
}

impl Drop for Switched {
    fn drop(&mut self) {
        if flock(&self.0, FlockOperation::NonBlockingLockExclusive).is_ok() {
            fs::write(SWITCH, fs::read(BEFORE).unwrap()).unwrap();
            fs::remove_file(BEFORE).unwrap();
        }
    }
}

/// Reads and writes files of every kind of request. Returns the commands that this took.
fn commands_of_a_mount(volume: &Path, options: &MountOptions) -> u64 {
    let before = total(Counter::Commands);
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path();
    let mount = Mount::new(Volume::open(volume).unwrap(), directory, options).unwrap();
    let unmounter = mount.unmounter();
    let server = std::thread::spawn(|| mount.serve());
    let content: Vec<u8> = (0..1_000_000u32).flat_map(u32::to_le_bytes).collect();
    let path = directory.join("file");
    fs::write(&path, &content).unwrap();
    let direct = File::options().read(true).custom_flags(O_DIRECT).open(&path).unwrap();
    let mut block = uringfs::Buffer::zeroed(4096);
    direct.read_exact_at(&mut block[..], 8192).unwrap();
    assert_eq!(block[..], content[8192..12288]);
    direct.sync_all().unwrap();
    drop(direct);
    assert!(fs::read(&path).unwrap() == content);
    fs::rename(&path, directory.join("renamed")).unwrap();
    assert_eq!(fs::read(&path).unwrap_err().kind(), std::io::ErrorKind::NotFound);
    assert_eq!(fs::read_dir(directory).unwrap().count(), 1);
    fs::remove_file(directory.join("renamed")).unwrap();
    unmounter.unmount().unwrap();
    server.join().unwrap().unwrap();
    total(Counter::Commands) - before
}

#[test]
fn requests_come_over_io_uring_where_the_kernel_grants_it() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    let format = FormatOptions::new().size(64 << 20);
    Volume::create(&image, &format).unwrap().close().unwrap();
    let off = MountOptions::new().threads(2).io_uring(false);
    let Some(switched) = Switched::on() else {
        println!("not exercised: requests over io_uring, which root turns on");
        assert_eq!(commands_of_a_mount(&image, &MountOptions::new()), 0);
        return;
    };
    assert_eq!(commands_of_a_mount(&image, &off), 0);
    let mut volumes = vec![image];
    let disk = is_root().then(|| LoopDevice::new(folder.path(), 64 << 20, &[]));
    if let Some(disk) = &disk {
        // For its mount the kernel waits at the end, over the ring, too.
        let format = FormatOptions::new().overwrite(true);
        Volume::create(&disk.path, &format).unwrap().close().unwrap();
        volumes.push(disk.path.clone());
    }
    for (threads, volume) in
        [1, 2, 3].into_iter().flat_map(|count| volumes.iter().map(move |it| (count, it)))
    {
        let on = MountOptions::new().threads(threads);
        let commands = commands_of_a_mount(volume, &on);
        assert!(commands > 40, "only {commands} requests came over io_uring");
    }
    drop(switched);
}
