//! Opening block devices: their geometry, and refusals. `model.rs` tests transfers,
//! with all other back ends.

mod harness;

use std::fs::OpenOptions;
use std::io::ErrorKind;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use harness::loop_device::{LoopDevice, is_root};
use rustix::fs::OFlags;
use uringfs_device::backend::block::Block;
use uringfs_device::queue::ring::RingQueue;
use uringfs_device::{Access, Backend, Device};
use uringfs_ring::RingOptions;

/// Runs these tests one after the other: a child process that another test starts
/// inherits the descriptors, and so keeps the disk open, until it calls exec.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn the_geometry_is_that_of_the_disk() {
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
    let error = Block::open(&disk.path, Access::ReadWrite).expect_err("refused");
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
fn a_disk_can_be_claimed_at_once_after_its_ring_is_dropped() {
    if !is_root() {
        return;
    }
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let disk = LoopDevice::new(folder.path(), 1 << 20, &[]);
    for _ in 0..20 {
        // Not through `Block`, which retries.
        let open = OpenOptions::new()
            .write(true)
            .custom_flags(OFlags::EXCL.bits() as i32)
            .open(&disk.path);
        drop(open.expect("the disk is not claimed"));
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
    let error = Block::open(&disk.path, Access::ReadWrite).expect_err("refused").to_string();
    assert!(error.contains(disk.path.to_str().unwrap()), "{error}");
    assert!(error.contains("for reading only") || error.contains("permission"), "{error}");
    assert!(Block::open(&disk.path, Access::Read).unwrap().geometry().read_only);
}
