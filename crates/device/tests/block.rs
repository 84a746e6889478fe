//! Block devices: what is asked of them when they are opened, and who is refused.
//! Moving their bytes is tested with all other back ends in `model.rs`.

mod drive;

use std::fs::OpenOptions;
use std::io::ErrorKind;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use drive::loop_device::{LoopDevice, is_root};
use rustix::fs::OFlags;
use uringfs_device::backend::block::Block;
use uringfs_device::queue::ring::RingQueue;
use uringfs_device::{Access, Backend, Device};
use uringfs_ring::RingOptions;

/// A child that another test starts has this one's descriptors, and so its disk,
/// until it is another program: these tests run one after the other.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn the_geometry_is_the_disks() {
    if !is_root() {
        return;
    }
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    for (blocks, option) in [(512, "--sector-size=512"), (4096, "--sector-size=4096")] {
        let disk = LoopDevice::new(folder.path(), 8 << 20, &["--direct-io=on", option]);
        let device = Device::open(&disk.path, Access::ReadWrite).unwrap();
        let geometry = device.geometry();
        assert_eq!((geometry.size, geometry.block_size), (8 << 20, blocks));
        assert!(geometry.physical_block_size >= blocks && geometry.direct);
        assert!(geometry.max_transfer >= blocks && geometry.max_transfer.is_multiple_of(blocks));
        assert!(!geometry.read_only);
        let discard = geometry.discard.expect("loop devices over ext4 and XFS discard");
        assert!(discard.max_bytes > 0 && discard.granularity >= blocks);
        assert!(device.description().contains(disk.path.to_str().unwrap()));
    }
}

#[test]
fn a_disk_in_use_is_refused_for_writing_only() {
    if !is_root() {
        return;
    }
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let disk = LoopDevice::new(folder.path(), 1 << 20, &[]);
    let owner = Block::open(&disk.path, Access::ReadWrite).unwrap();
    let error = Block::open(&disk.path, Access::ReadWrite).err().expect("refused");
    assert_eq!(error.kind(), ErrorKind::ResourceBusy);
    let text = error.to_string();
    assert!(text.contains(disk.path.to_str().unwrap()) && text.contains("unmount"), "{text}");
    let reader = Block::open(&disk.path, Access::Read).unwrap();
    let geometry = reader.geometry();
    assert!(geometry.read_only && geometry.discard.is_none() && !geometry.write_zeroes);
    drop(owner);
    Block::open(&disk.path, Access::ReadWrite).unwrap();
}

#[test]
fn a_disk_that_a_ring_has_let_go_of_can_be_had_again_at_once() {
    if !is_root() {
        return;
    }
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let disk = LoopDevice::new(folder.path(), 1 << 20, &[]);
    for _ in 0..20 {
        // Not by way of `Block`, which is patient.
        let open = OpenOptions::new()
            .write(true)
            .custom_flags(OFlags::EXCL.bits() as i32)
            .open(&disk.path);
        drop(open.expect("nobody has it"));
        let device = Device::open(&disk.path, Access::ReadWrite).unwrap();
        let queue = RingQueue::new(device.core().clone(), &RingOptions::default()).unwrap();
        drop((queue, device));
    }
}

#[test]
fn a_write_protected_disk_is_refused_for_writing_only() {
    if !is_root() {
        return;
    }
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let disk = LoopDevice::new(folder.path(), 1 << 20, &["--read-only"]);
    let error = Block::open(&disk.path, Access::ReadWrite).err().expect("refused").to_string();
    assert!(error.contains(disk.path.to_str().unwrap()), "{error}");
    assert!(error.contains("for reading only") || error.contains("permission"), "{error}");
    assert!(Block::open(&disk.path, Access::Read).unwrap().geometry().read_only);
}
