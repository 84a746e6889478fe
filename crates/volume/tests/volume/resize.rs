//! Growing volumes: offline, in use, and with a power cut.

use std::sync::atomic::{AtomicBool, Ordering};

use uringfs_buffer::Buffer;
use uringfs_device::Device;
use uringfs_device::backend::sim::{Crash, CrashPlan, Sim, SimOptions};
use uringfs_file::FallocateSize;
use uringfs_reactor::{Reactor, ReactorOptions};
use uringfs_volume::{CheckOptions, ErrorKind, FormatOptions, OpenOptions, Volume};

const MIB: u64 = 1 << 20;
const BLOCK: u64 = 4096;
/// In the middle of a region of the allocator, and after the next region.
const OLD: u64 = 40 * MIB;
const NEW: u64 = 300 * MIB;

fn small_volume() -> (Sim, Device) {
    let sim = Sim::new(SimOptions::new(NEW));
    let device = Device::new(sim.clone()).unwrap();
    let options = FormatOptions::new().size(OLD);
    Volume::format(&device, &options).unwrap();
    (sim, device)
}

fn reactor() -> Reactor {
    Reactor::new(ReactorOptions::default()).unwrap()
}

fn write(volume: &Volume, reactor: &Reactor, path: &str, byte: u8, length: usize) {
    let create = OpenOptions::new().read(true).write(true).create(true).mode(0o600).direct(true);
    let file = volume.open_with(path, create).unwrap();
    let bytes = Buffer::copy_of(&vec![byte; length]);
    assert_eq!(reactor.block_on(file.write_at(bytes, 0)).0, Ok(length));
}

fn holds(volume: &Volume, reactor: &Reactor, path: &str, byte: u8, length: usize) -> bool {
    let file =
        volume.open_with(path, OpenOptions::new().read(true).write(true).direct(true)).unwrap();
    let (read, bytes) = reactor.block_on(file.read_at(Buffer::zeroed(length), 0));
    read == Ok(length) && bytes.iter().all(|found| *found == byte)
}

fn findings(device: &Device) -> Vec<String> {
    let check = CheckOptions::default();
    let report = Volume::check(device, check, &mut |_, _| {}).unwrap();
    report.findings.iter().map(ToString::to_string).collect()
}

fn assert_sound(device: &Device, place: &str) {
    let lines = findings(device);
    assert!(lines.is_empty(), "{place}: {lines:?}");
}

#[test]
fn a_full_volume_takes_more_after_growing() {
    let (_, device) = small_volume();
    let reactor = reactor();
    let volume = Volume::open_on(device.clone()).unwrap();
    let before = volume.statistics();
    volume.resize(NEW).unwrap();
    let after = volume.statistics();
    assert_eq!(after.blocks, NEW / BLOCK);
    assert_eq!(after.free_blocks - before.free_blocks, (NEW - OLD) / BLOCK);
    write(&volume, &reactor, "/large", 7, 200 << 20);
    drop(volume);
    assert_sound(&device, "after growing");
    let volume = Volume::open_on(device).unwrap();
    assert_eq!(volume.statistics().blocks, NEW / BLOCK);
    assert!(holds(&volume, &reactor, "/large", 7, 200 << 20));
}

#[test]
fn a_full_catalog_has_space_as_soon_as_the_volume_grows() {
    let (_, device) = small_volume();
    let reactor = reactor();
    let volume = Volume::open_on(device).unwrap();
    let create = OpenOptions::new().read(true).write(true).create(true).mode(0o600).direct(true);
    let file = volume.open_with("/full", create).unwrap();
    let free = volume.statistics().free_blocks;
    assert_eq!(reactor.block_on(file.allocate(0, free * BLOCK, FallocateSize::Extend)), Ok(()));
    let make = |number: u64| volume.create_dir_with_mode(format!("/{number:0200}"), 0o700);
    let refused = (0..).find_map(|number| make(number).err().map(|error| (number, error)));
    let (number, error) = refused.unwrap();
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    let before = volume.statistics().catalog_blocks;
    volume.resize(NEW).unwrap();
    assert!(volume.statistics().catalog_blocks > before);
    make(number).unwrap();
    volume.sync().unwrap();
}

