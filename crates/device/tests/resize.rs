//! Devices whose size others change while they are open.

mod harness;

use std::fs::OpenOptions;
use std::path::Path;

use harness::loop_device::{LoopDevice, is_root};
use harness::{KERNEL_QUEUES, TestQueue};
use uringfs_buffer::Buffer;
use uringfs_device::backend::sim::{Crash, Fault, Rule, Sim, SimOptions, When};
use uringfs_device::{Access, Device, Errno, Op, Payload};

const MIB: u64 = 1 << 20;

fn set_length(path: &Path, bytes: u64) {
    OpenOptions::new().write(true).open(path).unwrap().set_len(bytes).unwrap();
}

fn image(folder: &Path, bytes: u64) -> std::path::PathBuf {
    let path = folder.join("image");
    std::fs::write(&path, vec![7; bytes as usize]).unwrap();
    path
}

fn run(tested: &mut TestQueue, op: Op, address: u64) -> Result<u64, Errno> {
    let payload = Payload::Buffer(Buffer::copy_of(&[9; 4096]));
    let request = tested.request(op, address, payload, 0);
    tested.run(request).1
}

#[test]
fn an_image_that_has_grown_is_used_beyond_its_old_end_by_each_queue() {
    for (name, make) in KERNEL_QUEUES {
        let folder = tempfile::tempdir().unwrap();
        let path = image(folder.path(), MIB);
        let device = Device::open(&path, Access::ReadWrite).unwrap();
        let mut tested = TestQueue::with(device.clone(), *make);
        assert_eq!(run(&mut tested, Op::Read, MIB), Ok(0), "{name}: there is nothing");
        set_length(&path, 2 * MIB);
        assert_eq!(device.size(), MIB);
        assert_eq!(device.core().check_size(), 2 * MIB);
        assert_eq!((device.size(), device.geometry().size), (2 * MIB, MIB));
        assert_eq!(run(&mut tested, Op::Write, 2 * MIB - 4096), Ok(4096), "{name}");
        assert_eq!(run(&mut tested, Op::Read, 2 * MIB - 4096), Ok(4096), "{name}");
        // Shorter again: what is lost is no end, but an error.
        set_length(&path, MIB);
        assert_eq!(run(&mut tested, Op::Read, 2 * MIB - 4096), Err(Errno::IO), "{name}");
    }
}

#[test]
fn an_image_that_has_shrunk_keeps_its_smaller_size() {
    let folder = tempfile::tempdir().unwrap();
    let path = image(folder.path(), 2 * MIB);
    let device = Device::open(&path, Access::Read).unwrap();
    set_length(&path, MIB + 512);
    assert_eq!(device.refresh_size().unwrap(), MIB);
    set_length(&path, 4 * MIB);
    assert_eq!(device.refresh_size().unwrap(), MIB);
    assert_eq!(device.core().largest_size(), 2 * MIB);
    assert_eq!(Device::open(&path, Access::Read).unwrap().size(), 4 * MIB);
}

#[test]
fn a_simulated_device_has_the_size_that_it_is_given() {
    let sim = Sim::new(SimOptions::new(MIB));
    let device = Device::new(sim.clone()).unwrap();
    let mut tested = TestQueue::own(device.clone());
    assert_eq!(run(&mut tested, Op::Write, MIB), Err(Errno::NOSPC));
    sim.set_size(2 * MIB);
    assert_eq!(device.refresh_size().unwrap(), 2 * MIB);
    assert_eq!(run(&mut tested, Op::Write, 2 * MIB - 4096), Ok(4096));
    assert_eq!(Device::new(sim.crash_image(Crash::KeepAll)).unwrap().size(), 2 * MIB);
    // From its second write on it is smaller.
    sim.inject(Rule::new(Op::Write, When::Nth(2), Fault::Resized(MIB)));
    assert_eq!(run(&mut tested, Op::Write, MIB), Ok(4096));
    assert_eq!(run(&mut tested, Op::Write, MIB), Err(Errno::NOSPC));
    assert_eq!(run(&mut tested, Op::Write, MIB - 4096), Ok(4096));
    assert_eq!(device.core().check_size(), MIB);
    assert_eq!(run(&mut tested, Op::Read, MIB), Err(Errno::IO));
    // Content that was cut off is gone, also after a power cut.
    sim.set_size(2 * MIB);
    assert_eq!(tested.read(MIB, 4096), [0; 4096]);
    let mut found = vec![1; 4096];
    sim.crash_image(Crash::KeepAll).peek(MIB, &mut found);
    assert_eq!(found, [0; 4096]);
}

/// Needs root.
#[test]
fn a_disk_that_has_grown_is_used_beyond_its_old_end() {
    if !is_root() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let disk = LoopDevice::new(folder.path(), 8 * MIB, &["--direct-io=on"]);
    let device = Device::open(&disk.path, Access::ReadWrite).unwrap();
    for (name, make) in KERNEL_QUEUES {
        let before = device.size();
        let mut tested = TestQueue::with(device.clone(), *make);
        disk.resize(before + 4 * MIB);
        assert_eq!(device.size(), before);
        assert_eq!(device.refresh_size().unwrap(), before + 4 * MIB);
        assert_eq!(run(&mut tested, Op::Write, before), Ok(4096), "{name}");
        assert_eq!(run(&mut tested, Op::Read, before), Ok(4096), "{name}");
    }
    let before = device.size();
    disk.resize(4 * MIB);
    assert_eq!(device.refresh_size().unwrap(), 4 * MIB);
    for (name, make) in KERNEL_QUEUES {
        let mut tested = TestQueue::with(device.clone(), *make);
        assert_eq!(run(&mut tested, Op::Read, before - 4096), Err(Errno::IO), "{name}");
        assert!(run(&mut tested, Op::Write, before - 4096).is_err(), "{name}");
        assert_eq!(run(&mut tested, Op::Read, 0), Ok(4096), "{name}");
    }
}
