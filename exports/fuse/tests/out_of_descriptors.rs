//! A mount that fails for lack of descriptors is unmounted. The test is alone in its process, whose limit it changes.

use std::fs::{self, File};
use std::iter;

use rustix::process::{Resource, Rlimit, setrlimit};
use uringfs::device::Device;
use uringfs::device::backend::memory::Memory;
use uringfs::{FormatOptions, Volume, VolumeOptions};
use uringfs_fuse::{Mount, MountOptions, unmount};

fn volume() -> Volume {
    let device = Device::new(Memory::new(16 << 20).unwrap()).unwrap();
    Volume::format(&device, &FormatOptions::new()).unwrap();
    VolumeOptions::new().open_on(device).unwrap()
}

/// All descriptors that are left.
fn take_all() -> Vec<File> {
    iter::from_fn(|| File::open("/dev/null").ok()).collect()
}

#[test]
fn a_mount_that_fails_leaves_none_behind() {
    setrlimit(Resource::Nofile, Rlimit { current: Some(64), maximum: Some(64) }).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().canonicalize().unwrap();
    let is_left = || {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        let is_left = mounts.lines().any(|line| line.split(' ').nth(1) == directory.to_str());
        if is_left {
            unmount(&directory, true).unwrap();
        }
        is_left
    };
    let mut results = [0, 0];
    for left in 0..20 {
        let volume = volume();
        let mut held = take_all();
        assert!(held.len() >= left, "the limit is lower than {left}");
        held.truncate(held.len() - left);
        let mounted = Mount::new(volume, &directory, &MountOptions::new().threads(4));
        drop(held);
        results[usize::from(mounted.is_ok())] += 1;
        if let Ok(mount) = &mounted {
            mount.unmounter().unmount_lazily().unwrap();
        }
        assert!(!is_left(), "with {left} descriptors");
    }
    assert!(results[0] >= 4 && results[1] > 0, "refused, mounted: {results:?}");

    // Its thread has no descriptor for a reactor.
    let mount = Mount::new(volume(), &directory, &MountOptions::new().threads(1)).unwrap();
    let held = take_all();
    let served = mount.serve();
    drop(held);
    served.unwrap_err();
    assert!(!is_left());
}