#[test]
fn invalid_sizes_are_refused_and_change_nothing() {
    let (sim, device) = small_volume();
    let volume = Volume::open_on(device).unwrap();
    sim.restart_record();
    for (bytes, why) in [
        (OLD - BLOCK, "cannot shrink"),
        (NEW + BLOCK, "the device has"),
        (OLD + 1, "multiple of 4096"),
        (u64::MAX - 4095, "64 TiB"),
    ] {
        let error = volume.resize(bytes).unwrap_err();
        assert!(error.kind() == ErrorKind::Input && error.to_string().contains(why), "{error}");
    }
    volume.resize(OLD).unwrap();
    assert_eq!((volume.statistics().blocks, sim.record().len()), (OLD / BLOCK, 0));
}

#[test]
fn files_are_written_and_read_while_the_volume_grows() {
    let (_, device) = small_volume();
    let volume = Volume::open_on(device.clone()).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..2u8 {
            let (volume, done) = (&volume, &done);
            scope.spawn(move || {
                let reactor = reactor();
                let mut round = 0u32;
                while round < 10 || !done.load(Ordering::Relaxed) {
                    let (path, byte) = (format!("/{thread}-{}", round % 7), round as u8);
                    write(volume, &reactor, &path, byte, 100_000);
                    assert!(holds(volume, &reactor, &path, byte, 100_000), "{path}");
                    round += 1;
                }
            });
        }
        for size in [48 * MIB, 127 * MIB, 128 * MIB, 129 * MIB, NEW] {
            volume.resize(size).unwrap();
            assert_eq!(volume.statistics().blocks, size / BLOCK);
        }
        done.store(true, Ordering::Relaxed);
    });
    drop(volume);
    assert_sound(&device, "after growing in use");
}

#[test]
fn a_power_cut_leaves_the_old_or_the_new_size() {
    let (sim, device) = small_volume();
    let reactor = reactor();
    let volume = Volume::open_on(device).unwrap();
    write(&volume, &reactor, "/kept", 3, 50_000);
    volume.sync().unwrap();
    sim.restart_record();
    volume.resize(NEW).unwrap();
    write(&volume, &reactor, "/later", 4, 50_000);
    drop(volume);
    let (mut small, mut large) = (0, 0);
    let plan = CrashPlan { exhaustive_up_to: 2, samples: 3, seed: 5 };
    for image in sim.crash_images(plan) {
        let place = format!("seed 5, cut {}, {:?}", image.cut, image.crash);
        let device = Device::new(image.sim.clone()).unwrap();
        // A cut between the writes of the three superblocks leaves one or two older ones, which
        // opening repairs.
        let lines = findings(&device);
        let is_older = |line: &String| line.ends_with("older than the newest");
        assert!(lines.len() <= 2 && lines.iter().all(is_older), "{place}: {lines:?}");
        let volume = Volume::open_on(device.clone()).unwrap();
        assert_eq!(volume.warnings(), Vec::<String>::new(), "{place}");
        match volume.statistics().blocks * BLOCK {
            OLD => small += 1,
            NEW => large += 1,
            other => panic!("{place}: {other} bytes"),
        }
        assert!(holds(&volume, &reactor, "/kept", 3, 50_000), "{place}");
        // The volume remains usable.
        volume.resize(NEW).unwrap();
        write(&volume, &reactor, "/after", 5, 50_000);
        drop(volume);
        assert_sound(&device, &place);
    }
    assert!(small > 2 && large > 2, "{small} small, {large} large");
}

#[test]
fn a_concurrent_resize_to_the_same_size_waits_until_it_is_durable() {
    for _ in 0..100 {
        let (sim, device) = small_volume();
        let volume = Volume::open_on(device).unwrap();
        std::thread::scope(|scope| {
            let other = scope.spawn(|| volume.resize(NEW).unwrap());
            volume.resize(NEW).unwrap();
            let image = Device::new(sim.crash_image(Crash::LoseAll)).unwrap();
            other.join().unwrap();
            let blocks = Volume::open_on(image).unwrap().statistics().blocks;
            assert_eq!(blocks, NEW / BLOCK);
        });
    }
}
