//! A mount that fails for lack of descriptors is unmounted. The test is alone in its process, whose limit it changes.

use std::fs::{self, File};
use std::iter;

use rustix::process::{Resource, Rlimit, setrlimit};
use uringfs::device::Device;
use uringfs::device::backend::memory::Memory;
use uringfs::{FormatOptions, Volume, VolumeOptions};
use uringfs_fuse::{Mount, MountOptions, unmount};

#[test]
fn a_mount_that_fails_leaves_none_behind() {
    setrlimit(Resource::Nofile, Rlimit { current: Some(64), maximum: Some(64) }).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().canonicalize().unwrap();
    let is_mounted = || {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        mounts.lines().any(|line| line.split(' ').nth(1) == directory.to_str())
    };
    let mut results = [0, 0];
    for left in 0..20 {
        let device = Device::new(Memory::new(16 << 20).unwrap()).unwrap();
        Volume::format(&device, &FormatOptions::new()).unwrap();
        let volume = VolumeOptions::new().open_on(device).unwrap();
        let mut held: Vec<_> = iter::from_fn(|| File::open("/dev/null").ok()).collect();
        assert!(held.len() >= left, "the limit is lower than {left}");
        held.truncate(held.len() - left);
        let mounted = Mount::new(volume, &directory, &MountOptions::new().threads(4));
        drop(held);
        results[usize::from(mounted.is_ok())] += 1;
        if let Ok(mount) = &mounted {
            mount.unmounter().unmount_lazily().unwrap();
        }
        let is_left = is_mounted();
        if is_left {
            unmount(&directory, true).unwrap();
        }
        assert!(!is_left, "with {left} descriptors");
    }
    assert!(results[0] >= 4 && results[1] > 0, "refused, mounted: {results:?}");
}
