//! Mounts of block devices, for which the kernel waits when it unmounts and syncs. They need root and loop devices.

#[path = "../../../crates/device/tests/harness/loop_device.rs"]
mod loop_device;
mod harness;

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use harness::{Mounted, UnmountOnDrop, threads};
use loop_device::{LoopDevice, is_root};
use rustix::fs::{Mode, OFlags, open, syncfs};
use rustix::mount::{UnmountFlags, unmount};
use uringfs::device::{Access, Device};
use uringfs::volume::CheckOptions;
use uringfs::{FormatOptions, Volume, VolumeOptions};
use uringfs_fuse::{Mount, MountOptions};

/// A child that another test starts has all files of this program open until its exec: it would keep devices and mounts.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A folder and a block device with an empty volume.
fn formatted() -> (tempfile::TempDir, LoopDevice) {
    let folder = tempfile::tempdir().unwrap();
    let disk = LoopDevice::new(folder.path(), 64 << 20, &[]);
    let format = FormatOptions::new().overwrite(true);
    Volume::create(&disk.path, &format).unwrap().close().unwrap();
    (folder, disk)
}

/// Nothing becomes durable by time.
fn options() -> MountOptions {
    threads(2).commit_interval(Duration::from_secs(3600))
}

fn mounted(folder: tempfile::TempDir, disk: &LoopDevice) -> Mounted {
    Mounted::with(folder, Volume::open(&disk.path).unwrap(), &options())
}

/// The type of the mount on a directory, and its source.
fn shown(directory: &Path) -> Option<(String, String)> {
    let directory = directory.canonicalize().unwrap();
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    mounts.lines().find_map(|line| {
        let mut words = line.split(' ');
        let (source, at, kind) = (words.next()?, words.next()?, words.next()?);
        (Path::new(at) == directory).then(|| (kind.to_owned(), source.to_owned()))
    })
}

fn claim(path: &Path) -> rustix::io::Result<rustix::fd::OwnedFd> {
    open(path, OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC, Mode::empty())
}

#[test]
fn as_root_a_block_device_is_claimed_by_its_mount_alone() {
    if !is_root() {
        return;
    }
    let _alone = alone();
    let (folder, disk) = formatted();
    let mut mounted = mounted(folder, &disk);
    fs::write(mounted.path("file"), "content").unwrap();
    let device = disk.path.to_str().unwrap().to_owned();
    assert_eq!(shown(&mounted.path("")), Some(("fuseblk.uringfs".into(), device)));
    assert_eq!(claim(&disk.path).unwrap_err(), rustix::io::Errno::BUSY);
    let again = Volume::open(&disk.path).unwrap_err();
    assert!(again.to_string().contains("is mounted at"), "{again}");
    mounted.end();
    claim(&disk.path).unwrap();
}

#[test]
fn as_root_the_unmount_of_a_block_device_returns_when_the_volume_is_closed() {
    if !is_root() {
        return;
    }
    let _alone = alone();
    let (folder, disk) = formatted();
    let mut closed = 0;
    for _ in 0..20 {
        let directory = folder.path().join("mount");
        fs::create_dir_all(&directory).unwrap();
        let volume = Volume::open(&disk.path).unwrap();
        let mount = Mount::new(volume, &directory, &options()).unwrap();
        let _unmount = UnmountOnDrop(mount.unmounter());
        let server = thread::spawn(|| mount.serve());
        let number = fs::read_dir(&directory).unwrap().count();
        fs::write(directory.join(number.to_string()), vec![7; 1 << 20]).unwrap();
        unmount(&directory, UnmountFlags::empty()).unwrap();
        // At once, though the server's threads may still run. Another program may have the mount in a namespace of its own.
        if claim(&disk.path).is_err() {
            server.join().unwrap().unwrap();
            continue;
        }
        closed += 1;
        let device = Device::open(&disk.path, Access::Read).unwrap();
        let checked = Volume::check(&device, CheckOptions::default(), &mut |_, _| {}).unwrap();
        assert!(checked.is_sound(), "{checked:?}");
        drop(device);
        let volume = VolumeOptions::new().read_only(true).open(&disk.path).unwrap();
        assert_eq!(volume.read(format!("/{number}")).unwrap(), vec![7; 1 << 20]);
        drop(volume);
        server.join().unwrap().unwrap();
    }
    assert_ne!(closed, 0);
}

