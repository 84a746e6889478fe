//! Blocks that have become free are discarded, where that was asked for: not before they are free on the
//! device and nobody reads them, and nothing else with them.

use uringfs_buffer::Buffer;
use uringfs_device::backend::sim::{Fault, Rule, Sim, SimOptions, When};
use uringfs_device::{Device, Errno, Op};
use uringfs_file::{File, Tokens};
use uringfs_reactor::{Reactor, ReactorOptions, Token};
use uringfs_volume::{FormatOptions, OpenOptions, Volume, VolumeOptions};

const SIZE: u64 = 16 << 20;
const BLOCK: usize = 4096;

fn made(sim: &Sim, discard: bool) -> Volume {
    let device = Device::new(sim.clone()).unwrap();
    Volume::format(&device, &FormatOptions::default()).unwrap();
    Volume::open_with(device, &VolumeOptions { discard, ..VolumeOptions::default() }).unwrap()
}

fn reactor() -> Reactor {
    Reactor::new(ReactorOptions::default()).unwrap()
}

/// A file of 64 blocks of a byte.
fn create(volume: &Volume, reactor: &Reactor, path: &str, byte: u8) -> File {
    let create = OpenOptions { create: Some(0o600), ..OpenOptions::direct() };
    let file = volume.open(path, create).unwrap();
    let bytes = Buffer::copy_of(&[byte; 64 * BLOCK]);
    assert!(reactor.block_on(file.write(bytes, 0)).1.is_ok());
    assert_eq!(reactor.block_on(file.sync()), Ok(()));
    file
}

/// Blocks of the device that hold nothing but a byte.
fn blocks_of(sim: &Sim, byte: u8) -> usize {
    let mut block = [0; BLOCK];
    let mut is_of = |number: &u64| {
        sim.peek(number * BLOCK as u64, &mut block);
        block.iter().all(|found| *found == byte)
    };
    (0..SIZE / BLOCK as u64).filter(|number| is_of(number)).count()
}

#[test]
fn what_is_removed_is_discarded_when_nobody_reads_it_any_more() {
    let sim = Sim::new(SimOptions::new(SIZE));
    let (volume, reactor, reading) = (made(&sim, true), reactor(), self::reactor());
    let (removed, kept) =
        (create(&volume, &reactor, "/removed", 1), create(&volume, &reactor, "/kept", 2));
    assert_eq!((blocks_of(&sim, 1), blocks_of(&sim, 2)), (64, 64));
    // The first read keeps the file open, for its time of access.
    assert!(reactor.block_on(removed.read(Buffer::zeroed(BLOCK), 0)).1.is_ok());
    volume.sync().unwrap();
    // Under way until its reactor turns.
    reading.read(&removed, Buffer::zeroed(BLOCK), 0, Token::new(1)).unwrap();
    drop(removed);
    volume.remove("/removed").unwrap();
    volume.sync().unwrap();
    volume.sync().unwrap();
    assert_eq!(blocks_of(&sim, 1), 64);
    reading.reap(1, None, &mut Vec::new()).unwrap();
    volume.sync().unwrap();
    assert_eq!((blocks_of(&sim, 1), blocks_of(&sim, 2)), (0, 64));
    // A part of a file, too.
    reactor.block_on(kept.punch_hole(0, 16 * BLOCK as u64)).unwrap();
    volume.sync().unwrap();
    assert_eq!(blocks_of(&sim, 2), 48);
    assert_eq!(volume.flaws(), Vec::<String>::new());
}

#[test]
fn nothing_is_discarded_unasked() {
    let sim = Sim::new(SimOptions::new(SIZE));
    let (volume, reactor) = (made(&sim, false), reactor());
    drop(create(&volume, &reactor, "/removed", 1));
    volume.remove("/removed").unwrap();
    drop(volume);
    assert_eq!(blocks_of(&sim, 1), 64);
}

#[test]
fn a_device_that_fails_to_discard_is_told_of_once_and_its_blocks_are_free_all_the_same() {
    let sim = Sim::new(SimOptions::new(SIZE));
    sim.inject(Rule::new(Op::Discard, When::OneIn(1), Fault::Error(Errno::IO)));
    let (volume, reactor) = (made(&sim, true), reactor());
    let free = volume.statistics().free_blocks;
    for _ in 0..3 {
        drop(create(&volume, &reactor, "/removed", 1));
        volume.remove("/removed").unwrap();
        volume.sync().unwrap();
        volume.sync().unwrap();
        assert_eq!(volume.statistics().free_blocks, free);
    }
    let flaws = volume.flaws();
    assert!(matches!(&flaws[..], [one] if one.contains("no longer discarded")), "{flaws:?}");
}