#[test]
fn as_root_syncfs_of_a_block_device_makes_everything_durable() {
    if !is_root() {
        return;
    }
    let _alone = alone();
    let (folder, disk) = formatted();
    let copy = folder.path().join("copy");
    let mut mounted = mounted(folder, &disk);
    fs::create_dir(mounted.path("dir")).unwrap();
    fs::write(mounted.path("dir/file"), "content").unwrap();
    let content = |copy: &Path| {
        // A power cut, or a kill of the server, leaves what the device has.
        fs::write(copy, fs::read(&disk.path).unwrap()).unwrap();
        Volume::open(copy).unwrap().read("/dir/file").ok()
    };
    assert_eq!(content(&copy), None);
    syncfs(File::open(mounted.path("")).unwrap()).unwrap();
    match is_forwarded() {
        true => assert_eq!(content(&copy).as_deref(), Some(&b"content"[..])),
        false => println!("not exercised: this kernel does not forward syncfs"),
    }
    mounted.end();
}

/// Linux 6.18 and later forward syncfs to servers of block devices.
fn is_forwarded() -> bool {
    let release = rustix::system::uname().release().to_str().unwrap().to_owned();
    let mut numbers = release.split(['.', '-']).map(|number| number.parse::<u32>().unwrap_or(0));
    (numbers.next(), numbers.next()) >= (Some(6), Some(18))
}

#[test]
fn as_root_two_read_only_mounts_of_a_block_device_are_refused() {
    if !is_root() {
        return;
    }
    let _alone = alone();
    let (folder, disk) = formatted();
    let other = folder.path().join("other");
    fs::create_dir(&other).unwrap();
    let open = || VolumeOptions::new().read_only(true).open(&disk.path).unwrap();
    let mut mounted = Mounted::with(folder, open(), &options());
    let refused = Mount::new(open(), &other, &options()).map(drop).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ResourceBusy, "{refused}");
    assert_eq!(shown(&other), None);
    assert_eq!(fs::read_dir(mounted.path("")).unwrap().count(), 0);
    mounted.end();
}

#[test]
fn as_root_one_of_many_concurrent_mounts_of_a_block_device_succeeds() {
    if !is_root() {
        return;
    }
    let _alone = alone();
    let (folder, disk) = formatted();
    let directories: Vec<PathBuf> =
        (0..4).map(|number| folder.path().join(number.to_string())).collect();
    for directory in &directories {
        fs::create_dir(directory).unwrap();
    }
    let is_over = Arc::new(AtomicBool::new(false));
    let mounts = thread::scope(|scope| {
        let tries = directories.iter().map(|directory| {
            let (is_over, disk) = (is_over.clone(), &disk);
            scope.spawn(move || {
                while !is_over.load(Ordering::SeqCst) {
                    if let Ok(volume) = Volume::open(&disk.path)
                        && let Ok(mount) = Mount::new(volume, directory, &options())
                    {
                        is_over.store(true, Ordering::SeqCst);
                        return Some(mount);
                    }
                }
                None
            })
        });
        let tries: Vec<_> = tries.collect();
        tries.into_iter().filter_map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    let _unmount: Vec<_> = mounts.iter().map(|mount| UnmountOnDrop(mount.unmounter())).collect();
    let shown = directories.iter().filter_map(|directory| shown(directory)).count();
    assert_eq!((mounts.len(), shown), (1, 1));
    for mount in mounts {
        let unmounter = mount.unmounter();
        let server = thread::spawn(|| mount.serve());
        unmounter.unmount().unwrap();
        server.join().unwrap().unwrap();
    }
}

#[test]
fn as_root_a_mount_that_fails_leaves_a_block_device_free() {
    if !is_root() {
        return;
    }
    let _alone = alone();
    let (folder, disk) = formatted();
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let volume = Volume::open(&disk.path).unwrap();
    Mount::new(volume, &file, &options()).map(drop).unwrap_err();
    assert_eq!(Volume::open(&disk.path).unwrap().read_dir("/").unwrap().count(), 0);
}
